"""The type of a JSON object."""

from typing import Any

JsonObject = dict[str, Any]
"""Names to what JSON holds: numbers, texts, lists, and objects of the same type."""
