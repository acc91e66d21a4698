"""What a network reads of a word beside its index: vectors from its characters, and from hashed features.

**Characters**, for words that are rare or unseen in training. Convolution: X. Ma and E. Hovy, "End-to-end sequence
labeling via bi-directional LSTM-CNNs-CRF", ACL 2016. Recurrence: G. Lample, M. Ballesteros, S. Subramanian, K.
Kawakami and C. Dyer, "Neural architectures for named entity recognition", NAACL 2016.

    convolution   v = tanh(max_t (W [c_{t−1}; c_t; c_{t+1}] + b))
    recurrence    v = [h→_n ; h←_1]

c_t embedding of character t of n, zero before the first and after the last · h→, h← outputs of any layer that reads the
word forwards and backwards.

**Hashed features**: prefixes, suffixes, the shape, and the word in lower case.

    v = Σ_k E[1 + hash(k, f_k) mod (rows − 1)]

f_k feature k of the word, such as its last three characters · E one embedding for all features, zero at first, so that
a feature that never occurred in training adds nothing, up to collisions of hashes.

Prefixes, suffixes and shapes: A. Ratnaparkhi, "A maximum entropy model for part-of-speech tagging", EMNLP 1996.
Hashing: K. Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009. The sum of embeddings:
P. Bojanowski et al., "Enriching word vectors with subword information", TACL 2017. Features are computed from ids of
characters, so that a batch need not hold text. Characters that did not occur in training are all alike.
"""

import ctypes
from collections.abc import Sequence
from typing import Literal, cast

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from ..compiler.cpp.toolchain import typed_library
from ..config import Config, Count, Section
from ..core.errors import ConflictError, UnknownNameError, nearest
from ..core.exporting import exporting
from ..core.lengths import valid_mask
from ..data.vocabulary import Vocabulary
from ..data.word_forms import Spellings
from ..layers import layer as build_layer
from .base_models import last_outputs


class CharacterModel(nn.Module):
    """Character ids ``(words, max_length)`` and lengths ``(words,)`` to vectors ``(words, output_size)``."""

    output_size: int

    def append(self, embedded: Tensor, spellings: Spellings | None) -> Tensor:
        """Append the vectors of words to their embeddings ``(batch, time, size)``."""
        assert spellings is not None, "a vocabulary with characters makes batches with spellings"
        vectors = F.embedding(spellings.indices, self(spellings.characters, spellings.lengths))
        return torch.cat([embedded, vectors], dim=2)


def compiled_words() -> ctypes.CDLL | None:
    """Return compiled functions that read words, or None if nothing can be compiled."""
    return typed_library('#include "words.h"\n', sum_features="ppqqqpppqqp", convolve="ppppppqqqqq")


def fast_words(*tensors: Tensor) -> ctypes.CDLL | None:
    """Return the compiled functions if they can read some tensors, and no gradient is needed."""
    is_fast = not torch.is_grad_enabled() and not exporting()
    is_fast &= all(x.is_cpu and x.is_contiguous() and type(x) in (Tensor, nn.Parameter) for x in tensors)
    return compiled_words() if is_fast and {x.dtype for x in tensors} == {torch.long, torch.float32} else None


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
        tensors = (characters, lengths, self.embedding.weight, self.filters.weight, self.filters.bias)
        if (functions := fast_words(*tensors)) is not None:
            responses = self.filters.bias.new_empty(len(lengths), self.output_size)
            sizes = *characters.shape, self.embedding.embedding_dim, self.width, self.output_size
            functions.convolve(*(x.data_ptr() for x in (*tensors, responses)), *sizes)
            return torch.tanh(responses)
        valid = valid_mask(lengths, characters.shape[1])
        if exporting() or not torch.is_grad_enabled():  # few operations, and any number of characters
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


