"""A linear-chain CRF on attributes of each word and its neighbours: the classical tagger before neural networks.

    s_t[y] = Σ_{o = −2 … 2} c_o Σ_{f ∈ attributes(w_{t+o})} W_o[f, y] + Σ_{p ∈ pairs(w_{t−1}, w_t)} V_0[p, y]
             + Σ_{p ∈ pairs(w_t, w_{t+1})} V_1[p, y]

c_o `SCALES` · W_o weights of an attribute of the word at distance o, for a tag y · beyond the ends of a sentence, a
word has one attribute that says so · two neighbours have a pair of their lower case, and one of each further column
that is read · V_0, V_1 weights of a pair that occurs at least twice in training, and of all others together · s_t are
the scores of a `CRF`.

J. Lafferty, A. McCallum and F. Pereira, ICML 2001; F. Sha and F. Pereira, "Shallow parsing with conditional random
fields", NAACL 2003, who train with L-BFGS. Since the attributes of a word depend on the word alone, the scores of the
distinct words of a corpus are computed once, however often they occur.

The loss on all sentences of a corpus at once has scaled probabilities instead of logarithms (L. Rabiner, "A tutorial on
hidden Markov models", Proceedings of the IEEE 77 (1989), section V.A), since products of probabilities are faster than
sums of exponentials; otherwise it is that of `seriatim.models.crf.CRF`:

    a_t = (a_{t−1} M) ∘ e_t / c_t,   b_t = M (e_{t+1} ∘ b_{t+1}) / c_{t+1},   log Z = Σ_t log c_t + log(a_T · exp(end))

M = exp(A) transitions · e_t = exp(s_t) scores of a word's tags · c_t makes a_t sum to 1 · a_t ∘ b_t are the marginals.
The sentences are packed: sorted by length, the first words of all sentences come first, then the second words of those
that have one, and so on.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..compiler.cpp.toolchain import address
from ..data.tagged_corpus import TaggedBatch, TaggedCorpus
from ..models.crf import CRF, bio_transitions, compiled_tags
from ..models.tagger import TagModel
from .minimization import Minimum, minimize
from .sparse_features import COLUMNS, LOWER, NONE, P, SparseRows, find_attributes, find_keys, mix, read_forms

REACH = 2
"""Largest distance of a word whose attributes are read."""
OFFSETS = 2 * REACH + 1
SCALES = (0.1, 0.25, 1.0, 0.25, 0.1)
"""The value of an attribute by the distance of its word: the penalty of the weights of neighbours is larger."""
TOLERANCE, MAX_STEPS, VARIANCE = 1e-3, 150, 0.02
PARAMETERS = ("weights", "pair_weights", "crf.transitions", "crf.start", "crf.end")


class AttributeTable(NamedTuple):
    """The attributes that a model knows, by their sorted keys ``(attributes,)``."""

    keys: np.ndarray

    @classmethod
    def of(cls, attributes: np.ndarray, counts: np.ndarray, *, max_attributes: int, least: int = 1) -> "AttributeTable":
        """Return the attributes of words ``(words, kinds)`` that occur ``least`` times, or the most frequent.

        ``counts`` are those of the words ``(words,)``.
        """
        keys, number = np.unique(attributes, return_inverse=True)
        frequency = np.bincount(number.ravel(), np.repeat(counts, attributes.shape[1]), len(keys))
        kept = (keys != NONE) & (frequency >= least)
        if np.count_nonzero(kept) > max_attributes:
            kept &= frequency > np.sort(frequency)[-max_attributes - 1]
        return cls(keys[kept])

    def find(self, attributes: np.ndarray) -> np.ndarray:
        """Return the index of each attribute; the number of keys where it is not known."""
        return find_keys(self.keys, attributes, unknown=len(self.keys))

    def rows(self, attributes: np.ndarray, *, boundary: bool) -> SparseRows:
        """Return which attributes each word has ``(words, attributes + 1)``.

        With ``boundary``, a last row stands for what is beyond a sentence, whose only attribute is the last one.
        """
        size, position = len(self.keys), self.find(attributes)
        rows, columns = (position < size).nonzero()[0], position[position < size]
        if boundary:
            rows, columns = np.append(rows, len(attributes)), np.append(columns, size)
        return SparseRows.build(rows, columns, np.ones(len(rows)), (len(attributes) + boundary, size + 1))


def pairs_of(attributes: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the keys of the pairs ``(..., n − 1, kinds)`` of words, given by their index ``(..., n)``.

    ``attributes`` are those of the words; the index after the last one stands for what is beyond a sentence.
    """
    chosen = [LOWER, *range(COLUMNS, attributes.shape[1])]
    read = np.concatenate([attributes, np.zeros_like(attributes, shape=(1, attributes.shape[1]))])[:, chosen][words]
    return mix(read[..., :-1, :] * P + read[..., 1:, :])


