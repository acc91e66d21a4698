"""Masked language modelling: every token from those before and after it, over windows of a running text or over lines.

J. Devlin et al., "BERT", NAACL 2019: a fraction of the positions is chosen; of these 80 % become the mask symbol, 10 %
a random token, and 10 % stay; the loss is over them alone. They are chosen again at every step.

A prediction fills the gaps of lines: each ``[MASK]`` is replaced by one token.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ..config import BATCH_SIZE, Config, Section, read_settings
from ..core.device_copies import to_device
from ..core.errors import SizeError
from ..core.json_object import JsonObject
from ..core.state import State
from ..data.batches import Buckets, Windows, cut
from ..data.corpus import Corpus
from ..data.tokenizers import END, Tokenizer
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measurement, Metric
from ..evaluation.perplexity import unigram_metrics
from ..evaluation.pseudo_likelihood import measure_windows
from ..evaluation.text_sample import sample_text
from ..layers.pointwise import EPSILON
from ..models import MaskedLanguageModel
from ..models.exported_forms import ExportedModel, masked_forms
from ..models.masked_language_model import Frame
from ..models.probabilities import log_softmax, softmax
from .data_files import declared_positions
from .defaults import network_defaults, split_options
from .explainer import MAX_LINE, Example, Examples, ExplainedModel, Explainer, Wording
from .names import TASK_SUMMARIES
from .task import Evaluator, ModelBuilder, Objective, Predictor, Task, TaskKind, evaluating
from .text import WindowReader
from .text_explainer import InspectedText, ReadCorpus, TextScores, named_unknown

MASKED, REPLACED = 0.8, 0.1
FORM = ("transform_activation", "transform_epsilon")
"""The options that decide what the model computes; a training takes them from its initial run."""
MASK_TEXT = "[MASK]"
TOGETHER = 64
"""Windows in a batch."""
MAX_PROBABILITIES = 1 << 24
"""Probabilities that are held at once."""
SHOWN = 5
"""Number of tokens that are listed for each gap."""
COPIES_TOGETHER = 32
"""Copies of a window, each with other masked tokens, that are read at once."""


class Options(Section):
    """Options of a masked language model, beside those of its layer."""

    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens that are predicted at a step."""
    transform_activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = "gelu"
    """Activation between the layer and the output layer."""
    transform_epsilon: Annotated[float, Field(gt=0, le=1)] = EPSILON
    """Is added to the variance in the norm between the layer and the output layer."""


class MaskedModelBuilder(ModelBuilder[MaskedLanguageModel]):
    """Builds masked language models."""

    def build(self, vocabulary: Vocabulary) -> MaskedLanguageModel:
        """Build a masked language model."""
        tokenizer, (options, layer_options) = vocabulary.tokenizer, split_options(Options, self.config)
        model = MaskedLanguageModel.from_config(self.config.model, tokenizer.vocabulary_size, layer_options)
        frame = Frame(tokenizer.begin, END) if tokenizer.frames else None
        return model.with_form(options.transform_activation, options.transform_epsilon, frame)


@dataclass
class WindowBatch:
    """Windows ``rows`` of a text: ids ``(batch, time)`` and lengths ``(batch,)``; ``terms`` tokens are predicted."""

    rows: np.ndarray
    inputs: Tensor
    lengths: Tensor
    terms: int
    fresh: bool = True

    @property
    def tokens(self) -> int:
        """Number of tokens, without padding."""
        return int(self.lengths.sum())


class MaskingObjective(Objective[Windows, WindowBatch, MaskedLanguageModel, Options]):
    """The cross-entropy of tokens that are masked anew at every step."""

    def batches(self, data: Windows) -> Buckets[WindowBatch]:
        """Return batches of windows of similar length."""

        def make(rows: np.ndarray) -> WindowBatch:
            lengths = data.lengths[rows]
            terms = max(1, round(self.options.mask_rate * int(lengths.sum())))
            return WindowBatch(rows, torch.from_numpy(data.ids(rows)), torch.from_numpy(lengths), terms)

        return Buckets(data.lengths, self.config.training.batch_size or BATCH_SIZE, make, by_tokens=True)

    def loss(
        self, model: MaskedLanguageModel, batch: WindowBatch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, None]:
        """Compute the loss of tokens that PyTorch's generator chooses."""
        masked, positions, targets = choose(batch, model.vocabulary_size)
        device = model.embedding.weight.device
        inputs, positions, targets = (to_device(x, device) for x in (masked, positions, targets))
        return model.loss(inputs, positions, targets, lengths=batch.lengths), None

    def check(self, train: Windows, valid: Windows | None) -> None:
        """Raise InputError if a window has more tokens than there are learned positions."""
        tokenizer, length = train.corpus.tokenizer, self.config.training.sequence_length
        limit = declared_positions(self.config.model.options)
        around = len(Frame._fields) if tokenizer is not None and tokenizer.frames else 0
        if limit is not None and limit < length + around:
            beside = ", two of them for the tokens around a text" if around else ""
            raise SizeError(
                f"training.sequence_length: {length} tokens are too many for {limit} learned positions{beside}; "
                f"give at most {limit - around}, or set model.options.max_length to {length + around}"
            )


