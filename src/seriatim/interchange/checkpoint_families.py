"""The families of checkpoints, by the ``model_type`` of their `config.json`; see also `hybrid_families`.

GPT-2: A. Radford et al., "Language models are unsupervised multitask learners", 2019.
BERT: J. Devlin, M.-W. Chang, K. Lee and K. Toutanova, "BERT: pre-training of deep bidirectional transformers", 2019.
The vector of the first segment is a part of the positions here, since a text is one segment; those of other segments,
the pooler and the prediction of the next sentence are left out.
Llama and its relatives: H. Touvron et al., "LLaMA: open and efficient foundation language models", 2023; A. Jiang et
al., "Mistral 7B", 2023, and "Mixtral of experts", 2024; A. Yang et al., "Qwen2 technical report", 2024, and "Qwen3
technical report", 2025.
Mamba: A. Gu and T. Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023.
"""

import math
from collections.abc import Collection, Sequence
from typing import ClassVar

from torch import nn

from ..config import Config
from ..core.errors import MismatchError, MissingError, NotSupportedError, RangeError, shown
from ..core.json_object import JsonObject
from ..layers import options_of, split_names
from ..layers.gated_deltanet import GatedDeltaNet
from ..layers.mamba2 import Mamba2
from .checkpoint_family import ConversionRule, Family, Field, ModelFacts, renamed
from .hybrid_families import ATTENTION, Lfm2Family, Qwen3NextFamily, RecurrentGemmaFamily

ACTIVATIONS = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
}
GATED_ACTIVATIONS = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}
PLAIN_ATTENTION: JsonObject = {
    "qkv_bias": True,
    "qk_norm": False,
    "score": "scaled-dot",
    "window": None,
    "num_experts": None,
    "sinks": False,
    "forget_gate": False,
    "output_gate": False,
}
"""The options of attention and feed-forward networks without what came after GPT-2."""


