"""A tagger: a tag for every word of a sentence, by any sequence layer.

    x_t = [E[w_t] ; characters(w_t)],  h = layer(x),  s_t = W h_t + b
    P(y) = Π_t softmax(s_t)[y_t], each tag for itself; or that of a conditional random field over all (`CRF`)

Z. Huang, W. Xu and K. Yu, "Bidirectional LSTM-CRF models for sequence tagging", 2015; characters and word dropout after
Ma & Hovy 2016 and Lample et al. 2016 (see `seriatim.models.characters`): in training a word seen once is at times taken
for an unknown one, so that the unknown word's embedding learns too.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.tagging import NO_TAG, UNKNOWN, TaggedBatch
from ..errors import InputError
from ..layer import SequenceLayer
from ..layers.dropout import dropout as make_dropout
from .characters import CharacterModel
from .crf import CRF


class Tagger(nn.Module):
    """Sentences to tags.

    Args:
        layer: any sequence layer that needs no memory, usually a bidirectional one. It reads the words' embeddings,
            and behind them what the characters give.
        word_vocabulary: number of ids of words, the unknown one included.
        num_tags: number of tags.
        characters: what makes a vector of a word's characters; None for words alone.
        crf: what scores sequences of tags; None where each tag is chosen for itself.
        dropout: rate on what the layer reads and on what it gives.
        variational: one dropout mask a sentence instead of one a word.
        word_dropout: rate at which rare words are taken for unknown in training.
        rare: which words are rare: booleans ``(word_vocabulary,)``; needed for word dropout.

    Raises:
        InputError: a layer that takes a memory, widths that leave nothing for words, a rate outside [0, 1), or word
            dropout without ``rare``.
    """

    rare: Tensor | None

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
        rare: Tensor | None = None,
    ) -> None:
        super().__init__()
        if layer.takes_memory:
            raise InputError("model.options.memory_size: a tagger has no memory to attend to; leave it out")
        size = layer.input_size - (0 if characters is None else characters.output_size)
        if size < 1:
            raise InputError(f"the layer reads {layer.input_size} features, all of them of characters; make it wider")
        if not 0 <= word_dropout < 1 or (word_dropout and rare is None):
            raise InputError(f"word_dropout must lie in [0, 1), and needs to know rare words; got {word_dropout}")
        self.embedding = nn.Embedding(word_vocabulary, size)
        self.characters, self.layer, self.crf = characters, layer, crf
        self.output = nn.Linear(layer.output_size, num_tags)
        self.dropout = make_dropout(dropout, variational=variational)
        self.word_dropout = word_dropout
        self.register_buffer("rare", rare, persistent=False)
        bound = (3 / size) ** 0.5
        nn.init.uniform_(self.embedding.weight, -bound, bound)

    def set_vectors(self, ids: Tensor, vectors: Tensor) -> None:
        """Begins with vectors made elsewhere: ``vectors`` ``(n, size)`` for the words ``ids`` ``(n,)``.

        Raises:
            InputError: vectors of another width than the embeddings.
        """
        size = self.embedding.embedding_dim
        if vectors.shape[1] != size:
            raise InputError(
                f"model.embedding_size: {size}, but the vectors have {vectors.shape[1]} numbers; make them equal"
            )
        with torch.no_grad():
            self.embedding.weight[ids] = vectors.to(self.embedding.weight)

    def scores(self, batch: TaggedBatch) -> Tensor:
        """Each word's score of each tag ``(batch, time, num_tags)``; of no meaning on padding."""
        words = batch.words
        if self.training and self.word_dropout and self.rare is not None:
            dropped = self.rare[words] & (torch.rand(words.shape, device=words.device) < self.word_dropout)
            words = words.masked_fill(dropped, UNKNOWN)
        inputs = self.embedding(words)
        if self.characters is not None:
            spelled = self.characters(batch.characters, batch.character_lengths)
            inputs = torch.cat([inputs, F.embedding(batch.distinct, spelled)], dim=2)
        hidden, _ = self.layer(self.dropout(inputs), lengths=batch.lengths)
        scores: Tensor = self.output(self.dropout(hidden))
        return scores

    def loss(self, batch: TaggedBatch) -> Tensor:
        """The sum of −log P(tags) over sentences, in nats, with its gradient; unknown tags are summed out.

        Raises:
            ValueError: the batch has no tags.
        """
        if batch.tags is None:
            raise ValueError("the loss needs tags; read the sentences with labelled=True")
        scores = self.scores(batch)
        if self.crf is not None:
            return self.crf.loss(scores, batch.tags, batch.lengths)
        return F.cross_entropy(scores.flatten(0, 1), batch.tags.flatten(), ignore_index=NO_TAG, reduction="sum")

    @torch.no_grad()
    def decode(self, batch: TaggedBatch) -> list[list[int]]:
        """The best tags of each sentence, without padding."""
        scores = self.scores(batch)
        if self.crf is not None:
            return self.crf.decode(scores, batch.lengths)[0]
        best = scores.argmax(2).tolist()
        return [row[:length] for row, length in zip(best, batch.lengths.tolist(), strict=True)]
