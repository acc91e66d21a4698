"""Runs of earlier versions, a small one of every kind, and what they answered when they were written."""
