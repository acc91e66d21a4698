"""BERT: J. Devlin, M.-W. Chang, K. Lee and K. Toutanova, "BERT: pre-training of deep bidirectional transformers", 2019.

The vector of the first segment is a part of the positions here, since a text is one segment; those of other segments,
the pooler and the prediction of the next sentence are left out.
"""

from collections.abc import Collection
from typing import ClassVar

from ...config import Fields
from ...core.errors import InputError, shown
from .checkpoint_family import ConversionRule, Family, ModelFacts
from .gpt2_family import ACTIVATIONS

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
