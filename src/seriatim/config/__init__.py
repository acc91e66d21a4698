"""The typed configuration of a run: `sections` declares its fields, and `resolving` reads it.

An unknown key or a value that does not fit is reported in one line that names the key (`config_errors`).
"""

from .config_errors import explain
from .resolving import (
    ConfigSource,
    changed,
    parse_value,
    read_settings,
    read_yaml,
    resolve,
    resolve_leniently,
)
from .sections import (
    BATCH_SIZE,
    MAIN_HEADING,
    Config,
    Count,
    Data,
    Fields,
    Model,
    NonNegative,
    Positive,
    Rate,
    Section,
    Tokenizer,
    Training,
    describe_fields,
    fields,
    text_fields,
)

__all__ = [
    "BATCH_SIZE",
    "MAIN_HEADING",
    "Config",
    "ConfigSource",
    "Count",
    "Data",
    "Fields",
    "Model",
    "NonNegative",
    "Positive",
    "Rate",
    "Section",
    "Tokenizer",
    "Training",
    "changed",
    "describe_fields",
    "explain",
    "fields",
    "parse_value",
    "read_settings",
    "read_yaml",
    "resolve",
    "resolve_leniently",
    "text_fields",
]
