"""Training what drafts, from the target's own answers and its states over them: a draft head or a small model."""
