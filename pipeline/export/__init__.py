"""A run's dataset in the formats of other programs."""
