"""What a network reads of a word beside its index: its characters, and hashed features."""

from typing import Literal

from pydantic import Field, field_validator

from ..config import Config, Count, Section
from ..core.errors import InputError
from ..data.vocabulary import Vocabulary
from .characters import CharacterModel, ConvolutionalCharacters, JoinedCharacters, RecurrentCharacters
from .word_features import WordFeatures


class WordOptions(Section):
    """Options of the vectors of words."""

    characters: Literal["convolution", "recurrent", "none"] = "convolution"
    """Layer that reads the characters of a word (convolution: Ma & Hovy 2016; recurrent: Lample et al. 2016)."""
    character_size: Count = 30
    """Width of the embedding of a character."""
    word_features: list[Literal["prefix", "suffix", "shape", "lowercase"]] = Field(
        default=["prefix", "suffix", "shape", "lowercase"]
    )
    """Hashed features of each word beside its characters (Ratnaparkhi 1996); see `seriatim.models.word_features`."""
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


def refuse_contradictions(config: Config, options: WordOptions) -> None:
    """Raise InputError if a configuration has no words whose characters could be read."""
    widening = {"characters": options.characters, "word_features": ", ".join(options.word_features) or "none"}
    for name, value in widening.items():
        advice = "set it to none" if name == "characters" else "leave it out"
        if config.tokenizer.kind not in ("word", None) and value != "none":
            raise InputError(
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