class GPT2Family(Family):
    """A Transformer with learned positions, norms before its sublayers, and biases; matrices are transposed there."""

    model_types = ("gpt2",)
    ignored = (".attn.bias", ".attn.masked_bias")
    prefix = "transformer."
    unit = "line"
    tied: ClassVar = {"transformer.wte.weight": "lm_head.weight"}
    tied_by_default = True
    sizes = ("n_embd", "n_layer")
    options: ClassVar = {
        "num_heads": Field("n_head"),
        "max_length": Field("n_positions"),
        "feed_forward_size": Field("n_inner"),
        "feed_forward": Field("activation_function", choices=ACTIVATIONS, chosen="gelu_new"),
        "norm_epsilon": Field("layer_norm_epsilon", 1e-5),
    }
    fixed: ClassVar = {"position": "learned", "norm": "layer", "bias": True}
    demanded: ClassVar = {
        **PLAIN_ATTENTION,
        "norm_first": True,
        "final_norm": True,
        "causal": True,
        "position_norm": False,
    }
    has_own_heads = False
    MODULES: ClassVar = {
        "0.layer.qkv_proj": "attn.c_attn",
        "0.layer.o_proj": "attn.c_proj",
        "1.layer.module.up_proj": "mlp.c_fc",
        "1.layer.module.down_proj": "mlp.c_proj",
    }

    def layer_options(self) -> JsonObject:
        """Return the options of the layer; see `Family.layer_options`."""
        self.require(
            add_cross_attention=False, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True,
            reorder_and_upcast_attn=False,
        )  # fmt: skip
        return super().layer_options()

    def default_of(self, name: str) -> int | None:
        """Return what depends on other fields; see `Family.default_of`."""
        return 4 * self.number("n_embd") if name == "n_inner" else self.fields.get("n_ctx")

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> JsonObject:
        """Return the fields; see `Family.fields_for`."""
        return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **super().fields_for(facts)}

    def rules(self) -> list[ConversionRule]:
        """Return the rules; see `Family.rules`."""
        rules = self.tables("transformer.wte.weight", "lm_head.weight")
        rules.append(ConversionRule("layer.layers.0.table", ("transformer.wpe.weight",)))
        for i in range(self.number("n_layer")):
            ours, theirs = f"layer.layers.1.layers.{i}.layers.", f"transformer.h.{i}."
            rules += renamed({"0.norm": "ln_1", "1.norm": "ln_2"}, ours, theirs)
            rules += renamed(self.MODULES, ours, theirs, kind="transposed")
        return [*rules, *renamed({"norm": "ln_f"}, "layer.layers.1.", "transformer.")]


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
    """A Transformer that reads both sides, with learned positions, norms after its sublayers, and biases."""

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
    options: ClassVar = {
        "num_heads": Field("num_attention_heads"),
        "feed_forward_size": Field("intermediate_size"),
        "feed_forward": Field("hidden_act", choices=ACTIVATIONS, chosen="gelu"),
        "max_length": Field("max_position_embeddings"),
        "norm_epsilon": Field("layer_norm_eps", 1e-12),
    }
    fixed: ClassVar = {"position": "learned", "position_norm": True, "norm": "layer", "norm_first": False, "bias": True}
    demanded: ClassVar = {**PLAIN_ATTENTION, "causal": False}
    has_own_heads = False
    MODULES: ClassVar = {
        "0.layer.o_proj": "attention.output.dense",
        "0.norm": "attention.output.LayerNorm",
        "1.layer.module.up_proj": "intermediate.dense",
        "1.layer.module.down_proj": "output.dense",
        "1.norm": "output.LayerNorm",
    }

    def layer_options(self) -> JsonObject:
        """Return the options of the layer; see `Family.layer_options`."""
        self.require(
            is_decoder=False, add_cross_attention=False, position_embedding_type="absolute", tie_word_embeddings=True,
            pruned_heads={},
        )  # fmt: skip
        options = super().layer_options()
        transform = {"transform_activation": options["feed_forward"], "transform_epsilon": options["norm_epsilon"]}
        return {**options, **transform}

    def training(self) -> JsonObject:
        """Return the section ``training``: a text may fill all positions but those of [CLS] and [SEP]."""
        if (length := self.number("max_position_embeddings")) < 3:
            raise RangeError(f"{self.where}: max_position_embeddings must be at least 3, got {length}; check the file")
        return {"sequence_length": length - 2}

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> JsonObject:
        """Return the fields; see `Family.fields_for`."""
        fields, options = super().fields_for(facts), facts.options
        facts.demand(transform_epsilon=options["norm_epsilon"], transform_activation=options["feed_forward"])
        if not facts.model.tie_weights:
            raise NotSupportedError(
                f"{facts.where}: the output layer must share the embedding; train with tie_weights true"
            )
        return {"model_type": "bert", "architectures": ["BertForMaskedLM"], **fields, "type_vocab_size": 1}

    @classmethod
    def token_ids(cls, begin: int, end: int) -> JsonObject:
        """Return no fields: `tokenizer_config.json` names the tokens."""
        return {}

    def check_names(self, names: Collection[str], where: str) -> None:
        """Raise InputError if the layer that predicts tokens is missing; see `Family.check_names`."""
        if not any(name.startswith(HEAD) for name in names):
            raise MissingError(
                f"{where}: no tensor {HEAD}*, so nothing predicts masked tokens; use a checkpoint of BertForMaskedLM"
            )

    def check_tokenizer(self, content: JsonObject, settings: JsonObject) -> None:
        """Raise InputError if the two files contradict each other; see `Family.check_tokenizer`."""
        normalizer = content.get("normalizer") or {}
        for theirs, name in NORMALIZER.items():
            if theirs in settings and name in normalizer and settings[theirs] != normalizer[name]:
                raise MismatchError(
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
        there, count = "bert.embeddings.", self.number("num_hidden_layers")
        tables = (f"{there}position_embeddings.weight", f"{there}token_type_embeddings.weight")
        rules = [
            *self.tables(f"{there}word_embeddings.weight", ""),
            ConversionRule("layer.layers.0.table", tables, "positions"),
            ConversionRule("bias", (f"{HEAD}bias",), "outputs"),
        ]

        # A stack of a single block is that block itself here, so its number is not in the names.
        modules = renamed({"layer.layers.1.module": "LayerNorm"}, "", there)
        modules += renamed({"0": "dense", "2": "LayerNorm"}, "transform.", f"{HEAD}transform.")
        for i in range(count):
            ours, theirs = f"layer.layers.2{f'.layers.{i}' if count > 1 else ''}.layers.", f"bert.encoder.layer.{i}."
            modules += renamed(self.MODULES, ours, theirs)
            for end in ("weight", "bias"):
                names = tuple(f"{theirs}attention.self.{projection}.{end}" for projection in ("query", "key", "value"))
                rules.append(ConversionRule(f"{ours}0.layer.qkv_proj.{end}", names, "joined"))
        return rules + modules

    def rows(self, count: int) -> list[int]:
        """Return the rows of queries, keys and values."""
        return [self.number("hidden_size")] * count


FULL, SLIDING = "full_attention", "sliding_attention"
DEFAULTS: dict[str, JsonObject] = {
    "mistral": {"sliding_window": 4096, "num_key_value_heads": 8},
    "mixtral": {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_key_value_heads": 8},
    "qwen3": {"head_dim": 128},
}
"""What the other library takes for fields that are missing, where it differs from Llama."""


class LlamaFamily(Family):
    """Llama, Mistral, Qwen2, Qwen3 and Mixtral: rotary positions, RMSNorm before each sublayer, gated networks."""

    model_types = ("llama", "mistral", "qwen2", "qwen3", "mixtral")
    prefix = "model."
    tied: ClassVar = {"model.embed_tokens.weight": "lm_head.weight"}
    ignored = ("rotary_emb.inv_freq",)
    options: ClassVar = {
        "num_heads": Field("num_attention_heads"),
        "num_kv_heads": Field("num_key_value_heads"),
        "head_size": Field("head_dim"),
        "feed_forward_size": Field("intermediate_size"),
        "feed_forward": Field("hidden_act", choices=GATED_ACTIVATIONS, chosen="silu"),
        "norm_epsilon": Field("rms_norm_eps", 1e-6),
    }
    demanded: ClassVar = {
        "position": "rotary",
        "norm": "rms",
        "norm_first": True,
        "final_norm": True,
        "bias": False,
        "score": "scaled-dot",
        "causal": True,
        "rotary_size": None,
        "sinks": False,
        "forget_gate": False,
        "output_gate": False,
        "shared_expert_size": None,
    }

    def __init__(self, fields: JsonObject, where: str) -> None:
        super().__init__({**DEFAULTS.get(str(fields["model_type"]), {}), **fields}, where)

    def layer_options(self) -> JsonObject:
        """Return the options of the layer; see `Family.layer_options`."""
        self.require(attention_bias=False, mlp_bias=False, pretraining_tp=1)
        options = {**super().layer_options(), "window": self.window(), "rotary_base": self.rotary_base()}
        if self.fields["model_type"] == "qwen2":
            options["qkv_bias"] = True
        if self.fields["model_type"] == "qwen3":
            options["qk_norm"] = True
        if self.has_experts:
            options["num_experts"] = self.number("num_local_experts", 8)
            options["experts_per_token"] = self.number("num_experts_per_tok", 2)
            if options["experts_per_token"] == 1:
                raise NotSupportedError(f"{self.where}: num_experts_per_tok 1 is not supported; use another checkpoint")
        return options

    def default_of(self, name: str) -> int | None:
        """Return what depends on other fields; see `Family.default_of`."""
        heads = self.number("num_attention_heads")
        return {"num_key_value_heads": heads, "head_dim": self.number("hidden_size") // heads}.get(name)

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> JsonObject:
        """Return the fields; see `Family.fields_for`."""
        options, fields, kind = facts.options, super().fields_for(facts), cls.type_for(facts)
        fields = {"model_type": kind, "architectures": [f"{kind.capitalize()}ForCausalLM"], **fields}
        fields["rope_parameters"] = {"rope_type": "default", "rope_theta": options["rotary_base"]}
        fields["max_position_embeddings"] = 1 << 20
        if kind in ("mistral", "mixtral"):
            fields["sliding_window"] = options["window"]
        if experts := options.get("num_experts"):
            fields |= {"num_local_experts": experts, "num_experts_per_tok": options["experts_per_token"]}
        return fields

    @classmethod
    def type_for(cls, facts: ModelFacts) -> str:
        """Return the ``model_type`` that has the features of a model."""
        options = facts.options
        needs = {"qwen3": "qk_norm", "qwen2": "qkv_bias", "mixtral": "num_experts", "mistral": "window"}
        features = [name for name, option in needs.items() if options.get(option)]
        kind = features[0] if features else "llama"
        if features not in ([], ["mixtral", "mistral"]) and len(features) > 1:
            raise NotSupportedError(
                f"{facts.where}: no checkpoint has {' and '.join(needs[name] for name in features)}; leave one out"
            )
        if kind == "qwen2" and options["head_size"] * options["num_heads"] != facts.model.hidden_size:
            raise NotSupportedError(f"{facts.where}: a checkpoint of qwen2 has no head_size; leave it out")
        return kind

    def rows(self, count: int) -> list[int]:
        """Return the rows of queries, keys and values."""
        options = self.layer_options()
        heads = (options["num_heads"], options["num_kv_heads"], options["num_kv_heads"])
        return [head * options["head_size"] for head in heads][:count]

    @property
    def has_experts(self) -> bool:
        """Whether feed-forward networks are mixtures of experts."""
        return bool(self.fields["model_type"] == "mixtral")

    def rotary_base(self) -> float:
        """Return the base of the angles; raise InputError for scaled rotary positions."""
        base, fraction = self.rotary(10_000.0)
        if fraction != 1.0:
            raise NotSupportedError(
                f"{self.where}: partial_rotary_factor {shown(fraction)} is not supported; use a checkpoint of plain "
                "rotary positions"
            )
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
            raise RangeError(f"{self.where}: layer_types lists {shown(kinds)}; use {FULL} or {SLIDING}")
        if FULL in kinds and SLIDING in kinds:
            raise NotSupportedError(f"{self.where}: only some layers have a window; use another checkpoint")
        return None if FULL in kinds or size is None else self.number("sliding_window")

    def rules(self) -> list[ConversionRule]:
        """Return the rules; see `Family.rules`."""
        # An expert is a feed-forward network of its own, so that a mixture only has more names.
        options, weight = self.layer_options(), ("weight",)
        norms = {"0.norm": "input_layernorm", "1.norm": "post_attention_layernorm"}
        network = {f"1.layer.module.{name}": f"mlp.{name}" for name in ("up_proj", "gate_proj", "down_proj")}
        if self.has_experts:
            network = {"1.layer.module.router": "block_sparse_moe.gate"}
            for e in range(options["num_experts"]):
                for projection, name in (("up_proj", "w3"), ("gate_proj", "w1"), ("down_proj", "w2")):
                    network[f"1.layer.module.experts.{e}.{projection}"] = f"block_sparse_moe.experts.{e}.{name}"

        # One matrix computes queries, keys and values here, which checkpoints of this family keep apart.
        rules = self.tables("model.embed_tokens.weight", "lm_head.weight")
        for i in range(self.number("num_hidden_layers")):
            ours, theirs = f"layer.layers.{i}.layers.", f"model.layers.{i}."
            rules += renamed(norms, ours, theirs, ends=weight)
            for end in ("weight", "bias") if options.get("qkv_bias") else weight:
                names = tuple(f"{theirs}self_attn.{letter}_proj.{end}" for letter in "qkv")
                rules.append(ConversionRule(f"{ours}0.layer.qkv_proj.{end}", names, "joined"))
            rules += renamed({"0.layer.o_proj": "self_attn.o_proj"}, ours, theirs, ends=weight)
            if options.get("qk_norm"):
                rules += [
                    ConversionRule(f"{ours}0.layer.{letter}_norm", (f"{theirs}self_attn.{letter}_norm.weight",))
                    for letter in "qk"
                ]
            rules += renamed(network, ours, theirs, ends=weight)
        return [*rules, ConversionRule("layer.norm.weight", ("model.norm.weight",))]


class MambaFamily(Family):
    """Mixers with a norm before them and residual connections."""

    model_types = ("mamba",)
    prefix = "backbone."
    layer = "mamba"
    tied: ClassVar = {"backbone.embeddings.weight": "lm_head.weight"}
    tied_by_default = True
    options: ClassVar = {
        "state_size": Field("state_size", 16),
        "expansion": Field("expand", 2),
        "kernel_size": Field("conv_kernel", 4),
        "dt_rank": Field("time_step_rank"),
        "norm_epsilon": Field("layer_norm_epsilon", 1e-5),
    }
    demanded: ClassVar = {"norm": "rms", "norm_first": True, "final_norm": True}
    MIXER: ClassVar[Sequence[str]] = (
        "A_log", "D", "x_proj.weight", "dt_proj.weight", "dt_proj.bias", "in_proj.weight", "out_proj.weight",
    )  # fmt: skip

    def __init__(self, fields: JsonObject, where: str) -> None:
        rank = fields.get("time_step_rank")
        super().__init__({**fields, "time_step_rank": None if rank == "auto" else rank}, where)

    def layer_options(self) -> JsonObject:
        """Return the options of the layer; see `Family.layer_options`."""
        self.require(use_bias=False, hidden_act="silu")
        self.require(intermediate_size=self.number("expand", 2) * self.number("hidden_size"))
        return {**super().layer_options(), "bias": self.has_kernel_bias}

    def default_of(self, name: str) -> int | None:
        """Return what depends on other fields; see `Family.default_of`."""
        return -(-self.number("hidden_size") // 16) if name == "time_step_rank" else None

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> JsonObject:
        """Return the fields; see `Family.fields_for`."""
        fields, options, width = super().fields_for(facts), facts.options, facts.model.hidden_size
        return {
            "model_type": "mamba",
            "architectures": ["MambaForCausalLM"],
            **fields,
            "intermediate_size": options["expansion"] * width,
            "time_step_rank": options["dt_rank"] or -(-width // 16),
            "use_conv_bias": options["bias"],
            "use_bias": False,
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
            rules += [ConversionRule(f"{ours}.layer.{name}", (f"{theirs}.mixer.{name}",)) for name in self.MIXER]
            rules.append(ConversionRule(f"{ours}.layer.conv_weight", (f"{theirs}.mixer.conv1d.weight",), "kernel"))
            if self.has_kernel_bias:
                rules.append(ConversionRule(f"{ours}.layer.conv_bias", (f"{theirs}.mixer.conv1d.bias",)))
        return [*rules, ConversionRule("layer.norm.weight", ("backbone.norm_f.weight",))]


class Mamba2Family(MambaFamily):
    """Mixers of Mamba-2, in the same frame."""

    model_types = ("mamba2",)
    layer = "mamba2"
    tied_by_default = False
    options: ClassVar = {
        "num_heads": Field("num_heads", 128),
        "state_size": Field("state_size", 128),
        "expansion": Field("expand", 2),
        "kernel_size": Field("conv_kernel", 4),
        "num_groups": Field("n_groups", 8),
        "norm_epsilon": Field("layer_norm_epsilon", 1e-5),
    }
    demanded: ClassVar = {**MambaFamily.demanded, "block": None}
    MIXER = ("A_log", "D", "dt_bias", "norm.weight", "in_proj.weight", "out_proj.weight")

    def layer_options(self) -> JsonObject:
        """Return the options of the layer; see `Family.layer_options`."""
        if self.fields.get("time_step_limit") != [0.0, {"__float__": "Infinity"}]:
            self.require(time_step_limit=[0.0, math.inf])
        self.require(head_dim=self.number("expand", 2) * self.number("hidden_size") // self.number("num_heads", 128))
        return super().layer_options()

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> JsonObject:
        """Return the fields; see `Family.fields_for`."""
        options = facts.options
        own = {"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]}
        head = {"head_dim": options["expansion"] * facts.model.hidden_size // options["num_heads"]}
        return {
            **super(MambaFamily, cls).fields_for(facts),
            **own,
            **head,
            "use_conv_bias": options["bias"],
            "use_bias": False,
        }


LAYERS: dict[str, dict[str, type[Family]]] = {
    "lm": {
        "transformer": LlamaFamily,
        "mamba": MambaFamily,
        "mamba2": Mamba2Family,
        "gated-deltanet": Qwen3NextFamily,
        "rg-lru": RecurrentGemmaFamily,
        "short-convolution": Lfm2Family,
    },
    "mlm": {"transformer": BertFamily},
}
"""The layers that checkpoints can hold, by task."""
FAMILIES: dict[str, type[Family]] = {"gpt2": GPT2Family} | {
    name: family for layers in LAYERS.values() for family in layers.values() for name in family.model_types
}


def family_of(fields: JsonObject, where: str) -> Family:
    """Return the family of a checkpoint; raise InputError if it is unknown."""
    name = fields.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise NotSupportedError(
            f"{where}: model_type {shown(name)} is not known; choose from {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[name](fields, where)


def family_for(config: Config, built: nn.Module, where: str) -> JsonObject:
    """Return the fields of a checkpoint for a language model here; raise InputError if no family can hold it."""
    model, layers = config.model, LAYERS.get(config.task, {})
    names = split_names(model.layer)
    kinds = sorted({*names} - {ATTENTION}) or [ATTENTION]
    family = layers.get(kinds[0])
    if family is None or len(kinds) > 1 or (len(names) > 1 and not family.mixes):
        raise NotSupportedError(f"{where}: layer {model.layer} is in no checkpoint; choose from {', '.join(layers)}")
    if model.output_bias != family.has_output_bias:
        has, expected = ("has a bias", "no") if model.output_bias else ("has no bias", "every")
        raise NotSupportedError(
            f"{where}: the output layer {has}, which {expected} checkpoint has; "
            f"train with --model.output_bias {str(not model.output_bias).lower()}"
        )
    if model.embedding_size != model.hidden_size or model.bidirectional:
        raise NotSupportedError(
            f"{where}: a checkpoint cannot hold layers of another width than the embedding, or that read both ways; "
            "train with model.embedding_size equal to model.hidden_size, and model.bidirectional false"
        )

    # Options that nobody set have their defaults, or were chosen from sizes when the model was built.
    declared = {key: option for name in names for key, option in options_of(name, model.options).items()}
    options: JsonObject = {name: option.default for name, option in declared.items()} | model.options
    options |= chosen_sizes(built)
    if options.get("qkv_bias") is None:
        options["qkv_bias"] = options.get("bias")
    if options.get("logit_cap") is not None and "logit_cap" not in family.options:
        raise NotSupportedError(f"{where}: no checkpoint of layer {model.layer} has a logit_cap; leave it out")
    if family is LlamaFamily and options.get("position") == "learned":
        family = GPT2Family
    return family.fields_for(ModelFacts(model, options, where))


def chosen_sizes(built: nn.Module) -> JsonObject:
    """Return the options whose default is chosen from other sizes, as a model has them."""
    sizes: JsonObject = {}
    for module in built.modules():
        found = {name: value for name, value in vars(module).items() if type(value) is int}
        if isinstance(module, GatedDeltaNet):
            own = {"num_heads": module.num_heads, "num_key_heads": module.widths[0] // module.key_size}
            own |= {"head_size": module.key_size, "value_size": module.value_size}
            sizes |= {f"gated-deltanet.{name}": size for name, size in own.items()}
        elif isinstance(module, Mamba2):
            sizes["num_heads"] = module.num_heads
        elif {"num_heads", "num_kv_heads", "cache_size"} <= found.keys():
            sizes |= {"num_heads": found["num_heads"], "num_kv_heads": found["num_kv_heads"]}
            sizes["head_size"] = found["cache_size"]
        elif {"num_heads", "inner_size"} <= found.keys():
            sizes["gate_heads"] = found["num_heads"]
    widths = [len(value) for name, value in built.named_parameters() if name.endswith("up_proj.weight")]
    return sizes | ({"feed_forward_size": widths[0]} if widths else {})
