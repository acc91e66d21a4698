"""Inspection of a run: probes of what a model attends to, keeps and forgets, their figures, and one page."""
