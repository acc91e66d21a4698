"""What other programs run of a model: functions of named tensors, without states inside tuples and without options.

A language model has a form for one step and one for a whole sequence, a translator an encoder and a step of its
decoder, and a model that answers a whole text has one form. `seriatim.interchange.onnx_export` writes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..core.lengths import valid_mask
from ..core.state import State, map_state, state_leaves, state_to_dict, with_leaves
from ..data.tagged_corpus import TaggedBatch
from ..data.word_forms import MAX_CHARACTERS, Spellings
from .base_models import TextModel
from .classifier import Classifier
from .ctc_translator import CTCTranslator
from .encoder_decoder import EncoderDecoder
from .masked_language_model import MaskedLanguageModel
from .tagger import Tagger

ROWS, TIME, SOURCE = 3, 5, 7
"""Sizes of the example inputs with which a model is traced; all of them may differ later."""
Sizes: TypeAlias = Mapping[int, str]
"""The names of those dimensions of a tensor whose size is free, by number."""


@dataclass(frozen=True)
class ExportedForm:
    """A function of named tensors.

    Attributes:
        name: what it is called in the exported folder.
        module: takes the inputs in order, and returns a tuple of the outputs in order.
        inputs: an example of each input.
        sizes: the free dimensions of each input.
        outputs: the names of the outputs.
    """

    name: str
    module: nn.Module
    inputs: Mapping[str, Tensor]
    sizes: Sequence[Sizes]
    outputs: Sequence[str]


@dataclass(frozen=True)
class ExportedModel:
    """The forms of a model, and what a program needs to know beside them.

    Attributes:
        program: the name of the example program.
        facts: values that the program reads.
        tokens: ids of tokens that the program reads, of the tokenizer of the run.
        state: an example of the state in which a sequence begins, of one row; None if there is none.
    """

    forms: Sequence[ExportedForm]
    program: str
    facts: Mapping[str, object] = field(default_factory=dict)
    tokens: Mapping[str, Sequence[int]] = field(default_factory=dict)
    state: Mapping[str, Tensor] | None = None


class _Function(nn.Module):
    """A model and the structure of its state."""

    def __init__(self, model: nn.Module, like: State = ()) -> None:
        super().__init__()
        self.model, self.like = model, like

    def state(self, leaves: Sequence[Tensor]) -> State:
        return with_leaves(self.like, leaves)


class _ModelStep(_Function):
    def forward(self, tokens: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        logits, state = self.model.step(tokens, self.state(leaves))  # type: ignore[operator]
        return logits, *state_leaves(state)


class _Sequence(_Function):
    def forward(self, tokens: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        logits, state = self.model(tokens, self.state(leaves))
        return logits, *state_leaves(state)


class _Encoder(_Function):
    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        return tuple(state_leaves(self.model.encode(source, lengths)))  # type: ignore[operator]


class _Aligned(_Function):
    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        log_probabilities: Tensor = self.model(source, lengths)[0]
        return (log_probabilities,)


class _Masked(_Function):
    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        positions = torch.arange(tokens.numel(), device=tokens.device)
        return (self.model(tokens, positions, lengths=lengths, framed=True).unflatten(0, tokens.shape),)


class _Labels(_Function):
    def forward(self, tokens: Tensor, lengths: Tensor, *spelled: Tensor) -> tuple[Tensor, ...]:
        return (self.model(tokens, lengths, _spellings(spelled)),)


class _Tags(_Function):
    def forward(self, tokens: Tensor, lengths: Tensor, *spelled: Tensor) -> tuple[Tensor, ...]:
        model = self.model
        assert isinstance(model, Tagger)
        scores = model(TaggedBatch(tokens, lengths, rows=np.zeros(0), spellings=_spellings(spelled)))
        tags = scores.argmax(2) if model.crf is None else model.crf.best_tags(scores, lengths)
        return scores, tags.masked_fill(~valid_mask(lengths, tokens.shape[1]), -1)


def _spellings(spelled: Sequence[Tensor]) -> Spellings | None:
    """Return the spelling of every word, for characters ``(batch, time, size)`` and their number ``(batch, time)``."""
    if not spelled:
        return None
    characters, lengths = spelled
    indices = torch.arange(lengths.numel(), device=lengths.device).view(lengths.shape)
    return Spellings(characters.flatten(0, 1), lengths.flatten(), indices)


def language_forms(model: TextModel) -> ExportedModel:
    """Return one step, and a whole sequence, of a language model: tokens and state to logits and state."""
    # The state after a step tells which dimensions grow, so that an exported model takes any size there.
    initial = model.initial_state(ROWS)
    like, names = _advanced(model, initial), list(state_to_dict(initial))
    sizes: list[Sizes] = [{0: "batch"}, *_free(initial, like, "past")]
    outputs = ["logits", *(f"next_{_named(name)}" for name in names)]
    leaves = dict(zip(map(_named, names), state_leaves(like), strict=True))
    forms = [
        ExportedForm("step", _ModelStep(model, like), {"tokens": _ids(ROWS), **leaves}, sizes, outputs),
        ExportedForm(
            "sequence",
            _Sequence(model, like),
            {"tokens": _ids(ROWS, TIME), **leaves},
            [{0: "batch", 1: "time"}, *sizes[1:]],
            outputs,
        ),
    ]

    # A text begins with the initial state of one row.
    start = (leaf[:1] for leaf in state_leaves(initial))
    return ExportedModel(forms, "generate", state=dict(zip(leaves, start, strict=True)))


def translation_forms(model: EncoderDecoder) -> ExportedModel:
    """Return the encoder, from a source to the decoder's state, and a step of the decoder."""
    short, start = (model.encode(_ids(ROWS, time), torch.full((ROWS,), time)) for time in (SOURCE - 1, SOURCE))
    like = _advanced(model, start)
    pairs = zip(_free(short, start, "source"), _free(start, like, "past"), strict=True)
    sizes: list[Sizes] = [{0: "batch"}, *({**source, **past} for source, past in pairs)]
    names = [_named(name) for name in state_to_dict(start)]
    source = {"source": _ids(ROWS, SOURCE), "lengths": torch.full((ROWS,), SOURCE)}
    encoder = ExportedForm("encoder", _Encoder(model), source, [{0: "batch", 1: "source"}, {0: "batch"}], names)
    decoder = ExportedForm(
        "decoder",
        _ModelStep(model, like),
        {"tokens": _ids(ROWS), **dict(zip(names, state_leaves(like), strict=True))},
        sizes,
        ["logits", *(f"next_{name}" for name in names)],
    )
    return ExportedModel([encoder, decoder], "translate")


