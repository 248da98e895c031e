"""The river: sources, plan, shards, the Ray Data graph, the engine actor, commit and ledger."""
