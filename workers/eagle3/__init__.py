"""EAGLE-3 (https://arxiv.org/abs/2503.01840): a drafter of one decoder layer that reads the target's hidden states."""
