"""Decoding: one token after another, by any model."""
