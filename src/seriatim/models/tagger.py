"""A tagger: a tag for every word of a sentence, with any sequence layer; and the product of several taggers.

    x_t = [E[w_t] ; characters(w_t) ; F[c_t]],  h = layer(x),  s_t = W h_t + b
    P(y) = Π_t softmax(s_t)[y_t], independent tags; or a conditional random field over all tags (`CRF`)

Z. Huang, W. Xu and K. Yu, "Bidirectional LSTM-CRF models for sequence tagging", 2015; characters and word dropout after
Ma & Hovy 2016 and Lample et al. 2016 (see `seriatim.models.characters` and `seriatim.models.base_models.drop_words`).

A product is an ensemble, or a network together with its simple baseline:

    P(y) ∝ Π_k P_k(y)^{w_k},  Σ_k w_k = 1

Each tagger is a conditional random field, or chooses each tag independently, which is a field whose transitions have
score 0. So the product is such a field, too: its scores and its transitions are the weighted means of theirs. C. Genest
and J. Zidek, "Combining probability distributions: a critique and an annotated bibliography", Statistical Science 1
(1986), logarithmic opinion pools; A. Smith, T. Cohn and M. Osborne, "Logarithmic opinion pools for conditional random
fields", ACL 2005.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import Config, NonNegative, Rate
from ..core.contract import SequenceLayer
from ..core.errors import ConflictError, NotSupportedError, RangeError
from ..core.lengths import valid_mask
from ..data.batches import Buckets
from ..data.tagged_corpus import NO_TAG, TaggedBatch, TaggedCorpus
from ..data.vocabulary import Vocabulary
from ..layers.pointwise import make_dropout
from .base_models import NeuralModel, drop_words, layer_from_config, refuse_memory
from .characters import CharacterModel, WordOptions, build_reader, require_words
from .crf import CRF, bio_transitions
from .hidden_words import HiddenWords
from .probabilities import check_finite

TOGETHER, TOKENS_TOGETHER = 256, 8192
"""Sentences and tokens of a batch that is tagged, so that intermediate results stay in the processor's cache."""


COLUMN_SIZE = 32
"""Width of the embedding of each further column."""


class Options(WordOptions):
    """Options of a tagger, beside those of its layer."""

    output: Literal["softmax", "crf"] | None = None
    """Choose each tag independently (softmax) or the best sequence of tags, which is valid BIO (crf); by default crf if
    the tags mark chunks."""
    word_dropout: Rate = 0.5
    """Rate at which a word that occurs once in the training data is replaced by the unknown word in training."""
    hidden_words: Rate | None = None
    """Rate at which a position is hidden from the layer in training, by default 0.15."""
    word_prediction: NonNegative = 0.1
    """Weight of predicting the hidden words, beside the loss of the tags."""
    vectors: Annotated[str, Field(min_length=1)] | None = None
    """A word2vec or GloVe file in text format with the initial embeddings, as wide as `model.embedding_size`."""
    scheme: Literal["bio", "iob1"] = "bio"
    """How the data marks chunks; answers are always in BIO."""


def refuse_contradictions(config: Config, options: Options) -> None:
    """Raise InputError if settings contradict each other."""
    if config.tokenizer.kind != "word":
        raise ConflictError(
            f"tokenizer.kind: {config.tokenizer.kind!r}, but tags belong to words; leave it out, or set it to word "
            "(model.options.characters says what reads the letters)"
        )
    if config.model.tie_weights:
        raise NotSupportedError("model.tie_weights: a tagger reads words and gives tags; leave it out")
    require_words(config, options)
    if config.training.init is not None and options.vectors is not None:
        raise ConflictError("model.options.vectors: training.init gives the embedding already; leave one of them out")


