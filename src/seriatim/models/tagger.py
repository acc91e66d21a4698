"""A tagger: a tag for every word of a sentence, by any sequence layer.

    x_t = [E[w_t] ; characters(w_t)],  h = layer(x),  s_t = W h_t + b
    P(y) = Π_t softmax(s_t)[y_t], each tag for itself; or that of a conditional random field over all (`CRF`)

Z. Huang, W. Xu and K. Yu, "Bidirectional LSTM-CRF models for sequence tagging", 2015; characters and word dropout after
Ma & Hovy 2016 and Lample et al. 2016 (see `seriatim.models.characters`): in training a word seen once is at times taken
for an unknown one, so that the unknown word's embedding learns too.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import MemoryLayer, SequenceLayer
from ..core.errors import InputError
from ..core.lengths import valid_mask
from ..data.tagged_corpus import NO_TAG, TaggedBatch
from ..layers.pointwise import dropout as make_dropout
from .base_models import drop_words
from .characters import CharacterModel
from .crf import CRF


class TagModel(nn.Module):
    """What gives scores of tags ``(batch, time, num_tags)`` to a `TaggedBatch`, and what follows from them.

    Args:
        crf: what scores sequences of tags; None where each tag is chosen for itself.
    """

    def __init__(self, crf: CRF | None) -> None:
        super().__init__()
        self.crf = crf

    def losses(self, scores: Tensor, batch: TaggedBatch) -> Tensor:
        """−log P(tags) of each sentence ``(batch,)``, in nats, with its gradient; unknown tags are summed out.

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
        """The sum of `losses`."""
        return self.losses(self(batch), batch).sum()

    @torch.no_grad()
    def decode(self, scores: Tensor, lengths: Tensor) -> list[list[int]]:
        """The best tags of each sentence, without padding."""
        if self.crf is not None:
            return self.crf.decode(scores, lengths)[0]
        return _unpadded(scores.argmax(2), lengths)

    @torch.no_grad()
    def probabilities(self, scores: Tensor, lengths: Tensor, tags: list[list[int]]) -> list[list[float]]:
        """P(tag of a word | sentence) of each of ``tags``, those of `decode`: softmax, or the field's marginals."""
        found = self.marginals(scores, lengths)
        chosen = torch.zeros(scores.shape[:2], dtype=torch.long)
        chosen[valid_mask(lengths, scores.shape[1])] = torch.tensor(list(itertools.chain(*tags)), dtype=torch.long)
        return _unpadded(found.gather(2, chosen.to(found.device).unsqueeze(2)).squeeze(2), lengths)

    def marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Each tag's probability at each word ``(batch, time, num_tags)``; of no meaning on padding."""
        return scores.softmax(2) if self.crf is None else self.crf.marginals(scores, lengths)


class Tagger(TagModel):
    """Sentences to scores of tags ``(batch, time, num_tags)``, and what follows from them.

    Args:
        layer: any sequence layer that needs no memory, usually a bidirectional one. It reads the words' embeddings,
            and behind them what the characters give.
        word_vocabulary: number of ids of words.
        num_tags: number of tags.
        characters: what makes a vector of a word's characters; None for words alone.
        crf: what scores sequences of tags; None where each tag is chosen for itself.
        dropout: rate on what the layer reads and on what it gives.
        variational: one dropout mask a sentence instead of one a word.
        word_dropout: rate at which words seen once are taken for unknown in training.
        output_bias: whether the output layer has a bias.

    Raises:
        InputError: a layer that takes a memory, widths that leave nothing for words, or a rate outside [0, 1).
    """

    def __init__(
        self,
        layer: SequenceLayer,
        word_vocabulary: int,
        *,
        num_tags: int,
        characters: CharacterModel | None = None,
        crf: CRF | None = None,
        dropout: float = 0.0,
        variational: bool = False,
        word_dropout: float = 0.0,
        output_bias: bool = True,
    ) -> None:
        super().__init__(crf)
        if isinstance(layer, MemoryLayer):
            raise InputError("model.options.memory_size: a tagger has no memory to attend to; leave it out")
        size = layer.input_size - (0 if characters is None else characters.output_size)
        if size < 1:
            raise InputError(f"the layer reads {layer.input_size} features, all of them of characters; make it wider")
        if not 0 <= word_dropout < 1:
            raise InputError(f"word_dropout must lie in [0, 1); got {word_dropout}")
        self.embedding = nn.Embedding(word_vocabulary, size)
        self.characters, self.layer = characters, layer
        self.output = nn.Linear(layer.output_size, num_tags, bias=output_bias)
        self.dropout = make_dropout(dropout, variational=variational)
        self.word_dropout = word_dropout
        bound = (3 / size) ** 0.5
        nn.init.uniform_(self.embedding.weight, -bound, bound)

    def set_vectors(self, ids: Tensor, vectors: Tensor) -> None:
        """Begins with vectors made elsewhere: ``vectors`` ``(n, size)`` for the words ``ids`` ``(n,)``."""
        with torch.no_grad():
            self.embedding.weight[ids] = vectors.to(self.embedding.weight)

    def forward(self, batch: TaggedBatch) -> Tensor:
        """Each word's score of each tag ``(batch, time, num_tags)``; of no meaning on padding."""
        words = drop_words(batch.words, batch.once, self.word_dropout if self.training else 0.0)
        inputs = self.embedding(words)
        if self.characters is not None:
            assert batch.spellings is not None, "a vocabulary with characters makes batches with spellings"
            characters, lengths, places = batch.spellings
            inputs = torch.cat([inputs, F.embedding(places, self.characters(characters, lengths))], dim=2)
        hidden, _ = self.layer(self.dropout(inputs), lengths=batch.lengths)
        scores: Tensor = self.output(self.dropout(hidden))
        return scores


class Taggers(TagModel):
    """Several taggers of one vocabulary as one: a word's tags have the mean of the models' probabilities.

    Where a field forbids transitions, sequences have the product of these, among those that are allowed.
    """

    def __init__(self, models: Sequence[Tagger]) -> None:
        allowed = next((model.crf.allowed for model in models if model.crf is not None), None)
        super().__init__(None if allowed is None else CRF(len(allowed) - 1, allowed))
        self.models: Any = nn.ModuleList(models)

    def forward(self, batch: TaggedBatch) -> Tensor:
        """The logarithm of the mean of the models' marginals ``(batch, time, num_tags)``."""
        found = torch.stack([model.marginals(model(batch), batch.lengths) for model in self.models]).mean(0)
        return found.clamp_min(torch.finfo(found.dtype).tiny).log()


def _unpadded(values: Tensor, lengths: Tensor) -> list[list[Any]]:
    return [row[:length] for row, length in zip(values.tolist(), lengths.tolist(), strict=True)]
