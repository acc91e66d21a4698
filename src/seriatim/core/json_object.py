"""The types of a JSON object."""

from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]
"""Names to what JSON holds: numbers, texts, lists, and objects of the same type."""
JsonMapping = Mapping[str, Any]
"""A JSON object that is only read."""
