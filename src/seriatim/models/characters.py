"""Vectors of words from their characters, for words that are rare or unseen in training.

Convolution: X. Ma and E. Hovy, "End-to-end sequence labeling via bi-directional LSTM-CNNs-CRF", ACL 2016.
Recurrence: G. Lample, M. Ballesteros, S. Subramanian, K. Kawakami and C. Dyer, "Neural architectures for named entity
recognition", NAACL 2016.

    convolution   v = tanh(max_t (W [c_{t−1}; c_t; c_{t+1}] + b))
    recurrence    v = [h→_n ; h←_1]

c_t embedding of character t of n, zero before the first and after the last · h→, h← outputs of any layer that reads the
word forwards and backwards.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.exporting import exporting
from ..core.lengths import valid_mask
from ..data.word_forms import Spellings
from ..layers import layer as build_layer
from .pooling import last_outputs


class CharacterModel(nn.Module):
    """Character ids ``(words, max_length)`` and lengths ``(words,)`` to vectors ``(words, output_size)``."""

    output_size: int

    def append(self, embedded: Tensor, spellings: Spellings | None) -> Tensor:
        """Append the vectors of words to their embeddings ``(batch, time, size)``."""
        assert spellings is not None, "a vocabulary with characters makes batches with spellings"
        vectors = F.embedding(spellings.places, self(spellings.characters, spellings.lengths))
        return torch.cat([embedded, vectors], dim=2)


def _embedding(num_characters: int, size: int) -> nn.Embedding:
    """Return an embedding of characters with the initial values of both papers."""
    embedding, bound = nn.Embedding(num_characters, size), (3 / size) ** 0.5
    nn.init.uniform_(embedding.weight, -bound, bound)
    return embedding


class ConvolutionalCharacters(CharacterModel):
    """The maximum response of each filter in the word.

    ``embedding_size`` is the width of c, ``filters`` the width of v, and ``width`` the number of characters that a
    filter covers; an even number raises ValueError.
    """

    def __init__(self, num_characters: int, *, embedding_size: int = 30, filters: int = 30, width: int = 3) -> None:
        super().__init__()
        self.embedding = _embedding(num_characters, embedding_size)
        if width % 2 == 0:
            raise ValueError(f"width must be odd, a character and as many on either side; got {width}")
        self.filters = nn.Linear(width * embedding_size, filters)
        self.width, self.output_size = width, filters

    def forward(self, characters: Tensor, lengths: Tensor) -> Tensor:
        """Return vectors ``(words, filters)`` for ids ``(words, max_length)``."""
        valid = valid_mask(lengths, characters.shape[1])
        if exporting():  # how many characters there are is not known
            return self.convolved(self.embedding(characters) * valid.unsqueeze(2), valid)
        embedded = self.embedding(characters[valid])  # (N, E): the characters of all words in a row
        position = torch.arange(characters.shape[1], device=lengths.device).expand_as(valid)[valid].unsqueeze(1)
        last = lengths.repeat_interleave(lengths).unsqueeze(1) - 1
        side = self.width // 2
        padded = F.pad(embedded, (0, 0, side, side))
        windows = [
            padded[side + i : side + i + len(embedded)] * ((position + i >= 0) & (position + i <= last))
            for i in range(-side, side + 1)
        ]
        responses = self.filters(torch.cat(windows, dim=1))  # (N, filters)
        return torch.tanh(torch.segment_reduce(responses, "max", lengths=lengths, axis=0, unsafe=True))

    def convolved(self, embedded: Tensor, valid: Tensor) -> Tensor:
        """Return the same for embeddings ``(words, max_length, size)`` that are zero on padding; padding is computed.

        The vector of a word without characters is that of −∞, as in `forward`.
        """
        side, time = self.width // 2, embedded.shape[1]
        padded = F.pad(embedded, (0, 0, side, side))
        windows = torch.cat([padded[:, i : i + time] for i in range(self.width)], dim=2)
        return torch.tanh(self.filters(windows).masked_fill(~valid.unsqueeze(2), -torch.inf).amax(1))


class RecurrentCharacters(CharacterModel):
    """The outputs of a causal layer, given by its name, at the end of the word and, read backwards, at its beginning.

    ``embedding_size`` is the width of c, ``hidden_size`` that of each direction.
    """

    def __init__(
        self, num_characters: int, *, embedding_size: int = 25, hidden_size: int = 25, layer: str = "lstm"
    ) -> None:
        super().__init__()
        self.embedding = _embedding(num_characters, embedding_size)
        self.layer = build_layer(layer, embedding_size, hidden_size, bidirectional=True)
        self.output_size = self.layer.output_size

    def forward(self, characters: Tensor, lengths: Tensor) -> Tensor:
        """Return vectors ``(words, 2 · hidden_size)`` for ids ``(words, max_length)``."""
        outputs, _ = self.layer(self.embedding(characters), lengths=lengths)
        return last_outputs(outputs, lengths, self.output_size // 2)


class JoinedCharacters(CharacterModel):
    """The vectors of several character models, one after another."""

    def __init__(self, models: Sequence[CharacterModel]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.output_size = sum(model.output_size for model in models)

    def forward(self, characters: Tensor, lengths: Tensor) -> Tensor:
        """Return vectors ``(words, output_size)``."""
        return torch.cat([model(characters, lengths) for model in self.models], dim=1)
