"""The families of checkpoints, by the ``model_type`` of their `config.json`.

GPT-2: A. Radford et al., "Language models are unsupervised multitask learners", 2019.
BERT: J. Devlin, M.-W. Chang, K. Lee and K. Toutanova, "BERT: pre-training of deep bidirectional transformers", 2019.
The vector of the first segment is a part of the positions here, since a text is one segment; those of other segments,
the pooler and the prediction of the next sentence are left out.
Llama and its relatives: H. Touvron et al., "LLaMA: open and efficient foundation language models", 2023; A. Jiang et
al., "Mistral 7B", 2023, and "Mixtral of experts", 2024; A. Yang et al., "Qwen2 technical report", 2024, and "Qwen3
technical report", 2025.
Mamba: A. Gu and T. Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023.
"""

from collections.abc import Collection
from typing import ClassVar

from torch import nn

from ..config import Config, Fields
from ..core.errors import InputError, shown
from ..layers import options_of
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


HEAD = "cls.predictions."
NORMS = {".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"}
"""How checkpoints that were converted from TensorFlow name the parameters of norms."""
NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Settings in `tokenizer_config.json`, and what the normalizer in `tokenizer.json` calls them."""


class BertFamily(Family):
    """A Transformer that reads both sides, with learned positions, norms after its parts, and biases."""

    model_types = ("bert",)
    task = "mlm"
    prefix = "bert."
    unit = "line"
    tied: ClassVar = {
        "bert.embeddings.word_embeddings.weight": f"{HEAD}decoder.weight",
        f"{HEAD}bias": f"{HEAD}decoder.bias",
    }
    tied_by_default = True
    can_untie = False
    has_output_bias = True
    special_tokens: ClassVar = {"end": "sep", "begin": "cls", "mask": "mask"}
    needed = ("end", "begin", "mask")
    ignored = ("embeddings.position_ids",)
    dropped = ("bert.pooler.", "cls.seq_relationship.")

    def model(self) -> Fields:
        """Return the section ``model``; see `Family.model`."""
        self.require(
            is_decoder=False, add_cross_attention=False, position_embedding_type="absolute", tie_word_embeddings=True,
            pruned_heads={},
        )  # fmt: skip
        size, epsilon = self.number("hidden_size"), self.real("layer_norm_eps", 1e-12)
        activation = self.choose("hidden_act", ACTIVATIONS, "gelu")
        options = {
            "num_heads": self.number("num_attention_heads"),
            "position": "learned",
            "position_norm": True,
            "max_length": self.number("max_position_embeddings"),
            "norm": "layer",
            "norm_first": False,
            "norm_epsilon": epsilon,
            "feed_forward": activation,
            "feed_forward_size": self.number("intermediate_size"),
            "bias": True,
            "transform_activation": activation,
            "transform_epsilon": epsilon,
        }
        return self.section("transformer", size, self.number("num_hidden_layers"), options)

    def training(self) -> Fields:
        """Return the section ``training``: a text may fill all positions but those of [CLS] and [SEP]."""
        if (length := self.number("max_position_embeddings")) < 3:
            raise InputError(f"{self.where}: max_position_embeddings must be at least 3, got {length}; check the file")
        return {"sequence_length": length - 2}

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> Fields:
        """Return the fields; see `Family.fields_for`."""
        options, names = facts.options, {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
        facts.demand(
            position="learned", position_norm=True, norm="layer", norm_first=False, bias=True, qkv_bias=True,
            qk_norm=False, score="scaled-dot", causal=False, window=None, num_experts=None,
            head_size=facts.model.hidden_size // options["num_heads"], num_kv_heads=options["num_heads"],
            transform_epsilon=options["norm_epsilon"], transform_activation=options["feed_forward"],
        )  # fmt: skip
        if not facts.model.tie_weights:
            raise InputError(f"{facts.where}: the output layer must share the embedding; train with tie_weights true")
        return {
            "model_type": "bert",
            "architectures": ["BertForMaskedLM"],
            "hidden_size": facts.model.hidden_size,
            "num_hidden_layers": facts.model.num_layers,
            "num_attention_heads": options["num_heads"],
            "intermediate_size": options["feed_forward_size"],
            "hidden_act": names[options["feed_forward"]],
            "max_position_embeddings": options["max_length"],
            "type_vocab_size": 1,
            "layer_norm_eps": options["norm_epsilon"],
        }

    @classmethod
    def token_ids(cls, begin: int, end: int) -> Fields:
        """Return no fields: `tokenizer_config.json` names the tokens."""
        return {}

    def check_names(self, names: Collection[str], where: str) -> None:
        """Raise InputError if the layer that predicts tokens is missing; see `Family.check_names`."""
        if not any(name.startswith(HEAD) for name in names):
            raise InputError(
                f"{where}: no tensor {HEAD}*, so nothing predicts masked tokens; use a checkpoint of BertForMaskedLM"
            )

    def check_tokenizer(self, content: Fields, settings: Fields) -> None:
        """Raise InputError if the two files contradict each other; see `Family.check_tokenizer`."""
        normalizer = content.get("normalizer") or {}
        for theirs, name in NORMALIZER.items():
            if theirs in settings and name in normalizer and settings[theirs] != normalizer[name]:
                raise InputError(
                    f"{self.where}: {theirs} is {shown(settings[theirs])} in tokenizer_config.json, but {name} is "
                    f"{shown(normalizer[name])} in tokenizer.json; write the tokenizer again with save_pretrained"
                )

    def name_in(self, names: Collection[str], name: str) -> str:
        """Return the name that a checkpoint uses; see `Family.name_in`."""
        name = super().name_in(names, name)
        end = next((end for end in NORMS if name.endswith(end)), "")
        former = name.removesuffix(end) + NORMS.get(end, "")
        return former if name not in names and former in names else name

    def rules(self) -> list[ConversionRule]:
        """Return the rules; see `Family.rules`."""
        there, transform, count = "bert.embeddings", f"{HEAD}transform", self.number("num_hidden_layers")
        rules = self.tables(f"{there}.word_embeddings.weight", "")
        tables = (f"{there}.position_embeddings.weight", f"{there}.token_type_embeddings.weight")
        rules += [
            ConversionRule("layer.layers.0.table", tables, "positions"),
            ConversionRule("bias", (f"{HEAD}bias",), "outputs"),
        ]
        parts = [
            ("layer.layers.1.module", f"{there}.LayerNorm"),
            ("transform.0", f"{transform}.dense"),
            ("transform.2", f"{transform}.LayerNorm"),
        ]
        for i in range(count):
            block, theirs = f"layer.layers.2{f'.layers.{i}' if count > 1 else ''}.layers", f"bert.encoder.layer.{i}"
            parts += [
                (f"{block}.0.layer.o_proj", f"{theirs}.attention.output.dense"),
                (f"{block}.0.norm", f"{theirs}.attention.output.LayerNorm"),
                (f"{block}.1.layer.module.up_proj", f"{theirs}.intermediate.dense"),
                (f"{block}.1.layer.module.down_proj", f"{theirs}.output.dense"),
                (f"{block}.1.norm", f"{theirs}.output.LayerNorm"),
            ]
            for end in ("weight", "bias"):
                names = tuple(f"{theirs}.attention.self.{part}.{end}" for part in ("query", "key", "value"))
                rules.append(ConversionRule(f"{block}.0.layer.qkv_proj.{end}", names, "joined"))
        return rules + [
            ConversionRule(f"{ours}.{end}", (f"{name}.{end}",)) for ours, name in parts for end in ("weight", "bias")
        ]

    def rows(self, count: int) -> list[int]:
        """Return the rows of queries, keys and values."""
        return [self.number("hidden_size")] * count


FULL, SLIDING = "full_attention", "sliding_attention"
DEFAULTS: dict[str, Fields] = {
    "mistral": {"sliding_window": 4096, "num_key_value_heads": 8},
    "mixtral": {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_key_value_heads": 8},
    "qwen3": {"head_dim": 128},
}
"""What the other library takes for fields that are missing, where it differs from Llama."""
GATED_ACTIVATIONS = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}


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
            "feed_forward": self.choose("hidden_act", GATED_ACTIVATIONS, "silu"),
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
        names = {ours: theirs for theirs, ours in GATED_ACTIVATIONS.items()}
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


MIXER = ("A_log", "D", "x_proj.weight", "dt_proj.weight", "dt_proj.bias", "in_proj.weight", "out_proj.weight")


class MambaFamily(Family):
    """Mixers with a norm before them and residual connections."""

    model_types = ("mamba",)
    prefix = "backbone."
    tied: ClassVar = {"backbone.embeddings.weight": "lm_head.weight"}
    tied_by_default = True

    def model(self) -> Fields:
        """Return the section ``model``; see `Family.model`."""
        self.require(use_bias=False, hidden_act="silu")
        size = self.number("hidden_size")
        self.require(intermediate_size=self.number("expand", 2) * size)
        options = {
            "state_size": self.number("state_size", 16),
            "expansion": self.number("expand", 2),
            "kernel_size": self.number("conv_kernel", 4),
            "dt_rank": -(-size // 16)
            if self.fields.get("time_step_rank") == "auto"
            else self.number("time_step_rank", -(-size // 16)),
            "norm_epsilon": self.real("layer_norm_epsilon", 1e-5),
            "bias": self.has_kernel_bias,
        }
        return self.section("mamba", size, self.number("num_hidden_layers"), options)

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> Fields:
        """Return the fields; see `Family.fields_for`."""
        facts.demand(norm="rms", norm_first=True, final_norm=True)
        options, size = facts.options, facts.model.hidden_size
        return {
            "model_type": "mamba",
            "architectures": ["MambaForCausalLM"],
            "hidden_size": size,
            "num_hidden_layers": facts.model.num_layers,
            "state_size": options["state_size"],
            "expand": options["expansion"],
            "intermediate_size": options["expansion"] * size,
            "conv_kernel": options["kernel_size"],
            "time_step_rank": options["dt_rank"] or -(-size // 16),
            "use_conv_bias": options["bias"],
            "use_bias": False,
            "layer_norm_epsilon": options["norm_epsilon"],
        }

    @property
    def has_kernel_bias(self) -> bool:
        """Whether the short convolution has a bias."""
        return bool(self.fields.get("use_conv_bias", True))

    def rules(self) -> list[ConversionRule]:
        """Return the rules; see `Family.rules`."""
        rules = self.tables("backbone.embeddings.weight", "lm_head.weight")
        for i in range(self.number("num_hidden_layers")):
            ours, theirs = f"layer.layers.{i}", f"backbone.layers.{i}"
            rules.append(ConversionRule(f"{ours}.norm.weight", (f"{theirs}.norm.weight",)))
            rules += [ConversionRule(f"{ours}.layer.{part}", (f"{theirs}.mixer.{part}",)) for part in MIXER]
            rules.append(ConversionRule(f"{ours}.layer.conv_weight", (f"{theirs}.mixer.conv1d.weight",), "kernel"))
            if self.has_kernel_bias:
                rules.append(ConversionRule(f"{ours}.layer.conv_bias", (f"{theirs}.mixer.conv1d.bias",)))
        return [*rules, ConversionRule("layer.norm.weight", ("backbone.norm_f.weight",))]


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