def aligned_forms(model: CTCTranslator) -> ExportedModel:
    """Return the full model: log probabilities of a target token, or none, at ``upsample`` positions for each token."""
    inputs = {"source": _ids(ROWS, TIME), "lengths": torch.full((ROWS,), TIME)}
    sizes: list[Sizes] = [{0: "batch", 1: "time"}, {0: "batch"}]
    form = ExportedForm("sequence", _Aligned(model), inputs, sizes, ["log_probabilities"])
    return ExportedModel([form], "align", {"upsample": model.upsample})


def masked_forms(model: MaskedLanguageModel) -> ExportedModel:
    """Return the logits of every token of some texts."""
    inputs, sizes = _tokens(spelled=False)
    return ExportedModel([ExportedForm("sequence", _Masked(model), inputs, sizes, ["logits"])], "fill")


def label_forms(model: Classifier) -> ExportedModel:
    """Return the logits of the labels of some texts."""
    inputs, sizes = _tokens(spelled=model.characters is not None)
    form = ExportedForm("sequence", _Labels(model), inputs, sizes, ["logits"])
    return ExportedModel([form], "label", _spelled(model))


def tag_forms(model: Tagger) -> ExportedModel:
    """Return the scores of the tags of some sentences, and the best tags."""
    inputs, sizes = _tokens(spelled=model.characters is not None)
    form = ExportedForm("sequence", _Tags(model), inputs, sizes, ["scores", "tags"])
    return ExportedModel([form], "label", _spelled(model))


def _tokens(*, spelled: bool) -> tuple[dict[str, Tensor], list[Sizes]]:
    """Return an example of texts, and the free dimensions: tokens, lengths, and the characters of words."""
    inputs = {"tokens": _ids(ROWS, TIME), "lengths": torch.full((ROWS,), TIME)}
    sizes: list[Sizes] = [{0: "batch", 1: "time"}, {0: "batch"}]
    if spelled:
        inputs |= {
            "characters": _ids(ROWS, TIME, MAX_CHARACTERS),
            "character_lengths": torch.full((ROWS, TIME), MAX_CHARACTERS),
        }
        sizes += [{0: "batch", 1: "time"}] * 2
    return inputs, sizes


def _spelled(model: Classifier | Tagger) -> dict[str, object]:
    """Return the number of characters of a word, if they are read."""
    return {} if model.characters is None else {"word_characters": MAX_CHARACTERS}


def _ids(*size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.long)


def _named(path: str) -> str:
    return f"state.{path}" if path else "state"


def _advanced(model: TextModel | EncoderDecoder, state: State) -> State:
    for _ in range(TIME):
        state = model.step(_ids(ROWS), state)[1]
    return map_state(Tensor.contiguous, state)


def _free(one: State, other: State, name: str) -> list[Sizes]:
    """Return the batch, and the dimensions in which two states differ, of each leaf."""
    shapes = zip(*([leaf.shape for leaf in state_leaves(state)] for state in (one, other)), strict=True)
    return [{0: "batch"} | {i: name for i in range(1, len(a)) if a[i] != b[i]} for a, b in shapes]