FEATURES = ("prefix", "suffix", "shape", "lowercase")
"""The kinds of features; affixes have one to `LONGEST` characters."""
LONGEST = 4
ROWS = 1 << 15
PRIME, START, SPREAD = 1_000_003, 0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64)
"""Factor and start of the polynomial hash, and a factor that spreads it over all bits (the constants of splitmix64: G.
Steele, D. Lea and C. Flood, OOPSLA 2014). Products of 64-bit integers wrap around."""


class WordFeatures(CharacterModel):
    """Ids of characters ``(words, max_length)`` and lengths ``(words,)`` to vectors ``(words, output_size)``.

    Args:
        alphabet: the character of every id; texts of special ids have several characters.
        kinds: some of `FEATURES`, at least one.
        size: width of v.
        rows: rows of E, of which row 0 is zero: that of affixes that are longer than their word.
    """

    def __init__(self, alphabet: Sequence[str], kinds: Sequence[str], *, size: int, rows: int = ROWS) -> None:
        super().__init__()
        if unknown := next((kind for kind in kinds if kind not in FEATURES), None):
            raise UnknownNameError(f"unknown feature {unknown!r}; {nearest(unknown, list(FEATURES))}")
        self.kinds, self.output_size, self.rows = frozenset(kinds), size, rows
        ids = {character: i for i, character in enumerate(alphabet)}
        lower = [ids.get(character.lower(), i) for i, character in enumerate(alphabet)]
        self.lower: Tensor
        self.register_buffer("lower", torch.tensor(lower), persistent=False)
        self.class_of: Tensor
        self.register_buffer("class_of", torch.tensor(list(map(_class_of, alphabet))), persistent=False)
        self.embedding = nn.EmbeddingBag(rows, size, mode="sum", padding_idx=0)
        nn.init.zeros_(self.embedding.weight)

    def forward(self, characters: Tensor, lengths: Tensor) -> Tensor:
        """Return vectors ``(words, output_size)``."""
        table, tensors = self.embedding.weight, (characters, lengths, self.lower, self.class_of, self.embedding.weight)
        if (functions := fast_words(*tensors)) is None:
            return cast(Tensor, self.embedding(self.rows_of(characters, lengths)))
        vectors = table.new_zeros(len(lengths), self.output_size)
        kinds = sum(1 << bit for bit, kind in enumerate(FEATURES) if kind in self.kinds)
        ids, sizes, *tables = (x.data_ptr() for x in tensors)
        functions.sum_features(ids, sizes, *characters.shape, kinds, *tables, *table.shape, vectors.data_ptr())
        return vectors

    def rows_of(self, characters: Tensor, lengths: Tensor) -> Tensor:
        """Return the row of E of each feature ``(words, features)``; 0 for an affix that is longer than the word."""
        lower = self.lower[characters]
        keys: list[Tensor] = []
        if "prefix" in self.kinds:
            keys += self._affixes(lower, lengths, from_end=False)
        if "suffix" in self.kinds:
            keys += self._affixes(lower, lengths, from_end=True)
        if "shape" in self.kinds:
            classes = self.class_of[characters]
            changes = torch.ones_like(classes, dtype=torch.bool)
            changes[:, 1:] = classes[:, 1:] != classes[:, :-1]
            keys.append(_hash(classes, changes & _before(lengths, classes), 2 * LONGEST))
        if "lowercase" in self.kinds:
            keys.append(_hash(lower, _before(lengths, lower), 2 * LONGEST + 1))
        stacked = torch.stack(keys, dim=1)
        return torch.where(stacked == 0, 0, 1 + stacked % (self.rows - 1))

    def _affixes(self, characters: Tensor, lengths: Tensor, *, from_end: bool) -> list[Tensor]:
        """Return the hash of the first or last 1 … `LONGEST` characters of each word, 0 for words that are shorter."""
        key = torch.full_like(lengths, START + from_end)
        keys = []
        for n in range(min(LONGEST, characters.shape[1])):
            index = (lengths - 1 - n).clamp_min(0) if from_end else torch.full_like(lengths, n)
            key = key * PRIME + characters.gather(1, index.unsqueeze(1)).squeeze(1)
            keys.append(torch.where(lengths > n, _mixed(key + n), 0))
        return keys