class TagModel(nn.Module):
    """A model that scores tags ``(batch, time, num_tags)``; without a ``crf`` they are independent of each other."""

    reads_characters = True
    """Whether batches need the ids of the characters of words."""

    def __init__(self, crf: CRF | None) -> None:
        super().__init__()
        self.crf = crf

    @property
    def reads_spelling(self) -> bool:
        """Whether words outside the vocabulary are told apart by their characters."""
        return True

    def losses(self, scores: Tensor, batch: TaggedBatch) -> Tensor:
        """Return −log P(tags) of each sentence ``(batch,)``, in nats, with its gradient; unknown tags are summed out.

        Raises:
            ValueError: the batch has no tags.
        """
        if batch.tags is None:
            raise ValueError("the loss needs tags; read the sentences with labelled=True")
        if self.crf is not None:
            return self.crf.losses(scores, batch.tags, batch.lengths)
        by_word = F.cross_entropy(scores.flatten(0, 1), batch.tags.flatten(), ignore_index=NO_TAG, reduction="none")
        return by_word.view_as(batch.tags).sum(1)

    def loss(self, batch: TaggedBatch) -> Tensor:
        """Return the sum of `losses`."""
        return self.losses(self(batch), batch).sum()

    @torch.no_grad()
    def decode(self, scores: Tensor, lengths: Tensor) -> list[list[int]]:
        """Return the best tags of each sentence, without padding; NotFiniteError is raised for scores without any."""
        if self.crf is not None:
            sequences, totals = self.crf.decode(scores, lengths)
            check_finite(totals)
            return sequences
        check_finite(scores.amax(2)[valid_mask(lengths, scores.shape[1])])
        return _unpadded(scores.argmax(2), lengths)

    @torch.no_grad()
    def probabilities(self, scores: Tensor, lengths: Tensor, tags: list[list[int]]) -> list[list[float]]:
        """Return P(tag of a word | sentence) of the tags that `decode` returns: softmax, or the CRF's marginals."""
        marginals = self.marginals(scores, lengths)
        chosen = torch.zeros(scores.shape[:2], dtype=torch.long)
        chosen[valid_mask(lengths, scores.shape[1])] = torch.tensor(list(itertools.chain(*tags)), dtype=torch.long)
        return _unpadded(marginals.gather(2, chosen.to(marginals.device).unsqueeze(2)).squeeze(2), lengths)

    def marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the probability of each tag at each word ``(batch, time, num_tags)``; meaningless on padding."""
        marginals = scores.softmax(2) if self.crf is None else self.crf.marginals(scores, lengths)
        check_finite(1 / marginals.sum(2)[valid_mask(lengths, scores.shape[1])])  # 0 if no sequence is possible
        return marginals


class Tagger(TagModel, NeuralModel):
    """Sentences to scores of tags ``(batch, time, num_tags)``.

    The layer is any sequence layer that takes no memory, usually a bidirectional one. It reads the embedding of each
    word, followed by the vector that ``characters`` computes, None for words alone, and by the embeddings of
    further columns: ``columns`` are their number, and that of the values that they have together. Dropout applies to
    its inputs and outputs, with one mask per sentence if ``variational``. ``word_dropout`` is the probability with
    which a rare word is replaced by the unknown word in training. ``hidden`` are the rate and the weight of
    `HiddenWords`. InputError is raised if no features are left for the words.
    """

    def __init__(
        self,
        layer: SequenceLayer,
        word_vocabulary: int,
        *,
        num_tags: int,
        characters: CharacterModel | None = None,
        columns: tuple[int, int] = (0, 0),
        crf: CRF | None = None,
        dropout: float = 0.0,
        variational: bool = False,
        word_dropout: float = 0.0,
        hidden: tuple[float, float] = (0.0, 0.0),
        output_bias: bool = True,
    ) -> None:
        super().__init__(crf)
        refuse_memory(layer, "a tagger")
        size = layer.input_size - columns[0] * COLUMN_SIZE - (0 if characters is None else characters.output_size)
        if size < 1:
            raise RangeError(f"the layer reads {layer.input_size} features, all of them of characters; make it wider")
        if not 0 <= word_dropout < 1:
            raise RangeError(f"word_dropout: {word_dropout} is out of range; give a number from 0 and below 1")
        self.embedding = nn.Embedding(word_vocabulary, size)
        self.columns = nn.Embedding(columns[1], COLUMN_SIZE) if columns[0] else None
        self.characters, self.layer = characters, layer
        self.output = nn.Linear(layer.output_size, num_tags, bias=output_bias)
        self.dropout = make_dropout(dropout, variational=variational)
        self.word_dropout = word_dropout
        self.hidden_words = HiddenWords((layer.output_size, size), *hidden) if hidden[0] else None
        bound = (3 / size) ** 0.5
        nn.init.uniform_(self.embedding.weight, -bound, bound)

    def set_vectors(self, ids: Tensor, vectors: Tensor) -> None:
        """Use pretrained vectors ``(n, size)`` as the embeddings of the words ``ids`` ``(n,)``."""
        with torch.no_grad():
            self.embedding.weight[ids] = vectors.to(self.embedding.weight)

    @property
    def reads_spelling(self) -> bool:
        """Whether words outside the vocabulary are told apart by their characters."""
        return self.characters is not None

    def forward(self, batch: TaggedBatch) -> Tensor:
        """Return the score of each tag for each word ``(batch, time, num_tags)``; meaningless on padding."""
        return self.scores(self.outputs(batch))

    def loss(self, batch: TaggedBatch) -> Tensor:
        """Return the sum of `losses`; in training, some words are hidden, and predicted (see `HiddenWords`)."""
        if self.hidden_words is None or not self.training:
            return super().loss(batch)
        is_hidden = self.hidden_words.choose(batch.words, batch.lengths)
        outputs = self.outputs(batch, is_hidden)
        predicted = self.hidden_words.loss(outputs, batch.words, is_hidden, self.embedding.weight)
        return self.losses(self.scores(outputs), batch).sum() + predicted

    def scores(self, outputs: Tensor) -> Tensor:
        """Return the score of each tag ``(batch, time, num_tags)`` for the result of `outputs`."""
        return cast(Tensor, self.output(outputs))

    def outputs(self, batch: TaggedBatch, is_hidden: Tensor | None = None) -> Tensor:
        """Return the outputs of the layer ``(batch, time, size)``, which reads zeros where words are hidden."""
        words = drop_words(batch.words, batch.once, self.word_dropout if self.training else 0.0)
        inputs = self.embedding(words)
        if self.characters is not None:
            inputs = self.characters.append(inputs, batch.spellings)
        if self.columns is not None and batch.columns is not None:
            inputs = torch.cat([inputs, self.columns(batch.columns).flatten(2)], dim=2)
        if is_hidden is not None:
            inputs = inputs.masked_fill(is_hidden.unsqueeze(2), 0.0)
        outputs, _ = self.layer(self.dropout(inputs), lengths=batch.lengths)
        return cast(Tensor, self.dropout(outputs))


def tagger(
    options: Options, config: Config, layer_options: Mapping[str, object], vocabulary: Vocabulary, *, field: bool
) -> Tagger:
    """Build the tagger that a configuration describes.

    ``field`` says whether a CRF chooses the tags; for BIO tags it allows only valid transitions.
    """
    labels, characters, columns = vocabulary.labels, build_reader(options, vocabulary), len(config.data.further)
    width = config.model.embedding_size + (characters.output_size if characters else 0) + columns * COLUMN_SIZE
    return Tagger(
        layer_from_config(config.model, layer_options, input_size=width),
        vocabulary.tokenizer.vocabulary_size,
        num_tags=len(labels),
        characters=characters,
        columns=(columns, vocabulary.tokenizers["columns"].vocabulary_size if columns else 0),
        crf=CRF(len(labels), bio_transitions(labels)) if field else None,
        dropout=config.model.dropout or 0.0,
        variational=config.model.variational_dropout,
        word_dropout=options.word_dropout,
        hidden=(options.hidden_words or 0.0, options.word_prediction),
        output_bias=config.model.output_bias,
    )


def _unpadded(values: Tensor, lengths: Tensor) -> list[list[Any]]:
    return [row[:length] for row, length in zip(values.tolist(), lengths.tolist(), strict=True)]


class TaggerProduct(TagModel):
    """Sentences to scores of tags ``(batch, time, num_tags)``.

    Args:
        models: taggers of the same tags, at least one.
        weights: w, not negative; None for equal weights.
    """

    def __init__(self, models: Sequence[TagModel], weights: Sequence[float] | None = None) -> None:
        weights = [1 / len(models)] * len(models) if weights is None else list(weights)
        super().__init__(_mean_field(models, weights))
        self.models = cast(Sequence[TagModel], nn.ModuleList(models))
        self.weights = weights

    def forward(self, batch: TaggedBatch) -> Tensor:
        """Return the weighted mean of the models' scores."""
        weighted = (weight * model(batch).float() for weight, model in zip(self.weights, self.models, strict=True))
        return torch.stack(list(weighted)).sum(0)


