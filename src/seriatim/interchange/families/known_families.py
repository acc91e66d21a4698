"""The families by the ``model_type`` of their `config.json`."""

from ...config import Fields
from ...core.errors import InputError, shown
from .checkpoint_family import Family
from .gpt2_family import GPT2Family
from .llama_family import LlamaFamily
from .mamba_family import MambaFamily

FAMILIES: dict[str, type[Family]] = {
    name: family for family in (GPT2Family, LlamaFamily, MambaFamily) for name in family.model_types
}


def family_of(fields: Fields, where: str) -> Family:
    """Return the family of a checkpoint; raise InputError if it is unknown."""
    name = fields.get("model_type")
    if name not in FAMILIES:
        raise InputError(f"{where}: model_type {shown(name)} is not known; known are {', '.join(sorted(FAMILIES))}")
    return FAMILIES[str(name)](fields, where)