def _before(lengths: Tensor, like: Tensor) -> Tensor:
    """Return whether a position is within its word ``(words, max_length)``."""
    return torch.arange(like.shape[1], device=like.device) < lengths.unsqueeze(1)


def _hash(symbols: Tensor, chosen: Tensor, kind: int) -> Tensor:
    """Return the hash of the chosen symbols of each word ``(words,)``, in their order."""
    key = torch.full_like(symbols[:, 0], START + kind)
    for t in range(symbols.shape[1]):
        key = torch.where(chosen[:, t], key * PRIME + symbols[:, t], key)
    return _mixed(key)


def _mixed(key: Tensor) -> Tensor:
    """Spread a hash over all its bits, and make it positive."""
    key = (key ^ (key >> 29)) * SPREAD
    return (key ^ (key >> 32)) & ((1 << 62) - 1)


def _class_of(character: str) -> int:
    """Return the class of a character in a shape: upper case, lower case, another letter, digit, or anything else."""
    if len(character) != 1:
        return 5
    if character.isupper():
        return 1
    if character.islower():
        return 2
    return 3 if character.isalpha() else 4 if character.isdigit() else 6 + ord(character)


class WordOptions(Section):
    """Options of the vectors of words."""

    characters: Literal["convolution", "recurrent", "none"] = "convolution"
    """Layer that reads the characters of a word (convolution: Ma & Hovy 2016; recurrent: Lample et al. 2016)."""
    character_size: Count = 30
    """Width of the embedding of a character."""
    word_features: list[Literal["prefix", "suffix", "shape", "lowercase"]] = Field(
        default=["prefix", "suffix", "shape", "lowercase"]
    )
    """Hashed features of each word beside its characters (Ratnaparkhi 1996); see `seriatim.models.characters`."""
    feature_size: Count = 64
    """Width of the sum of the embeddings of these features."""
    filters: Count = 50
    """Width of the vector of a word's characters; of each of its directions, if they are read by a recurrence."""

    @field_validator("word_features", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """Accept names with commas between them, as the command line gives them."""
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value

    @property
    def reads_characters(self) -> bool:
        """Whether anything but the index of a word is read."""
        return self.characters != "none" or bool(self.word_features)


def require_words(config: Config, options: WordOptions) -> None:
    """Raise InputError if a configuration has no words whose characters could be read."""
    widening = {"characters": options.characters, "word_features": ", ".join(options.word_features) or "none"}
    for name, value in widening.items():
        advice = "set it to none" if name == "characters" else "leave it out"
        if config.tokenizer.kind not in ("word", None) and value != "none":
            raise ConflictError(
                f"model.options.{name}: {value} reads words, but the tokens are of kind {config.tokenizer.kind}; "
                f"{advice}, or take tokenizer.kind word"
            )


def build_reader(options: WordOptions, vocabulary: Vocabulary) -> CharacterModel | None:
    """Build the model of the characters of words; None if only their index is read."""
    if not options.reads_characters:
        return None
    size, filters, tokenizer = options.character_size, options.filters, vocabulary.tokenizers["characters"]
    readers: list[CharacterModel] = []
    if options.characters == "recurrent":
        readers.append(RecurrentCharacters(tokenizer.vocabulary_size, embedding_size=size, hidden_size=filters))
    elif options.characters == "convolution":
        readers.append(ConvolutionalCharacters(tokenizer.vocabulary_size, embedding_size=size, filters=filters))
    if options.word_features:
        alphabet = [tokenizer.describe(i) for i in range(tokenizer.vocabulary_size)]
        readers.append(WordFeatures(alphabet, options.word_features, size=options.feature_size))
    return readers[0] if len(readers) == 1 else JoinedCharacters(readers)
