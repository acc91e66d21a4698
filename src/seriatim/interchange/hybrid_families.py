"""Families of checkpoints whose layers are not all alike: recurrences or convolutions, and some attention.

RecurrentGemma: A. Botev et al., "RecurrentGemma: moving past transformers for efficient open language models",
arXiv:2404.07839, 2024. The embedding is multiplied by the root of the width there; here the product is the table, and
the output layer is a table of its own even if the two are one there.
LFM2: Liquid AI, "LFM2 technical report", arXiv:2511.23404, 2025.
Qwen3-Next: Qwen team, "Qwen3-Next: towards ultimate training and inference efficiency", 2025.

A model here names all of its layers, such as ``rg-lru,rg-lru,transformer``; attention is that of `transformer`.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch

from ..core.errors import ConflictError, NotSupportedError, RangeError, RequiredError, shown
from ..core.json_object import JsonObject
from ..layers import options_of, split_names
from .checkpoint_family import ConversionRule, Family, Field, ModelFacts, renamed

ATTENTION, ATTENDS = "transformer", "full_attention"
"""Attention, here and among ``layer_types``."""
WEIGHT = ("weight",)
NETWORK = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
"""The maps of the feed-forward network, and what LFM2 calls them."""


class HybridFamily(Family):
    """Blocks of attention among blocks of another kind."""

    mixes = True
    other: ClassVar[str]
    """The name of the other kind of layer here."""
    other_type: ClassVar[str] = ""
    """What ``layer_types`` calls it, in checkpoints that have this field."""
    prefix = "model."
    tied: ClassVar = {"model.embed_tokens.weight": "lm_head.weight"}
    tied_by_default = True
    demanded: ClassVar = {
        "position": "rotary",
        "norm": "rms",
        "norm_first": True,
        "final_norm": True,
        "block": None,
        "score": "scaled-dot",
        "causal": True,
        "num_experts": None,
        "sinks": False,
        "forget_gate": False,
        "output_gate": False,
    }

    def attends(self) -> list[bool]:
        """Return whether each layer is one of attention: ``layer_types``, or what stands for it where it is missing."""
        count, kinds = self.number("num_hidden_layers"), self.fields.get("layer_types")
        known = (ATTENDS, self.other_type)
        if kinds is None:
            return self.usual(count)
        if not isinstance(kinds, list) or len(kinds) != count or not {*map(str, kinds)} <= {*known}:
            raise RangeError(
                f"{self.where}: layer_types lists {shown(kinds)}; give {' or '.join(known)} for each layer"
            )
        return [kind == ATTENDS for kind in kinds]

    def usual(self, count: int) -> list[bool]:
        """Return whether each of ``count`` layers is one of attention if ``layer_types`` is missing."""
        raise NotImplementedError

    def model(self) -> JsonObject:
        """Return the section ``model``, which names every layer; see `Family.model`."""
        names = [ATTENTION if attends else self.other for attends in self.attends()]
        model = super().model()
        known = {"logit_cap", *(name for layer in set(names) for name in options_of(layer, model["options"]))}
        options = {name: value for name, value in model["options"].items() if name.rpartition(".")[2] in known}
        return {**model, "layer": ",".join(names), "num_layers": 1, "options": options}

    @classmethod
    def names_for(cls, facts: ModelFacts) -> list[str]:
        """Return the name of every layer of a model here, or raise InputError if a checkpoint cannot hold them."""
        names = split_names(facts.model.layer) * facts.model.num_layers
        if ATTENTION not in names:
            raise RequiredError(
                f"{facts.where}: a checkpoint of {cls.model_types[0]} needs a layer of attention; train with --layer "
                f"{cls.other},{ATTENTION}"
            )
        return names

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> JsonObject:
        """Return the fields; see `Family.fields_for`."""
        options, names = facts.options, cls.names_for(facts)
        if "head_size" not in cls.options:
            facts.demand(head_size=facts.model.hidden_size // options["num_heads"])
        fields = {"model_type": cls.model_types[0], **super().fields_for(facts), "num_hidden_layers": len(names)}
        if cls.other_type:
            fields["layer_types"] = [ATTENDS if name == ATTENTION else cls.other_type for name in names]
        return {**fields, "rope_parameters": {"rope_type": "default", "rope_theta": options["rotary_base"]}}

    def rotary_options(self, head_size: int, fraction: float) -> JsonObject:
        """Return the options of rotary positions; ``fraction`` of a head is rotated where the fields do not say it."""
        base, fraction = self.rotary(10_000.0, fraction=fraction)
        rotated = int(head_size * fraction)
        if rotated < 2 or rotated % 2:
            raise NotSupportedError(
                f"{self.where}: partial_rotary_factor {fraction:g} rotates {rotated} features of a head; use a "
                "checkpoint in which it is an even number"
            )
        return {"rotary_base": base, "rotary_size": rotated}

    def rows(self, count: int) -> list[int]:
        """Return the rows of queries, keys and values."""
        heads, width = self.number("num_attention_heads"), self.number("hidden_size")
        keys = self.number("num_key_value_heads", heads) * (width // heads)
        return [width, keys, keys][:count]

    def default_of(self, name: str) -> int | None:
        """Return what depends on other fields; see `Family.default_of`."""
        return self.number("num_attention_heads") if name == "num_key_value_heads" else None


class Lfm2Family(HybridFamily):
    """Blocks of gated short convolutions and of attention, whose queries and keys are normalized."""

    model_types = ("lfm2",)
    other = "short-convolution"
    other_type = "conv"
    options: ClassVar = {
        "num_heads": Field("num_attention_heads", 32),
        "num_kv_heads": Field("num_key_value_heads", 8),
        "kernel_size": Field("conv_L_cache", 3),
        "norm_epsilon": Field("norm_eps", 1e-5),
    }
    fixed: ClassVar = {"feed_forward": "swiglu", "qk_norm": True, "bias": False, "qkv_bias": False}
    demanded: ClassVar = {**HybridFamily.demanded, "window": None, "rotary_size": None}

    def __init__(self, fields: JsonObject, where: str) -> None:
        former = {"tie_word_embeddings": "tie_embedding", "intermediate_size": "block_ff_dim"}
        super().__init__({**{name: fields[old] for name, old in former.items() if old in fields}, **fields}, where)

    def usual(self, count: int) -> list[bool]:
        """Return those that ``full_attn_idxs`` lists, or else all layers; see `HybridFamily.usual`."""
        chosen = self.fields.get("full_attn_idxs")
        return [chosen is None or i in chosen for i in range(count)]

    def layer_options(self) -> JsonObject:
        """Return the options of the layers; see `Family.layer_options`."""
        self.require(conv_bias=False)  # attention without biases and convolutions with them share one option here
        size = self.number("intermediate_size")
        if self.fields.get("block_auto_adjust_ff_dim", True):
            multiple = self.number("block_multiple_of", 256)
            size = int(self.real("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
            size = -(-size // multiple) * multiple
        rotary = {"rotary_base": self.rotary(1e6)[0], "window": None}
        return {**super().layer_options(), **rotary, "feed_forward_size": size}

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> JsonObject:
        """Return the fields; see `Family.fields_for`."""
        return {
            **super().fields_for(facts),
            "architectures": ["Lfm2ForCausalLM"],
            "conv_bias": False,
            "intermediate_size": facts.options["feed_forward_size"],
            "block_auto_adjust_ff_dim": False,
            "max_position_embeddings": 1 << 20,
        }

    def rules(self) -> list[ConversionRule]:
        """Return the rules; see `Family.rules`."""
        shared = {
            "0.norm": "operator_norm",
            "1.norm": "ffn_norm",
            **{f"1.layer.module.{ours}": f"feed_forward.{theirs}" for ours, theirs in NETWORK.items()},
        }
        rules = self.tables("model.embed_tokens.weight", "lm_head.weight")
        for i, attends in enumerate(self.attends()):
            ours, theirs = f"layer.layers.{i}.layers.", f"model.layers.{i}."
            rules += renamed(shared, ours, theirs, ends=WEIGHT)
            if not attends:
                projections = {f"0.layer.{name}": f"conv.{name}" for name in ("in_proj", "out_proj")}
                rules += renamed(projections, ours, theirs, ends=WEIGHT)
                rules.append(ConversionRule(f"{ours}0.layer.conv_weight", (f"{theirs}conv.conv.weight",), "kernel"))
                continue
            names = tuple(f"{theirs}self_attn.{letter}_proj.weight" for letter in "qkv")
            rules.append(ConversionRule(f"{ours}0.layer.qkv_proj.weight", names, "joined"))
            rules += renamed({"0.layer.o_proj": "self_attn.out_proj"}, ours, theirs, ends=WEIGHT)
            rules += [
                ConversionRule(f"{ours}0.layer.{letter}_norm", (f"{theirs}self_attn.{letter}_layernorm.weight",))
                for letter in "qk"
            ]
        return [*rules, ConversionRule("layer.norm.weight", ("model.embedding_norm.weight",))]


class RecurrentGemmaFamily(HybridFamily):
    """Griffin's recurrent blocks, and attention that rotates half of each head and sees a window."""

    model_types = ("recurrent_gemma",)
    other = "rg-lru"
    options: ClassVar = {
        "num_heads": Field("num_attention_heads", 10),
        "num_kv_heads": Field("num_key_value_heads"),
        "inner_size": Field("lru_width"),
        "kernel_size": Field("conv1d_width", 4),
        "window": Field("attention_window_size", 2048),
        "norm_epsilon": Field("rms_norm_eps", 1e-6),
        "logit_cap": Field("logits_soft_cap", 30.0),
    }
    fixed: ClassVar = {"feed_forward": "geglu-tanh", "bias": True, "qkv_bias": False}
    demanded: ClassVar = {**HybridFamily.demanded, "qk_norm": False}
    MODULES: ClassVar = {
        True: {"0.layer.o_proj": "temporal_block.o_proj"},
        False: {
            f"0.layer.{ours}": f"temporal_block.{theirs}"
            for ours, theirs in {"y_proj": "linear_y", "x_proj": "linear_x", "out_proj": "linear_out"}.items()
        },
    }
    MIXER: ClassVar = {
        "conv_bias": "conv_1d.bias",
        "a_param": "rg_lru.recurrent_param",
        **{
            f"{ours}_gate_{end}": f"rg_lru.{theirs}_gate_{end}"
            for ours, theirs in (("recurrence", "recurrent"), ("input", "input"))
            for end in ("weight", "bias")
        },
    }

    def attends(self) -> list[bool]:
        """Return whether each layer is one of attention; see `HybridFamily.attends`."""
        kinds = self.fields.get("block_types") or ["recurrent", "recurrent", "attention"]
        if not isinstance(kinds, list) or not {*map(str, kinds)} <= {"recurrent", "attention"}:
            raise RangeError(f"{self.where}: block_types lists {shown(kinds)}; give recurrent or attention")
        return [kinds[i % len(kinds)] == "attention" for i in range(self.number("num_hidden_layers"))]

    def model(self) -> JsonObject:
        """Return the section ``model``, with two tables; see this module."""
        return {**super().model(), "tie_weights": False}

    def layer_options(self) -> JsonObject:
        """Return the options of the layers; see `Family.layer_options`."""
        self.require(hidden_activation="gelu_pytorch_tanh", attention_bias=False)
        rotary = self.rotary_options(self.number("hidden_size") // self.number("num_attention_heads", 10), 0.5)
        return {**super().layer_options(), **rotary, "feed_forward_size": self.number("intermediate_size") // 2}

    def default_of(self, name: str) -> int | None:
        """Return what depends on other fields; see `Family.default_of`."""
        return self.number("hidden_size") if name == "lru_width" else super().default_of(name)

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> JsonObject:
        """Return the fields; see `Family.fields_for`."""
        options, width = facts.options, facts.model.hidden_size
        names = cls.names_for(facts)
        if facts.model.tie_weights:
            raise ConflictError(
                f"{facts.where}: a checkpoint multiplies the embedding by the root of its width, so that it cannot be "
                "that of the output layer; train with model.tie_weights false"
            )
        for name in ("window", "logit_cap"):
            if options.get(name) is None:
                raise RequiredError(f"{facts.where}: every checkpoint of recurrent_gemma has a {name}; train with one")
        if options.get("gate_heads", options["num_heads"]) != options["num_heads"]:
            raise NotSupportedError(
                f"{facts.where}: gates have {options['gate_heads']} heads and attention {options['num_heads']}; train "
                "with the same model.options.num_heads"
            )
        fields = super().fields_for(facts)
        rotated = options["rotary_size"] or options["head_size"]
        fields["rope_parameters"]["partial_rotary_factor"] = rotated / options["head_size"]
        return {
            **fields,
            "architectures": ["RecurrentGemmaForCausalLM"],
            "block_types": ["attention" if name == ATTENTION else "recurrent" for name in names],
            "intermediate_size": 2 * options["feed_forward_size"],
            "lru_width": options.get("inner_size") or width,
            "hidden_activation": "gelu_pytorch_tanh",
        }

    def rules(self) -> list[ConversionRule]:
        """Return the rules; see `Family.rules`."""
        table = "model.embed_tokens.weight"
        rules = [
            ConversionRule("embedding.weight", (table,), "scaled table"),
            ConversionRule("output.weight", (table if self.is_tied else "lm_head.weight",), "outputs"),
            ConversionRule("layer.norm.weight", ("model.final_norm.weight",), "less one"),
        ]
        network = {f"1.layer.module.{name}": f"mlp_block.{name}" for name in NETWORK}
        for i, attends in enumerate(self.attends()):
            ours, theirs = f"layer.layers.{i}.layers.", f"model.layers.{i}."
            norms = {"0.norm": "temporal_pre_norm", "1.norm": "channel_pre_norm"}
            rules += renamed(norms, ours, theirs, ends=WEIGHT, kind="less one")
            rules += renamed({**network, **self.MODULES[attends]}, ours, theirs)
            block = f"{theirs}temporal_block."
            if attends:
                names = tuple(f"{block}{letter}_proj.weight" for letter in "qkv")
                rules.append(ConversionRule(f"{ours}0.layer.qkv_proj.weight", names, "joined"))
                continue
            rules.append(ConversionRule(f"{ours}0.layer.conv_weight", (f"{block}conv_1d.weight",), "kernel"))
            rules += [
                ConversionRule(f"{ours}0.layer.{here}", (f"{block}{there}",)) for here, there in self.MIXER.items()
            ]
        return rules


class Qwen3NextFamily(HybridFamily):
    """Blocks of Gated DeltaNet and of gated attention, with a mixture of experts or a single network in each.

    Rows of several maps are stored in turn there, head by head, and norms are stored less one.
    """

    model_types = ("qwen3_next",)
    other = "gated-deltanet"
    other_type = "linear_attention"
    options: ClassVar = {
        "num_heads": Field("num_attention_heads", 16),
        "num_kv_heads": Field("num_key_value_heads", 2),
        "head_size": Field("head_dim", 256),
        "gated-deltanet.num_heads": Field("linear_num_value_heads", 32),
        "gated-deltanet.num_key_heads": Field("linear_num_key_heads", 16),
        "gated-deltanet.head_size": Field("linear_key_head_dim", 128),
        "kernel_size": Field("linear_conv_kernel_dim", 4),
        "norm_epsilon": Field("rms_norm_eps", 1e-6),
    }
    fixed: ClassVar = {
        "feed_forward": "swiglu",
        "qk_norm": True,
        "output_gate": True,
        "bias": False,
        "qkv_bias": False,
        "negative_eigenvalues": False,
    }
    demanded: ClassVar = {
        **{key: value for key, value in HybridFamily.demanded.items() if key not in ("num_experts", "output_gate")},
        "window": None,
    }

    def usual(self, count: int) -> list[bool]:
        """Return the last layer of every four, or of so many; see `HybridFamily.usual`."""
        every = self.number("full_attention_interval", 4)
        return [(i + 1) % every == 0 for i in range(count)]

    @property
    def num_experts(self) -> int:
        """The number of experts of every layer; 0 for single networks."""
        count, layers = self.fields.get("num_experts", 512), self.number("num_hidden_layers")
        plain = self.fields.get("mlp_only_layers") or []
        if count == 0 or (isinstance(plain, list) and {*map(str, plain)} >= {*map(str, range(layers))}):
            return 0
        self.require(mlp_only_layers=[], decoder_sparse_step=1, norm_topk_prob=True)
        return self.number("num_experts", 512)

    def layer_options(self) -> JsonObject:
        """Return the options of the layers; see `Family.layer_options`."""
        self.require(hidden_act="silu", attention_bias=False)
        options = super().layer_options()
        values = self.number("linear_num_value_heads", 32) * self.number("linear_value_head_dim", 128)
        expansion, rest = divmod(values, self.number("hidden_size"))
        if rest or not expansion:
            raise NotSupportedError(
                f"{self.where}: {values} features of values in linear_attention, no multiple of hidden_size; use a "
                "checkpoint in which they are one"
            )
        rotary = self.rotary_options(options["head_size"], 0.25)
        options = {**options, **rotary, "window": None, "expansion": expansion}
        if not self.num_experts:
            return {**options, "feed_forward_size": self.number("intermediate_size", 5632)}
        if (chosen := self.number("num_experts_per_tok", 10)) == 1:
            raise NotSupportedError(f"{self.where}: num_experts_per_tok 1 is not supported; use another checkpoint")
        return {
            **options,
            "feed_forward_size": self.number("moe_intermediate_size", 512),
            "num_experts": self.num_experts,
            "experts_per_token": chosen,
            "shared_expert_size": self.number("shared_expert_intermediate_size", 512),
        }

    @classmethod
    def fields_for(cls, facts: ModelFacts) -> JsonObject:
        """Return the fields; see `Family.fields_for`."""
        names, options = cls.names_for(facts), facts.options
        if cls.other not in names:
            raise RequiredError(
                f"{facts.where}: a checkpoint needs both kinds of layers; train with --layer {cls.other},{ATTENTION}"
            )
        fields, experts = super().fields_for(facts), options.get("num_experts") or 0
        if experts and not (options["experts_per_token"] > 1 and options["shared_expert_size"]):
            raise NotSupportedError(
                f"{facts.where}: every checkpoint of qwen3_next has several experts a token and one for all; train "
                "with model.options.experts_per_token 2 or more and model.options.shared_expert_size"
            )
        rotated = options["rotary_size"] or options["head_size"]
        fields["rope_parameters"]["partial_rotary_factor"] = rotated / options["head_size"]
        sizes = {"intermediate_size": options["feed_forward_size"]}
        if experts:
            sizes = {
                "moe_intermediate_size": options["feed_forward_size"],
                "num_experts_per_tok": options["experts_per_token"],
                "shared_expert_intermediate_size": options["shared_expert_size"],
            }
        return {
            **fields,
            **sizes,
            "architectures": ["Qwen3NextForCausalLM"],
            "linear_value_head_dim": options["gated-deltanet.value_size"],
            "num_experts": experts,
            "max_position_embeddings": 1 << 20,
        }

    def rules(self) -> list[ConversionRule]:
        """Return the rules; see `Family.rules`."""
        network = {f"1.layer.module.{name}": f"mlp.{name}" for name in NETWORK}
        if self.num_experts:
            network = {"1.layer.module.router": "mlp.gate", "1.layer.module.shared_gate": "mlp.shared_expert_gate"}
            network |= {f"1.layer.module.shared.{name}": f"mlp.shared_expert.{name}" for name in NETWORK}
            for e in range(self.num_experts):
                network |= {f"1.layer.module.experts.{e}.{name}": f"mlp.experts.{e}.{name}" for name in NETWORK}
        rules = self.tables("model.embed_tokens.weight", "lm_head.weight")
        for i, attends in enumerate(self.attends()):
            ours, theirs = f"layer.layers.{i}.layers.", f"model.layers.{i}."
            norms = {"0.norm": "input_layernorm", "1.norm": "post_attention_layernorm"}
            rules += renamed(norms, ours, theirs, ends=WEIGHT, kind="less one")
            rules += renamed(network, ours, theirs, ends=WEIGHT)
            rules += (self.attention if attends else self.recurrence)(f"{ours}0.layer.", theirs)
        return [*rules, ConversionRule("layer.norm.weight", ("model.norm.weight",), "less one")]

    def attention(self, ours: str, theirs: str) -> list[ConversionRule]:
        """Return the rules of a layer of attention, in which a gate follows the query of each head there."""
        options, block = self.layer_options(), f"{theirs}self_attn."
        heads, kept, size = (options[name] for name in ("num_heads", "num_kv_heads", "head_size"))
        queries, gates = _rows(heads, [size, size])
        sizes = (2 * heads * size, kept * size, kept * size)
        others = range(sizes[0], sum(sizes))
        names = tuple(f"{block}{letter}_proj.weight" for letter in "qkv")
        return [
            ConversionRule(f"{ours}qkv_proj.weight", names, "rows", (*queries, *others), sizes),
            ConversionRule(f"{ours}gate_proj.weight", names[:1], "rows", gates, sizes[:1]),
            ConversionRule(f"{ours}o_proj.weight", (f"{block}o_proj.weight",)),
            *(ConversionRule(f"{ours}{x}_norm", (f"{block}{x}_norm.weight",), "less one") for x in "qk"),
        ]

    def recurrence(self, ours: str, theirs: str) -> list[ConversionRule]:
        """Return the rules of a layer of Gated DeltaNet, whose maps are stored there head of keys by head of keys."""
        options, block = self.layer_options(), f"{theirs}linear_attn."
        own = (f"gated-deltanet.{name}" for name in ("num_heads", "num_key_heads", "head_size"))
        heads, groups, size = (options[name] for name in own)
        shared = heads // groups
        values = shared * self.number("linear_value_head_dim", 128)
        q, k, v, gates = _rows(groups, [size, size, values, values])
        b, a = _rows(groups, [shared, shared])
        rows = (groups * 2 * (size + values),)
        maps, betas = (f"{block}in_proj_{name}.weight" for name in ("qkvz", "ba"))
        same = {
            "A_log": "A_log",
            "dt_bias": "dt_bias",
            "o_norm.weight": "norm.weight",
            "o_proj.weight": "out_proj.weight",
        }
        return [
            ConversionRule(f"{ours}qkv_proj.weight", (maps,), "rows", (*q, *k, *v), rows),
            ConversionRule(f"{ours}g_proj.weight", (maps,), "rows", gates, rows),
            ConversionRule(f"{ours}ba_proj.weight", (betas,), "rows", (*b, *a), (2 * heads,)),
            ConversionRule(f"{ours}conv_weight", (f"{block}conv1d.weight",), "kernel"),
            *(ConversionRule(f"{ours}{here}", (f"{block}{there}",)) for here, there in same.items()),
        ]


def _rows(groups: int, sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the rows of each of several maps, which are stored in turn for each group, with ``sizes`` rows of each."""
    parts = torch.split(torch.arange(groups * sum(sizes)).view(groups, -1), list(sizes), dim=1)
    return [tuple(part.flatten().tolist()) for part in parts]
