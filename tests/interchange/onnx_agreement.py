"""Runs exported models in onnxruntime beside the models they come from."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from seriatim.core.state import state_leaves
from seriatim.data.tagged_corpus import TaggedBatch
from seriatim.data.tokenizers import Tokenizer
from seriatim.data.word_forms import MAX_CHARACTERS, Spellings
from seriatim.interchange.onnx_export import prepared, quietly_exporting, traced, write_models
from seriatim.models import Classifier, LanguageModel, MaskedLanguageModel
from seriatim.models.ctc_translator import CTCTranslator
from seriatim.models.encoder_decoder import EncoderDecoder
from seriatim.models.exported_forms import (
    ExportedModel,
    aligned_forms,
    label_forms,
    language_forms,
    masked_forms,
    tag_forms,
    translation_forms,
)
from seriatim.models.tagger import Tagger

CHARACTERS = 30
Sizes = Sequence[tuple[int, ...]]
Feeds = Mapping[str, "Tensor | np.ndarray"]


class Sessions:
    """The forms of a model in onnxruntime."""

    def __init__(
        self, forms: Callable[..., ExportedModel], model: nn.Module, folder: Path, tokenizer: Tokenizer | None
    ) -> None:
        with quietly_exporting():
            self.exported = forms(prepared(model.eval(), tokenizer))
            models = {form.name: traced(form) for form in self.exported.forms}
        write_models(models, folder)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.sessions = {
            name: onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), options, ["CPUExecutionProvider"])
            for name in models
        }

    def run(self, form: str, feeds: Feeds) -> list[np.ndarray]:
        """Compute all outputs; inputs that a form does not read are left out."""
        names = {given.name for given in self.sessions[form].get_inputs()}
        arrays = {name: value.numpy() if isinstance(value, Tensor) else value for name, value in feeds.items()}
        return self.sessions[form].run(None, {name: arrays[name] for name in names})


def deviation(given: np.ndarray, expected: Tensor) -> float:
    """Return the largest difference between two tensors, divided by the largest number where that is above 1.

    Their shapes and types must be the same. A sum over a whole text is rounded by its size.
    """
    wanted = expected.detach().numpy()
    assert (given.shape, given.dtype) == (wanted.shape, wanted.dtype)
    scale = np.abs(wanted.astype(float)).max(initial=1.0)
    return float(np.abs(given.astype(float) - wanted.astype(float)).max(initial=0) / scale)


def language_deviation(
    model: LanguageModel, folder: Path, sizes: Sizes = ((1, 1, 0), (2, 9, 0), (4, 3, 11), (1, 40, 70))
) -> float:
    """Compare a sequence, and its first steps, in ``sizes``: rows, length, and tokens before."""
    one = Sessions(language_forms, model, folder, None)
    assert one.exported.state is not None
    names, worst = list(one.exported.state), 0.0
    with torch.no_grad():
        for rows, time, before in sizes:
            ids = torch.randint(model.vocabulary_size, (rows, before + time))
            state = model.initial_state(rows)
            if before:
                state = model(ids[:, :before], state)[1]
            feeds: Feeds = dict(zip(names, state_leaves(state), strict=True))
            logits, end = model(ids[:, before:], state)
            given = one.run("sequence", {"tokens": ids[:, before:], **feeds})
            worst = max(worst, *map(deviation, given, [logits, *state_leaves(end)]))
            for t in range(before, before + min(time, 4)):
                logits, state = model.step(ids[:, t], state)
                given = one.run("step", {"tokens": ids[:, t], **feeds})
                worst = max(worst, *map(deviation, given, [logits, *state_leaves(state)]))
                feeds = dict(zip(names, given[1:], strict=True))
    return worst


def padded_ids(rows: int, time: int, size: int) -> dict[str, Tensor]:
    """Return texts of several lengths, of which the first is full and the last may be empty."""
    lengths = torch.linspace(time, 0, rows).long()
    return {"tokens": torch.randint(size, (rows, time)), "lengths": lengths}


def within(values: np.ndarray, expected: Tensor, lengths: Tensor) -> float:
    """Return `deviation` without padding."""
    return max(deviation(values[row, :n], expected[row, :n]) for row, n in enumerate(lengths.tolist()))


SHAPES: Sizes = ((1, 1), (3, 9), (2, 40))


def masked_deviation(model: MaskedLanguageModel, folder: Path) -> float:
    """Compare the logits of all tokens."""
    one, worst = Sessions(masked_forms, model, folder, None), 0.0
    for rows, time in SHAPES:
        feeds = padded_ids(rows, time, model.vocabulary_size + 1)
        with torch.no_grad():
            logits = model(feeds["tokens"], torch.arange(rows * time), lengths=feeds["lengths"])
        (given,) = one.run("sequence", feeds)
        worst = max(worst, within(given, logits.unflatten(0, (rows, time)), feeds["lengths"]))
    return worst


def spelled(model: Classifier | Tagger, rows: int, time: int) -> tuple[dict[str, Tensor], Spellings | None]:
    """Return the characters of some words, if a model reads them, as inputs and as the model takes them."""
    if model.characters is None:
        return {}, None
    lengths = torch.randint(1, MAX_CHARACTERS + 1, (rows, time))
    characters = torch.randint(CHARACTERS, (rows, time, MAX_CHARACTERS))
    places = torch.arange(rows * time).view(rows, time)
    feeds = {"characters": characters, "character_lengths": lengths}
    return feeds, Spellings(characters.flatten(0, 1), lengths.flatten(), places)


def label_deviation(model: Classifier, folder: Path) -> float:
    """Compare the logits of labels."""
    one, worst = Sessions(label_forms, model, folder, None), 0.0
    for rows, time in SHAPES:
        feeds = padded_ids(rows, time, model.embedding.num_embeddings)
        characters, spellings = spelled(model, rows, time)
        with torch.no_grad():
            logits = model(feeds["tokens"], feeds["lengths"], spellings)
        (given,) = one.run("sequence", feeds | characters)
        worst = max(worst, deviation(given, logits))
    return worst


def tag_deviation(model: Tagger, folder: Path) -> float:
    """Compare scores; the best tags must be equal, and −1 on padding."""
    one, worst = Sessions(tag_forms, model, folder, None), 0.0
    for rows, time in SHAPES:
        feeds = padded_ids(rows, time, model.embedding.num_embeddings)
        characters, spellings = spelled(model, rows, time)
        with torch.no_grad():
            scores = model(TaggedBatch(feeds["tokens"], feeds["lengths"], np.zeros(0), spellings))
        given, tags = one.run("sequence", feeds | characters)
        worst = max(worst, within(given, scores, feeds["lengths"]))
        lengths = feeds["lengths"].tolist()
        assert [row[:n].tolist() for row, n in zip(tags, lengths, strict=True)] == model.decode(
            scores, feeds["lengths"]
        )
        assert all((row[n:] == -1).all() for row, n in zip(tags, lengths, strict=True))
    return worst


def translation_deviation(model: EncoderDecoder, folder: Path) -> float:
    """Compare the state after a source, and the logits and states of some steps after it."""
    one, worst = Sessions(translation_forms, model, folder, None), 0.0
    names = [output.name for output in one.sessions["encoder"].get_outputs()]
    for rows, time, steps in ((1, 1, 3), (3, 9, 5), (2, 40, 12)):
        source = padded_ids(rows, time, model.source_embedding.num_embeddings)
        with torch.no_grad():
            state = model.encode(source["tokens"], source["lengths"])
            given = one.run("encoder", {"source": source["tokens"], "lengths": source["lengths"]})
            worst = max(worst, *map(deviation, given, state_leaves(state)))
            for _ in range(steps):
                tokens = torch.randint(model.target_vocabulary, (rows,))
                logits, state = model.step(tokens, state)
                found, *given = one.run("decoder", {"tokens": tokens, **dict(zip(names, given, strict=True))})
                worst = max(worst, *map(deviation, [found, *given], [logits, *state_leaves(state)]))
    return worst


def aligned_deviation(model: CTCTranslator, folder: Path) -> float:
    """Compare the log probabilities at all places of the sources."""
    one, worst = Sessions(aligned_forms, model, folder, None), 0.0
    for rows, time in SHAPES:
        source = padded_ids(rows, time, model.source_embedding.num_embeddings)
        with torch.no_grad():
            expected, places = model(source["tokens"], source["lengths"])
        (given,) = one.run("sequence", {"source": source["tokens"], "lengths": source["lengths"]})
        worst = max(worst, within(given, expected, places))
    return worst
