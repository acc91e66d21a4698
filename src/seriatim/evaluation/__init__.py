"""Evaluation: how well a model does, with an interval."""
