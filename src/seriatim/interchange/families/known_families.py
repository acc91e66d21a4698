"""The families by the ``model_type`` of their `config.json`."""

from torch import nn

from ...config import Config, Fields
from ...core.errors import InputError, shown
from ...layers import options_of
from .bert_family import BertFamily
from .checkpoint_family import Family, ModelFacts
from .gpt2_family import GPT2Family
from .llama_family import LlamaFamily
from .mamba_family import MambaFamily

LAYERS: dict[str, dict[str, type[Family]]] = {
    "lm": {"transformer": LlamaFamily, "mamba": MambaFamily},
    "mlm": {"transformer": BertFamily},
}
"""The layers that checkpoints can hold, by task."""
FAMILIES: dict[str, type[Family]] = {
    name: family for family in (BertFamily, GPT2Family, LlamaFamily, MambaFamily) for name in family.model_types
}


def family_of(fields: Fields, where: str) -> Family:
    """Return the family of a checkpoint; raise InputError if it is unknown."""
    name = fields.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise InputError(f"{where}: model_type {shown(name)} is not known; known are {', '.join(sorted(FAMILIES))}")
    return FAMILIES[name](fields, where)


def family_for(config: Config, built: nn.Module, where: str) -> Fields:
    """Return the fields of a checkpoint for a language model here; raise InputError if no family can hold it."""
    model, layers = config.model, LAYERS.get(config.task, {})
    if model.layer not in layers:
        raise InputError(f"{where}: layer {model.layer} is in no checkpoint; known are {', '.join(layers)}")
    if model.output_bias != layers[model.layer].has_output_bias:
        has, expected = ("has a bias", "no") if model.output_bias else ("has no bias", "every")
        raise InputError(
            f"{where}: the output layer {has}, which {expected} checkpoint has; "
            f"train with --model.output_bias {str(not model.output_bias).lower()}"
        )
    if model.embedding_size != model.hidden_size or model.bidirectional:
        raise InputError(f"{where}: the layers of a checkpoint are as wide as its embedding and not bidirectional")
    declared = options_of(model.layer, model.options)
    options: Fields = {name: option.default for name, option in declared.items()} | model.options
    options |= chosen_sizes(built)
    if options.get("qkv_bias") is None:
        options["qkv_bias"] = options.get("bias")
    family = layers[model.layer]
    if family is LlamaFamily and options.get("position") == "learned":
        family = GPT2Family
    return family.fields_for(ModelFacts(model, options, where))


def chosen_sizes(built: nn.Module) -> Fields:
    """Return the options whose default is chosen from other sizes, as a model has them."""
    sizes: Fields = {}
    for part in built.modules():
        if all(isinstance(getattr(part, name, None), int) for name in ("num_heads", "cache_heads", "cache_size")):
            heads: dict[str, int] = vars(part)
            sizes |= {"num_heads": heads["num_heads"], "num_kv_heads": heads["cache_heads"] // 2}
            sizes["head_size"] = heads["cache_size"]
    widths = [len(value) for name, value in built.named_parameters() if name.endswith("up_proj.weight")]
    return sizes | ({"feed_forward_size": widths[0]} if widths else {})
