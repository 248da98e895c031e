"""Parts of the river's benchmarks that are no benchmark themselves."""
