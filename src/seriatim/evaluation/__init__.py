"""Metrics of trained models, each with its 95 % interval."""
