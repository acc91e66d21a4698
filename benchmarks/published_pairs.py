"""Rows of the table of published figures: pronunciation and inflection."""

from published_row import Row

ROWS: dict[str, Row] = {}
