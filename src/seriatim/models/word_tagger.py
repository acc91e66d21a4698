"""Builds the tagger that a configuration describes."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from ..config import Config, Count, Model, Rate, Section
from ..core.errors import InputError
from ..data.vocabulary import Vocabulary
from .base_models import layer_from_config
from .characters import CharacterModel, ConvolutionalCharacters, RecurrentCharacters
from .crf import CRF, bio_transitions
from .tagger import Tagger


class Options(Section):
    """Options of a tagger, beside those of its layer."""

    characters: Literal["convolution", "recurrent", "none"] = "convolution"
    """What reads the letters of a word."""
    character_size: Count = 30
    """Width of the embedding of a letter."""
    filters: Count = 50
    """Width of what the letters of a word give; of each direction where they are read by a recurrence."""
    output: Literal["softmax", "crf"] | None = None
    """Predict each tag alone (softmax) or the best sequence of tags (crf); by default crf where tags mark chunks."""
    word_dropout: Rate = 0.5
    """Rate at which a word that occurs once in the training data is replaced by the unknown word while training."""
    vectors: Annotated[str, Field(min_length=1)] | None = None
    """Text file of word vectors to start from."""
    scheme: Literal["bio", "iob1"] = "bio"
    """How the data marks chunks; answers are always in BIO."""


def refuse_contradictions(config: Config, options: Options) -> None:
    """Raise InputError if settings contradict each other."""
    if config.tokenizer.kind != "word":
        raise InputError(
            f"tokenizer.kind: {config.tokenizer.kind!r}, but it is words that have tags; leave it out, or take word "
            "(model.options.characters says what reads their letters)"
        )
    if config.model.tie_weights:
        raise InputError("model.tie_weights: a tagger reads words and gives tags; leave it out")
    if config.training.init is not None and options.characters != "none":
        raise InputError(
            f"model.options.characters: {options.characters} widens what the layer reads, so that training.init cannot "
            "give the layer; set it to none"
        )
    if config.training.init is not None and options.vectors is not None:
        raise InputError("model.options.vectors: training.init gives the embedding already; leave one of them out")


def tagger(
    options: Options, config: Model, layer_options: Mapping[str, object], vocabulary: Vocabulary, *, field: bool
) -> Tagger:
    """Build the tagger.

    Args:
        options: the options of the tagger.
        config: names, sizes and rates.
        layer_options: the options of the layer.
        vocabulary: words and labels; also characters unless ``options.characters`` is `none`.
        field: whether a CRF chooses the tags; for BIO tags it allows only valid transitions.
    """
    characters, labels = _characters(options, vocabulary), vocabulary.labels
    width = config.embedding_size + (characters.output_size if characters else 0)
    return Tagger(
        layer_from_config(config, layer_options, input_size=width),
        vocabulary.tokenizer.vocabulary_size,
        num_tags=len(labels),
        characters=characters,
        crf=CRF(len(labels), bio_transitions(labels)) if field else None,
        dropout=config.dropout,
        variational=config.variational_dropout,
        word_dropout=options.word_dropout,
        output_bias=config.output_bias,
    )


def _characters(options: Options, vocabulary: Vocabulary) -> CharacterModel | None:
    """Build the layer that reads the characters of words."""
    if options.characters == "none":
        return None
    num_characters = vocabulary.tokenizers["characters"].vocabulary_size
    size, filters = options.character_size, options.filters
    if options.characters == "recurrent":
        return RecurrentCharacters(num_characters, embedding_size=size, hidden_size=filters)
    return ConvolutionalCharacters(num_characters, embedding_size=size, filters=filters)