def _mean_field(models: Sequence[TagModel], weights: Sequence[float]) -> CRF | None:
    """Return a field with the weighted sum of the models' transitions; only what all of them allow is possible."""
    fields = [(weight, model.crf) for weight, model in zip(weights, models, strict=True) if model.crf is not None]
    if not fields:
        return None
    bounds = [crf.allowed for _, crf in fields if crf.allowed is not None]
    mean = CRF(fields[0][1].num_tags, torch.stack(bounds).all(0) if bounds else None)
    for name, parameter in mean.named_parameters():
        parameter.data = torch.stack([weight * crf.get_parameter(name).detach() for weight, crf in fields]).sum(0)
    return mean.requires_grad_(False)


# Tags of many sentences


def tag_corpus(
    model: TagModel, corpus: TaggedCorpus, *, probabilities: bool = True
) -> Iterator[tuple[int, list[int], list[float]]]:
    """Yield for each sentence its row, its predicted tags and the probability of each tag, or an empty list."""
    for batch, scores in scored_batches(model, corpus):
        tags = model.decode(scores, batch.lengths)
        values = model.probabilities(scores, batch.lengths, tags) if probabilities else [list[float]()] * len(tags)
        yield from zip(batch.rows.tolist(), tags, values, strict=True)


def scored_batches(model: TagModel, corpus: TaggedCorpus) -> Iterator[tuple[TaggedBatch, Tensor]]:
    """Yield batches of the sentences with the scores of their tags ``(batch, time, tags)``, without gradients."""
    make = functools.partial(corpus.batch, with_characters=model.reads_characters)
    batches = Buckets(corpus.lengths, TOGETHER, make, max_tokens=TOKENS_TOGETHER)
    device = next(model.parameters()).device
    for batch in batches.read(batches.in_order() if len(corpus.lengths) else []):
        batch = batch.to(device)
        with torch.no_grad():
            scores = model(batch)
        yield batch, scores
