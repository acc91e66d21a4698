"""Llama and its relatives: rotary positions, RMSNorm before each part, gated feed-forward networks.

H. Touvron et al., "LLaMA: open and efficient foundation language models", 2023; A. Jiang et al., "Mistral 7B", 2023,
and "Mixtral of experts", 2024; A. Yang et al., "Qwen2 technical report", 2024, and "Qwen3 technical report", 2025.
"""

from typing import ClassVar

from ...config import Fields
from ...core.errors import InputError, shown
from .checkpoint_family import ConversionRule, Family, ModelFacts

FULL, SLIDING = "full_attention", "sliding_attention"
DEFAULTS: dict[str, Fields] = {
    "mistral": {"sliding_window": 4096, "num_key_value_heads": 8},
    "mixtral": {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_key_value_heads": 8},
    "qwen3": {"head_dim": 128},
}
"""What the other library takes for fields that are missing, where it differs from Llama."""
ACTIVATIONS = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}


class LlamaFamily(Family):
    """Llama, Mistral, Qwen2, Qwen3 and Mixtral."""

    model_types = ("llama", "mistral", "qwen2", "qwen3", "mixtral")
    prefix = "model."
    tied: ClassVar = {"model.embed_tokens.weight": "lm_head.weight"}
    ignored = ("rotary_emb.inv_freq",)

    def __init__(self, fields: Fields, where: str) -> None:
        super().__init__({**DEFAULTS.get(str(fields["model_type"]), {}), **fields}, where)

    def model(self) -> Fields:
        """Return the section ``model``; see `Family.model`."""
        self.require(attention_bias=False, mlp_bias=False, pretraining_tp=1)
        size, heads = self.number("hidden_size"), self.number("num_attention_heads")
        options: Fields = {
            "num_heads": heads,
            "num_kv_heads": self.number("num_key_value_heads", heads),
            "window": self.window(),
            "head_size": self.number("head_dim", size // heads),
            "rotary_base": self.rotary_base(),
            "norm_epsilon": self.real("rms_norm_eps", 1e-6),
            "feed_forward": self.choose("hidden_act", ACTIVATIONS, "silu"),
            "feed_forward_size": self.number("intermediate_size"),
        }
        if self.fields["model_type"] == "qwen2":
            options["qkv_bias"] = True
        if self.fields["model_type"] == "qwen3":
            options["qk_norm"] = True
        if self.has_experts:
            options["num_experts"] = self.number("num_local_experts", 8)
            options["experts_per_token"] = self.number("num_experts_per_tok", 2)
            if options["experts_per_token"] == 1:
                raise InputError(f"{self.where}: num_experts_per_tok 1 is not supported; use another checkpoint")
        return self.section("transformer", size, self.number("num_hidden_layers"), options)

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> Fields:
        """Return the fields; see `Family.fields_for`."""
        options = facts.options
        facts.demand(
            position="rotary", norm="rms", norm_first=True, final_norm=True, bias=False, score="scaled-dot", causal=True
        )
        kind, experts = cls.type_for(facts), options.get("num_experts")
        names = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
        if options["feed_forward"] not in names:
            raise InputError(
                f"{facts.where}: model.options.feed_forward {options['feed_forward']} has no place there, "
                f"only {', '.join(names)}"
            )
        fields: Fields = {
            "model_type": kind,
            "architectures": [f"{kind.capitalize()}ForCausalLM"],
            "hidden_size": facts.model.hidden_size,
            "num_hidden_layers": facts.model.num_layers,
            "num_attention_heads": options["num_heads"],
            "num_key_value_heads": options["num_kv_heads"],
            "head_dim": options["head_size"],
            "intermediate_size": options["feed_forward_size"],
            "hidden_act": names[options["feed_forward"]],
            "rms_norm_eps": options["norm_epsilon"],
            "rope_parameters": {"rope_type": "default", "rope_theta": options["rotary_base"]},
            "max_position_embeddings": 1 << 20,
        }
        if kind in ("mistral", "mixtral"):
            fields["sliding_window"] = options["window"]
        if experts:
            fields |= {"num_local_experts": experts, "num_experts_per_tok": options["experts_per_token"]}
        return fields

    @classmethod
    def type_for(cls, facts: ModelFacts) -> str:
        """Return the ``model_type`` that has the parts of a model."""
        options = facts.options
        parts = [
            name
            for name, present in (
                ("qwen3", options["qk_norm"]),
                ("qwen2", options["qkv_bias"]),
                ("mixtral", options.get("num_experts")),
                ("mistral", options["window"]),
            )
            if present
        ]
        kind = parts[0] if parts else "llama"
        if parts not in ([], ["mixtral", "mistral"]) and len(parts) > 1:
            raise InputError(f"{facts.where}: no architecture has the parts of {' and '.join(parts)} together")
        if kind == "qwen2" and options["head_size"] * options["num_heads"] != facts.model.hidden_size:
            raise InputError(f"{facts.where}: a checkpoint of qwen2 has no head_size of its own; leave it out")
        return kind

    def rows(self, count: int) -> list[int]:
        """Return the rows of queries, keys and values."""
        options = self.model()["options"]
        heads = (options["num_heads"], options["num_kv_heads"], options["num_kv_heads"])
        return [head * options["head_size"] for head in heads][:count]

    @property
    def has_experts(self) -> bool:
        """Whether feed-forward networks are mixtures of experts."""
        return bool(self.fields["model_type"] == "mixtral")

    def rotary_base(self) -> float:
        """Return the base of the angles; raise InputError for scaled rotary positions."""
        base = self.real("rope_theta", 10_000.0)
        for name in ("rope_scaling", "rope_parameters"):
            parameters = self.fields.get(name) or {}
            if not isinstance(parameters, dict):
                raise InputError(f"{self.where}: {name} must be an object, got {shown(parameters)}; check the file")
            kind = parameters.get("rope_type", parameters.get("type", "default"))
            share = parameters.get("partial_rotary_factor", self.fields.get("partial_rotary_factor", 1.0))
            if kind != "default" or share != 1.0:
                what = f"rope_type {shown(kind)}" if kind != "default" else f"partial_rotary_factor {shown(share)}"
                raise InputError(f"{self.where}: {what} is not supported, only plain rotary positions")
            base = self.real("rope_theta", base, parameters)
        return base

    def window(self) -> int | None:
        """Return the window of attention, if all layers have one; raise InputError if only some have."""
        layers, size = self.number("num_hidden_layers"), self.fields.get("sliding_window")
        kinds = self.fields.get("layer_types")
        if kinds is None and self.fields["model_type"] in ("mistral", "mixtral"):
            kinds = [SLIDING] * layers
        elif kinds is None:  # the first layers see everything
            first = self.fields.get("max_window_layers", layers) if self.fields.get("use_sliding_window") else layers
            kinds = [FULL if i < first else SLIDING for i in range(layers)]
        if not isinstance(kinds, list) or not all(kind in (FULL, SLIDING) for kind in kinds):
            raise InputError(f"{self.where}: layer_types must list {FULL} or {SLIDING}, got {shown(kinds)}")
        if FULL in kinds and SLIDING in kinds:
            raise InputError(f"{self.where}: the window of attention differs from layer to layer")
        return None if FULL in kinds or size is None else self.number("sliding_window")

    def rules(self) -> list[ConversionRule]:
        """Return the rules; see `Family.rules`."""
        options = self.model()["options"]
        rules = self.tables("model.embed_tokens.weight", "lm_head.weight")
        for i in range(self.number("num_hidden_layers")):
            ours, theirs = f"layer.layers.{i}.layers", f"model.layers.{i}"
            attention, network = f"{ours}.0.layer", f"{ours}.1.layer.module"
            rules.append(ConversionRule(f"{ours}.0.norm.weight", (f"{theirs}.input_layernorm.weight",)))
            rules.append(ConversionRule(f"{ours}.1.norm.weight", (f"{theirs}.post_attention_layernorm.weight",)))
            for end in ("weight", "bias") if options.get("qkv_bias") else ("weight",):
                names = tuple(f"{theirs}.self_attn.{part}_proj.{end}" for part in "qkv")
                rules.append(ConversionRule(f"{attention}.qkv_proj.{end}", names, "joined"))
            rules.append(ConversionRule(f"{attention}.o_proj.weight", (f"{theirs}.self_attn.o_proj.weight",)))
            if options.get("qk_norm"):
                rules += [
                    ConversionRule(f"{attention}.{part}_norm", (f"{theirs}.self_attn.{part}_norm.weight",))
                    for part in "qk"
                ]
            rules += (
                self.experts(network, theirs)
                if self.has_experts
                else [
                    ConversionRule(f"{network}.{part}.weight", (f"{theirs}.mlp.{part}.weight",))
                    for part in ("up_proj", "gate_proj", "down_proj")
                ]
            )
        return [*rules, ConversionRule("layer.norm.weight", ("model.norm.weight",))]

    def experts(self, network: str, theirs: str) -> list[ConversionRule]:
        """Return the rules of a mixture."""
        rules = [ConversionRule(f"{network}.router.weight", (f"{theirs}.block_sparse_moe.gate.weight",))]
        for e in range(self.number("num_local_experts", 8)):
            for part, name in (("up_proj", "w3"), ("gate_proj", "w1"), ("down_proj", "w2")):
                source = f"{theirs}.block_sparse_moe.experts.{e}.{name}.weight"
                rules.append(ConversionRule(f"{network}.experts.{e}.{part}.weight", (source,)))
        return rules
