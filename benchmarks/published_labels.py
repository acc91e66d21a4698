"""Rows of the table of published figures: tagging and classification."""

from published_row import Row

ROWS: dict[str, Row] = {}