class FeatureTagger(TagModel):
    """Sentences to scores of tags ``(batch, time, tags)``.

    ``weights`` are ``(attributes + 1, OFFSETS · tags)``, and ``pair_weights`` ``(pairs + 1, 2 · tags)``.
    """

    crf: CRF
    reads_characters = False  # the words are read as they are written

    def __init__(
        self, table: AttributeTable, weights: Tensor, pairs: AttributeTable, pair_weights: Tensor, crf: CRF
    ) -> None:
        super().__init__(crf)
        self.table, self.pairs = table, pairs
        self.weights = nn.Parameter(weights, requires_grad=False)
        self.pair_weights = nn.Parameter(pair_weights, requires_grad=False)
        crf.requires_grad_(False)

    def forward(self, batch: TaggedBatch) -> Tensor:
        """Return the score of each tag for each word; meaningless on padding."""
        size, time = batch.forms.shape
        lengths, device = batch.lengths.numpy(), self.weights.device
        known, few = len(batch.spelled), len(batch.spelled) <= batch.forms.size
        distinct, number = (np.arange(known), batch.forms) if few else np.unique(batch.forms, return_inverse=True)
        forms = [batch.spelled[form] for form in distinct.tolist()]
        if forms and self.weights.type() == "torch.FloatTensor" and (functions := compiled_tags()) is not None:
            read, tables = read_forms(forms), (self.table.keys, self.pairs.keys)
            arrays = *read, number, lengths, *tables, np.array(SCALES, np.float32)
            scores = self.weights.new_zeros(size, time, self.crf.num_tags)
            sizes = len(forms), len(read[1]) // len(forms) - 3, *scores.shape, *map(len, tables)
            addresses = (x.data_ptr() for x in (self.weights, self.pair_weights, scores))
            functions.score_words(*map(address, arrays), *sizes, *addresses)
            return scores
        attributes = find_attributes(forms)
        by_word = self.table.rows(attributes, boundary=True).to(device).times(self.weights)
        by_word = by_word.view((len(distinct) + 1) * OFFSETS, -1)

        # Beyond the ends of a sentence stands the last word, which has the attribute of a boundary.
        padded = np.full((size, time + 2 * REACH), len(distinct))
        within = np.arange(time) < lengths[:, None]
        padded[:, REACH : REACH + time] = np.where(within, number.reshape(size, time), len(distinct))
        rows = padded[:, np.arange(time)[:, None] + np.arange(OFFSETS)] * OFFSETS + np.arange(OFFSETS)
        words = torch.from_numpy(rows.reshape(size * time, OFFSETS)).to(device)
        scales = by_word.new_tensor(SCALES).expand_as(words)
        scores = F.embedding_bag(words, by_word, mode="sum", per_sample_weights=scales).view(size, time, -1)

        # Pair i ends with word i of a sentence, and pair i + 1 begins with it.
        keys = pairs_of(attributes, padded[:, REACH - 1 : REACH + time + 1])
        found = torch.from_numpy(self.pairs.find(keys)).to(device)
        by_pair = self.pair_weights.view(len(self.pair_weights), 2, -1)
        for kind in found.unbind(2):
            scores.add_(by_pair[:, 0][kind[:, :-1]] + by_pair[:, 1][kind[:, 1:]])
        return scores

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that `from_tensors` needs, by name."""
        parameters = {name: value.data for name, value in self.named_parameters()}
        tables = {"keys": self.table, "pair_keys": self.pairs}
        return {**{name: torch.from_numpy(one.keys.view(np.int64)) for name, one in tables.items()}, **parameters}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], tags: Sequence[str]) -> "FeatureTagger":
        """Build a model from its tensors by name.

        Raises:
            ValueError: tensors are missing or damaged, or belong to other tags.
        """
        size = len(tags)
        if tensors.keys() != {"keys", "pair_keys", *PARAMETERS}:
            raise ValueError("not the tables of a tagger with attributes")
        tables = []
        for name in ("keys", "pair_keys"):
            if tensors[name].dtype != torch.int64 or tensors[name].dim() != 1:
                raise ValueError(f"{name} has the wrong type or shape")
            tables.append(AttributeTable(tensors[name].numpy().view(np.uint64)))
            if (tables[-1].keys[1:] <= tables[-1].keys[:-1]).any():
                raise ValueError(f"{name} are not sorted")
        rows, pairs = (len(table.keys) + 1 for table in tables)
        shapes = ((rows, OFFSETS * size), (pairs, 2 * size), (size, size), (size,), (size,))
        for name, shape in zip(PARAMETERS, shapes, strict=True):
            if tensors[name].dtype != torch.float32 or tuple(tensors[name].shape) != shape:
                raise ValueError(f"{name} has the wrong type or shape")
        crf = CRF(size, bio_transitions(tags))
        for name in PARAMETERS[2:]:
            getattr(crf, name.removeprefix("crf.")).data.copy_(tensors[name])
        return cls(tables[0], tensors["weights"], tables[1], tensors["pair_weights"], crf)


def fit_tagger(
    corpus: TaggedCorpus, tags: Sequence[str], *, decay: float, max_attributes: int, seconds: float | None = None
) -> tuple[FeatureTagger, str]:
    """Fit a tagger to a corpus, and return it with the reason why the search ended.

    The objective is −log P of all tags + ``decay`` / 2 times the squared norm of all weights.
    """
    attributes, size = find_attributes(corpus.spelled), len(tags)
    counts = np.bincount(corpus.forms, minlength=len(attributes))
    table = AttributeTable.of(attributes, counts, max_attributes=max_attributes)
    keys = pairs_of(attributes, _with_boundaries(corpus.forms, corpus.lengths, len(attributes))[0])
    pairs = AttributeTable.of(keys, np.ones(len(keys)), max_attributes=max_attributes, least=2)
    weights = [torch.zeros(len(table.keys) + 1, OFFSETS * size), torch.zeros(len(pairs.keys) + 1, 2 * size)]
    model = FeatureTagger(table, weights[0], pairs, weights[1], CRF(size, bio_transitions(tags)))
    objective = _SequenceLoss(corpus, model, decay)
    found: Minimum = minimize(objective, tolerance=TOLERANCE, max_steps=MAX_STEPS, seconds=seconds)
    for name, values in zip(PARAMETERS, objective.split(found.point), strict=True):
        parameter = model.get_parameter(name)
        parameter.copy_(values.view_as(parameter))
    return model, found.ended


class _SequenceLoss:
    """−log P of the tags of a corpus, for a model that is to be fitted.

    A point has the weights of attributes and of pairs, then transitions, start and end, as rows. Outputs are the scores
    of all words, packed, followed by the same last rows.
    """

    def __init__(self, corpus: TaggedCorpus, model: FeatureTagger, decay: float) -> None:
        assert corpus.tags is not None
        found, words = find_attributes(corpus.spelled), len(corpus.forms)
        self.size, self.attributes = model.crf.num_tags, model.table.rows(found, boundary=True)
        self.transposed = self.attributes.transposed()
        self.packing, self.decay = Packing.of(corpus.lengths), decay / words

        # Scores of attributes are computed once for each distinct word and distance; a second sparse matrix adds, for
        # each word of the corpus, those of its neighbours, and of the pairs that it ends and begins.
        padded, first = _with_boundaries(corpus.forms, corpus.lengths, len(found))
        pairs, self.first_pair = model.pairs.find(pairs_of(found, padded)), (len(found) + 1) * OFFSETS
        at = first[self.packing.positions]
        columns = padded[at[:, None] + np.arange(-REACH, REACH + 1)] * OFFSETS + np.arange(OFFSETS)
        of_pairs = [self.first_pair + 2 * pairs[at - 1 + side] + side for side in (0, 1)]
        columns = np.concatenate([columns, *of_pairs], axis=1)
        values = np.tile([*SCALES, *[1.0] * (columns.shape[1] - OFFSETS)], words)
        rows = np.repeat(np.arange(words), columns.shape[1])
        shape = (words, self.first_pair + 2 * len(model.pairs.keys) + 2)
        self.neighbours = SparseRows.build(rows, columns.ravel(), values, shape)
        self.occurrences = self.neighbours.transposed()

        # The data appear in the gradient as counts alone, which never change.
        self.tags = torch.from_numpy(corpus.tags[self.packing.positions].astype(np.int64))
        counts = np.bincount(corpus.forms, minlength=len(found))
        frequency = torch.from_numpy(np.append(counts, len(corpus.lengths)).astype(np.float32)).unsqueeze(1)
        self.frequency = self.transposed.times(frequency)
        self.observed = _observed(corpus, self.size)
        self.forbidden = torch.zeros(self.size + 2, self.size)
        if (allowed := model.crf.allowed) is not None:
            impossible = torch.cat([~allowed[:, :-1], ~allowed[:-1, -1:].t()])
            self.forbidden.masked_fill_(impossible, float("-inf"))

    def split(self, point: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the weights of attributes and of pairs of a point, and the transitions, the start and the end."""
        first = self.attributes.width * OFFSETS
        return point[:first], point[first : -self.size - 2], point[-self.size - 2 : -2], point[-2], point[-1]

    def start(self) -> Tensor:
        weights = self.attributes.width * OFFSETS + self.neighbours.width - self.first_pair
        return torch.zeros(weights + self.size + 2, self.size)

    def diagonal(self) -> Tensor:
        words, pairs = len(self.tags), self.occurrences.offsets.diff()[self.first_pair :].unsqueeze(1)
        others = torch.full((self.size + 2, 1), words / 4)
        frequency = torch.cat([self.frequency.repeat_interleave(OFFSETS, 0), pairs, others])
        return 1 / (VARIANCE * frequency / words + self.decay)

    def outputs(self, point: Tensor) -> Tensor:
        weights, pair_weights, *_ = self.split(point)
        by_word = self.attributes.times(weights.reshape(self.attributes.width, -1)).view(-1, self.size)
        return torch.cat([self.neighbours.times(torch.cat([by_word, pair_weights])), point[-self.size - 2 :]])

    def loss(self, outputs: Tensor) -> tuple[float, Tensor]:
        words = torch.arange(len(self.tags))
        scores, rest = outputs[: len(words)], outputs[len(words) :]
        moves = rest + self.forbidden
        found = expectations(self.packing, scores, moves[:-2], moves[-2], moves[-1])
        known = float(scores[words, self.tags].double().sum() + (rest * self.observed).double().sum())
        found.marginals[words, self.tags] -= 1
        expected = torch.cat([found.transitions, found.start.unsqueeze(0), found.end.unsqueeze(0)])
        errors = torch.cat([found.marginals, expected - self.observed]).div_(len(words))
        return (found.log_partition - known) / len(words), errors

    def gradient(self, errors: Tensor) -> Tensor:
        found = self.occurrences.times(errors[: len(self.tags)])
        by_word = found[: self.first_pair].view(-1, OFFSETS * self.size)
        by_attribute = self.transposed.times(by_word).view(-1, self.size)
        return torch.cat([by_attribute, found[self.first_pair :], errors[len(self.tags) :]])


