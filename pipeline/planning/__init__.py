"""Planning: from a source to the shards of a run. `pipeline.plan` is its door."""