def choose(batch: WindowBatch, vocabulary_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the tokens to predict, exactly ``batch.terms``, and mask them.

    Returns:
        Ids ``(batch, time)`` with the mask symbol's, ``vocabulary_size``, among them; positions and targets, both
        ``(terms,)``, counted through the rows and in order.
    """
    # An exact number of positions, rather than each with a probability: the number of terms of a batch must be known
    # before it is drawn, since the ranks of a training divide their losses by it.
    position = torch.arange(batch.inputs.shape[1])
    valid = (position < batch.lengths.unsqueeze(1)).flatten().nonzero().squeeze(1)
    positions = valid[torch.randperm(len(valid))[: batch.terms]].sort().values
    targets = batch.inputs.flatten()[positions]  # (terms,)

    # Some of them are not masked, so that the model cannot rely on the mask symbol, which no other text has.
    draw, others = torch.rand(batch.terms), torch.randint(vocabulary_size, (batch.terms,))
    read = torch.where(draw < MASKED, vocabulary_size, torch.where(draw < MASKED + REPLACED, others, targets))
    return batch.inputs.flatten().index_copy(0, positions, read).view(batch.inputs.shape), positions, targets


class PseudoLikelihoodSettings(Section):
    """How a masked language model is evaluated. ``exact`` masks each token alone."""

    exact: bool = False


class PseudoLikelihoodEvaluator(Evaluator[Windows]):
    """Pseudo-likelihoods: each token is predicted from both sides.

    ``every`` is the distance between two tokens that are masked in the same pass: as many are masked as in training.
    """

    settings = PseudoLikelihoodSettings
    per_token = ("loss", "perplexity", "accuracy")
    baseline_name = "a unigram"
    counts = ("tokens", "words", "lines", "bytes", "unknown_tokens")
    metrics = (
        Metric("loss", "pseudo-loss (nats per token)", 4),
        Metric("perplexity", "pseudo-perplexity per token", 2, headline=True),
        Metric("accuracy", "accuracy of masked tokens", 4, headline=True, more_is_better=True),
        Metric("bits_per_byte", "pseudo-bits per byte", 4),
    )

    def __init__(self, every: int) -> None:
        self.every = every

    def measure(self, model: MaskedLanguageModel, data: Windows, **settings: object) -> Measurement:
        """Compute the metrics of `seriatim.evaluation.pseudo_likelihood`.

        As many tokens are masked at once as in training; ``exact`` masks each alone, which takes a pass for each.
        """
        every = None if read_settings(PseudoLikelihoodSettings, settings).exact else self.every
        with evaluating(model):
            measured = measure_windows(model, data, every=every)
        return measured._replace(metrics=measured.metrics | data.corpus.repairs.facts())

    def sample(self, data: Windows, tokens: int | None) -> Windows:
        """Return windows of lines, or of stretches of a running text, that are spread over it."""
        corpus = sample_text(data.corpus, tokens)
        return data if corpus is data.corpus else cut(corpus, int(data.lengths.max()))

    def trivial_baseline(self, train: Windows, valid: Windows, vocabulary: Vocabulary) -> JsonObject:
        """Compute the metrics of a unigram model."""
        return unigram_metrics(train.corpus, valid.corpus, vocabulary.tokenizer.vocabulary_size)


class GapPredictor(Predictor[MaskedLanguageModel]):
    """Fills the gaps of lines."""

    endpoint = "fill"

    def __init__(self, config: Config) -> None:
        self.config = config

    def answer(
        self, model: MaskedLanguageModel, vocabulary: Vocabulary, items: Sequence[str], **settings: object
    ) -> list[JsonObject]:
        """Fill the gaps of each line; see `seriatim.tasks.mlm`."""
        unit, length = self.config.data.unit, self.config.training.sequence_length
        with evaluating(model):
            return fill(model, vocabulary.tokenizer, items, unit=unit, length=length)


class Gaps(NamedTuple):
    """A line with gaps: the segments of text around them, and its tokens with the mask symbol in the gaps and its end.

    ``spaced`` says for each gap whether it is filled by a token that begins with a space.
    """

    segments: list[str]
    spaced: list[bool]
    ids: np.ndarray


def fill(
    model: MaskedLanguageModel, tokenizer: Tokenizer, lines: Sequence[str], *, unit: str, length: int
) -> list[JsonObject]:
    """Fill each gap of every line with its most probable token, given the line without all of them.

    The boundary, the unknown, reserved tokens and line ends are never filled in. A line without a gap comes back as it
    is. ``unit`` is ``line`` if lines end with the boundary symbol; ``length`` tokens are read at once, and longer lines
    are cut.

    Returns:
        Per line ``text``, and ``masks``: for every gap the likeliest tokens with their probabilities, in a list of
        ``token`` and ``probability``.
    """
    answers: list[JsonObject] = [{"text": line, "masks": []} for line in lines]
    gaps = {row: find_gaps(line, tokenizer, model.mask, unit) for row, line in enumerate(lines) if MASK_TEXT in line}
    for row, best in zip(gaps, likeliest(model, tokenizer, list(gaps.values()), length), strict=True):
        answers[row] = _filled(gaps[row], tokenizer, best)
    return answers


def find_gaps(line: str, tokenizer: Tokenizer, mask: int, unit: str) -> Gaps:
    """Encode the text around the gaps; subwords include the space before them, and so do gaps."""
    segments, spaced = line.split(MASK_TEXT), []
    for i, segment in enumerate(segments[:-1]):
        begins = tokenizer.frames and not i and not segment
        spaced.append(gap_includes_space(tokenizer) and (segment.endswith(" ") or begins))
        segments[i] = segment[:-1] if spaced[i] else segment
    ids = [tokenizer.encode(segments[0])]
    for segment in segments[1:]:
        ids += [np.array([mask]), tokenizer.encode(segment)]
    return Gaps(segments, spaced, np.concatenate([*ids, line_end(tokenizer, unit)]).astype(np.int64))


def line_end(tokenizer: Tokenizer, unit: str) -> np.ndarray:
    """Return the tokens that end a line that a masked language model reads ``(tokens,)``."""
    return np.array([END]) if unit == "line" and not tokenizer.frames else tokenizer.encode("\n")


def gap_includes_space(tokenizer: Tokenizer) -> bool:
    """Return whether a gap after a space is filled by a token that begins with this space."""
    return tokenizer.kind in ("bpe", "unigram", "pretrained")


def likeliest(
    model: MaskedLanguageModel, tokenizer: Tokenizer, lines: Sequence[Gaps], length: int
) -> list[list[list[tuple[int, float]]]]:
    """Return for each gap of each line the likeliest tokens with their probabilities; see `fill`."""
    device, mask = model.embedding.weight.device, model.mask

    # Only windows with a gap are read, whatever line they are from; what is found is handed back to the lines in order.
    windows = [line.ids[start : start + length] for line in lines for start in range(0, len(line.ids), length)]
    windows = [window for window in windows if (window == mask).any()]
    spaced = iter([each for line in lines for each in line.spaced])
    spaced_by_window = [[next(spaced) for _ in range(int((window == mask).sum()))] for window in windows]

    # A window has a distribution over the vocabulary for each of its gaps, which together can exceed the memory.
    lengths = np.array([len(window) for window in windows], dtype=np.int64)
    most = max(map(len, spaced_by_window), default=1)
    together = max(1, min(TOGETHER, MAX_PROBABILITIES // (most * model.vocabulary_size)))
    buckets = Buckets(lengths, together, lambda rows: rows)
    found: list[list[list[tuple[int, float]]]] = [[] for _ in windows]
    for rows in buckets.read(buckets.in_order()):
        ids = pad_sequence([torch.from_numpy(windows[row]) for row in rows], batch_first=True).to(device)
        gaps = ids == mask
        logits = model(ids, gaps.flatten().nonzero().squeeze(1), lengths=torch.from_numpy(lengths[rows]))
        probabilities = iter(softmax(logits).cpu())
        for row in rows.tolist():
            found[row] = [_best(next(probabilities), tokenizer, spaced=each) for each in spaced_by_window[row]]
    flat = iter([best for window in found for best in window])
    return [[next(flat) for _ in line.spaced] for line in lines]


def _best(probabilities: Tensor, tokenizer: Tokenizer, *, spaced: bool) -> list[tuple[int, float]]:
    """Return the likeliest tokens that may fill a gap, given the probability of every token ``(vocabulary,)``."""
    allowed = writable(tokenizer)[int(spaced)]
    values, order = probabilities[allowed].topk(min(SHOWN, len(allowed)))
    return list(zip(allowed[order].tolist(), values.tolist(), strict=True))


def _filled(gaps: Gaps, tokenizer: Tokenizer, likeliest_tokens: Sequence[Sequence[tuple[int, float]]]) -> JsonObject:
    text, masks = [gaps.segments[0].encode()], []
    for segment, spaced, best in zip(gaps.segments[1:], gaps.spaced, likeliest_tokens, strict=True):
        masks.append([{"token": tokenizer.describe(token), "probability": probability} for token, probability in best])
        filled = tokenizer.token_bytes(best[0][0])
        if tokenizer.frames and not (spaced and any(text)):  # the space is not in the line
            filled = filled.removeprefix(b" ")
        text += [filled, segment.encode()]
    return {"text": b"".join(text).decode("utf-8", "replace"), "masks": masks}


@functools.lru_cache(maxsize=4)
def writable(tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Return the tokens that may fill a gap, and those of them that may do so after a space."""
    written = {token: tokenizer.token_bytes(token) for token in range(tokenizer.vocabulary_size)}
    special = (END, tokenizer.unknown_id, *tokenizer.reserved)
    plain = [token for token, raw in written.items() if token not in special and raw and not set(raw) & set(b"\r\n")]
    with_space = [token for token in plain if tokenizer.starts_word(token)]
    return torch.tensor(plain), torch.tensor(with_space, dtype=torch.long)


class MaskedExamples(Examples[MaskedLanguageModel]):
    """Lines of a text in windows, whose targets are the tokens themselves, masked."""

    predicts = "each token"
    is_divisible = True
    masks_targets = True

    def read(self, item: object) -> list[Example]:
        """Return the lines of a text, cut into windows of the length of training.

        A ``[MASK]`` in the text is a masked token; its target is unknown.
        """
        config, examples = self.explained.config, []
        for line in str(item).split("\n"):
            if line.strip():
                ids = find_gaps(line, self.tokenizer, self.model.mask, config.data.unit).ids.tolist()
                names = list(self.token_names(ids))
                if self.model.mask not in ids:
                    names = named_unknown(self.tokenizer, names, line, ids)
                length = config.training.sequence_length
                windows = [slice(start, start + length) for start in range(0, len(ids), length)]
                examples += [self.framed(ids[window], names[window]) for window in windows]
        return examples

    def framed(self, ids: Sequence[int], names: Sequence[str]) -> Example:
        """Return what the model reads for some tokens: with the frame, if it has one."""
        if self.model.frame is not None:
            begin, end = self.model.frame
            ids, names = (begin, *ids, end), (*self.token_names([begin]), *names, *self.token_names([end]))
        return Example(tuple(ids), tuple(ids), tuple(names))

    def forward(self, batch: Sequence[Example]) -> Tensor:
        """Run the model over the examples."""
        inputs, _ = self.tensors(batch)
        logits: Tensor = self.model(inputs, inputs.new_zeros(1), framed=True)
        return logits

    def masked_logits(self, batch: Sequence[Example], positions: Sequence[int]) -> Tensor:
        """Return the logits ``(batch, vocabulary)`` of one token of each example, which is masked, in float64."""
        inputs, _ = self.tensors(batch)
        inputs[range(len(batch)), positions] = self.model.mask
        rows = torch.arange(len(batch)) * inputs.shape[1] + torch.tensor(positions)
        logits: Tensor = self.model(inputs, rows.to(self.explained.device), framed=True)
        return logits.double()

    def place_losses(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        """Return −log P of one token of each example when it is masked.

        If the text itself masks that token, the target is the top guess.
        """
        logits = self.masked_logits(batch, places)
        truth = self.tensors(batch)[1][range(len(batch)), places]
        targets = truth.where(truth < self.model.mask, logits.argmax(1))
        return F.cross_entropy(logits, targets, reduction="none")

    def target_names(self, example: Example) -> tuple[str, ...]:
        """Return the names of the tokens."""
        return example.tokens

    def predictions(self, batch: Sequence[Example]) -> Tensor:
        """Return P(token) for the last token of each example, masked."""
        positions = [self.end_place(example) for example in batch]
        return softmax(self.masked_logits(batch, positions)).unsqueeze(1)

    def end_place(self, example: Example, *, at_start: bool = False) -> int:
        """Return the position of the last token of the text, or of the first one, inside the frame."""
        edge = 0 if self.model.frame is None or len(example.inputs) < 3 else 1
        return edge if at_start else len(example.inputs) - 1 - edge


class MaskedScores(TextScores[MaskedLanguageModel]):
    """Scores the tokens of a text, each masked by itself, or several at once to be fast."""

    def context(self, tokens: int) -> str:
        """Return in words which tokens each of so many tokens is predicted from."""
        length = self.explained.config.training.sequence_length
        window = f" in its window of {length:,} tokens" if tokens > length else ""
        return f"all other tokens{window}; each token is masked by itself"

    def log_probabilities(self, corpus: Corpus, *, every: int | None = None) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield the predictions of masked tokens, with one pass over a window for each distance below ``every``."""
        model, device = self.explained.model, self.explained.device
        windows = cut(corpus, self.explained.config.training.sequence_length)
        for start, size in zip(windows.starts.tolist(), windows.lengths.tolist(), strict=True):
            ids = torch.from_numpy(np.asarray(corpus.ids[start : start + size], dtype=np.int64)).to(device)
            passes = min(every or size, size)
            for offsets in torch.split(torch.arange(passes, device=device), COPIES_TOGETHER):
                gaps = torch.arange(size, device=device) % passes == offsets.unsqueeze(1)  # (copies, T)
                with torch.no_grad():
                    logits = model(ids.masked_fill(gaps, model.mask), gaps.flatten().nonzero().squeeze(1))
                yield start + gaps.nonzero()[:, 1].cpu().numpy(), log_softmax(logits)


def explain_masked_model(
    explained: ExplainedModel[MaskedLanguageModel], read_corpus: ReadCorpus, every: int
) -> Explainer:
    """Compose what can be shown of a masked language model.

    In evaluation, tokens at the distance ``every`` are masked together.
    """
    config, examples = explained.config, MaskedExamples(explained)
    text = InspectedText(explained.vocabulary.tokenizer, config.data.unit == "stream", MAX_LINE)
    scores = MaskedScores(explained, text, read_corpus, every)
    return Explainer(
        explained,
        Wording(
            title="masked language model",
            prediction="the distribution of the last token, masked",
            correct="masked tokens predicted correctly by the top guess",
        ),
        text.excerpt,
        inputs=examples,
        predictions=examples.predictions,
        token_scores=scores.token_scores,
        token_losses=scores.token_losses,
        export=lambda: export(explained),
        labelled=scores,
    )


def export(explained: ExplainedModel[MaskedLanguageModel]) -> ExportedModel:
    """Return the whole model, the tokens around a text, and those that may fill a gap."""
    model, tokenizer = explained.model, explained.vocabulary.tokenizer
    frame = () if model.frame is None else (model.frame.begin,)
    after = find_gaps("", tokenizer, model.mask, explained.config.data.unit).ids.tolist()
    allowed, with_space = (ids.tolist() for ids in writable(tokenizer))
    tokens = {"mask": [model.mask], "before": frame, "after": [END] if frame else after, "allowed": allowed}
    spaced = with_space if gap_includes_space(tokenizer) else []
    return replace(masked_forms(model), tokens={**tokens, "with_space": spaced})


def open_task(config: Config) -> Task:
    """Compose the parts of masked language modelling."""
    reader, (options, _) = WindowReader(config), split_options(Options, config)
    evaluator = PseudoLikelihoodEvaluator(max(1, round(1 / options.mask_rate)))
    return Task(
        KIND,
        config,
        reader=reader,
        builder=MaskedModelBuilder(config),
        evaluator=evaluator,
        objective=MaskingObjective(config, evaluator, KIND.items_name, options),
        predictor=GapPredictor(config),
        explain=lambda masked: explain_masked_model(masked, reader.read_corpus, evaluator.every),
    )


KIND = TaskKind(
    name="mlm",
    summary=TASK_SUMMARIES["mlm"],
    learning_rate=1e-2,
    open=open_task,
    evaluator=PseudoLikelihoodEvaluator,
    predictor=GapPredictor,
    usage="seriatim predict {run} LINES",
    caution=(
        "It fills each [MASK] of a line with text like what it was trained on. Its figures are pseudo-likelihoods: "
        "every token is predicted from both sides, so they say nothing beside those of a model that reads forwards."
    ),
    options=Options,
    items_name="windows",
    defaults=lambda config: network_defaults(config, Options, shaping_options=FORM),
)
