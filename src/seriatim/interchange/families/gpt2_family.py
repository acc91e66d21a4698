"""GPT-2: A. Radford et al., "Language models are unsupervised multitask learners", 2019."""

from typing import ClassVar

from ...config import Fields
from ...core.errors import InputError
from .checkpoint_family import ConversionRule, Family, ModelFacts

ACTIVATIONS = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
}


class GPT2Family(Family):
    """A Transformer with learned positions, layer norms before its parts, and biases; matrices are transposed there."""

    model_types = ("gpt2",)
    ignored = (".attn.bias", ".attn.masked_bias")
    prefix = "transformer."
    unit = "line"
    tied: ClassVar = {"transformer.wte.weight": "lm_head.weight"}
    tied_by_default = True

    def model(self) -> Fields:
        """Return the section ``model``; see `Family.model`."""
        self.require(
            add_cross_attention=False, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True,
            reorder_and_upcast_attn=False,
        )  # fmt: skip
        size = self.number("n_embd")
        options = {
            "num_heads": self.number("n_head"),
            "position": "learned",
            "max_length": self.number("n_positions", self.fields.get("n_ctx")),
            "norm": "layer",
            "norm_epsilon": self.real("layer_norm_epsilon", 1e-5),
            "feed_forward": self.choose("activation_function", ACTIVATIONS, "gelu_new"),
            "feed_forward_size": self.number("n_inner", 4 * size),
            "bias": True,
        }
        return self.section("transformer", size, self.number("n_layer"), options)

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> Fields:
        """Return the fields; see `Family.fields_for`."""
        facts.demand(
            norm="layer", norm_first=True, final_norm=True, bias=True, qkv_bias=True, qk_norm=False, causal=True,
            score="scaled-dot", window=None, num_experts=None, position_norm=False,
            head_size=facts.model.hidden_size // facts.options["num_heads"], num_kv_heads=facts.options["num_heads"],
        )  # fmt: skip
        names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
        kind = facts.options["feed_forward"]
        if kind not in names:
            raise InputError(f"{facts.where}: model.options.feed_forward {kind} has no place in a checkpoint of GPT-2")
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_embd": facts.model.hidden_size,
            "n_layer": facts.model.num_layers,
            "n_head": facts.options["num_heads"],
            "n_positions": facts.options["max_length"],
            "n_inner": facts.options["feed_forward_size"],
            "activation_function": names[kind],
            "layer_norm_epsilon": facts.options["norm_epsilon"],
        }

    def rules(self) -> list[ConversionRule]:
        """Return the rules; see `Family.rules`."""
        rules = self.tables("transformer.wte.weight", "lm_head.weight")
        rules.append(ConversionRule("layer.layers.0.table", ("transformer.wpe.weight",)))
        blocks = "layer.layers.1"
        for i in range(self.number("n_layer")):
            ours, theirs = f"{blocks}.layers.{i}.layers", f"transformer.h.{i}"
            for part, name in ((f"{ours}.0.norm", "ln_1"), (f"{ours}.1.norm", "ln_2")):
                rules += [ConversionRule(f"{part}.{end}", (f"{theirs}.{name}.{end}",)) for end in ("weight", "bias")]
            for part, name in (
                (f"{ours}.0.layer.qkv_proj", "attn.c_attn"),
                (f"{ours}.0.layer.o_proj", "attn.c_proj"),
                (f"{ours}.1.layer.module.up_proj", "mlp.c_fc"),
                (f"{ours}.1.layer.module.down_proj", "mlp.c_proj"),
            ):
                rules.append(ConversionRule(f"{part}.weight", (f"{theirs}.{name}.weight",), "transposed"))
                rules.append(ConversionRule(f"{part}.bias", (f"{theirs}.{name}.bias",)))
        return [
            *rules,
            *(ConversionRule(f"{blocks}.norm.{end}", (f"transformer.ln_f.{end}",)) for end in ("weight", "bias")),
        ]
