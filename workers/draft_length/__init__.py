"""Draft-length control: how many tokens to draft for each sequence of a round. Pure: no clock, no torch, no Ray."""