def _with_boundaries(forms: np.ndarray, lengths: np.ndarray, boundary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return words with `REACH` boundaries around each sentence, and where each word is among them ``(words,)``."""
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(forms)) + REACH * (2 * sentence + 1)
    padded = np.full(len(forms) + 2 * REACH * len(lengths), boundary)
    padded[positions] = forms
    return padded, positions


def _observed(corpus: TaggedCorpus, size: int) -> Tensor:
    """Return how often each transition occurs in a corpus, then each first and each last tag ``(tags + 2, tags)``."""
    assert corpus.tags is not None
    tags, ends = corpus.tags.astype(np.int64), corpus.lengths.cumsum()
    full = corpus.lengths > 0
    counts = np.zeros((size + 2, size), np.float32)
    inner = np.ones(len(tags), bool)
    inner[ends[full] - 1] = False
    before = np.flatnonzero(inner)
    np.add.at(counts, (tags[before], tags[before + 1]), 1)
    np.add.at(counts, (np.full(int(full.sum()), size), tags[(ends - corpus.lengths)[full]]), 1)
    np.add.at(counts, (np.full(int(full.sum()), size + 1), tags[ends[full] - 1]), 1)
    return torch.from_numpy(counts)


TINY = 1e-30


class Packing(NamedTuple):
    """How the words of sentences are packed."""

    positions: np.ndarray  # index in the corpus of each packed word (words,)
    offsets: list[int]  # the first packed word of each time step, and the number of words (steps + 1,)

    @classmethod
    def of(cls, lengths: np.ndarray) -> "Packing":
        """Pack sentences of some lengths ``(sentences,)``; empty ones are left out."""
        starts = lengths.cumsum() - lengths
        order = np.argsort(-lengths, kind="stable")
        active = np.array([np.count_nonzero(lengths > step) for step in range(int(lengths.max(initial=0)))], np.int64)
        positions = [starts[order[:count]] + step for step, count in enumerate(active.tolist())]
        return cls(np.concatenate([np.zeros(0, np.int64), *positions]), [0, *active.cumsum().tolist()])

    def steps(self) -> list[slice]:
        """Return the packed words of each time step."""
        return [slice(*bounds) for bounds in zip(self.offsets, self.offsets[1:], strict=False)]


class Expectations(NamedTuple):
    """log Z of all sentences together, marginals ``(words, tags)``, and expected counts.

    The counts are those of transitions ``(tags, tags)``, of first and of last tags ``(tags,)``.
    """

    log_partition: float
    marginals: Tensor
    transitions: Tensor
    start: Tensor
    end: Tensor


def expectations(packing: Packing, scores: Tensor, transitions: Tensor, start: Tensor, end: Tensor) -> Expectations:
    """Run the forward and the backward algorithm over packed scores ``(words, tags)``.

    The transitions are −inf where they are impossible.
    """
    # The largest score of a word, and the highest transition, are taken out before exponentials, and added to log Z at
    # the end, so that nothing overflows.
    steps = packing.steps()
    top, highest = scores.amax(1, keepdim=True), transitions.max()
    e, m, last = (scores - top).exp_(), (transitions - highest).exp(), end.exp()
    a, c = torch.empty_like(e), e.new_empty(len(e), 1)

    # Forwards: sentences are sorted by length, so the active ones are always the first rows of a step.
    now = e[steps[0]] * start.exp()
    for i, step in enumerate(steps):
        if i:
            now = (now[: step.stop - step.start] @ m).mul_(e[step])
        c[step] = now.sum(1, keepdim=True).clamp_min_(TINY)
        now = torch.div(now, c[step], out=a[step])

    # Backwards: at each step some sentences end, with their last word, and the others go on from the step after it.
    b, expected = torch.empty_like(e), torch.zeros_like(m)
    final = e.new_zeros(steps[0].stop)
    after = e.new_zeros(0, e.shape[1])
    for step in reversed(steps):
        size, going_on = step.stop - step.start, len(after)
        ending = slice(step.start + going_on, step.stop)
        normalizer = (a[ending] @ last).clamp_min_(TINY)
        final[going_on:size] = normalizer.log()
        b[step.start : step.start + going_on] = after @ m.t()
        b[ending] = last / normalizer.unsqueeze(1)
        expected += a[step.start : step.start + going_on].t() @ after
        after = b[step] * e[step] / c[step]
    total = top.double().sum() + c.double().log().sum() + final.double().sum() + highest * (len(e) - len(final))
    marginals = a * b
    return Expectations(float(total), marginals, expected * m, marginals[steps[0]].sum(0), _ends(marginals, steps))


def _ends(values: Tensor, steps: list[slice]) -> Tensor:
    """Return the sum of the values at the last words of the sentences ``(tags,)``."""
    following = [step.stop - step.start for step in steps[1:]] + [0]
    sums = [values[step.start + after : step.stop].sum(0) for step, after in zip(steps, following, strict=True)]
    return torch.stack(sums).sum(0)
