"""What can be shown of classifiers, networks and bags of n-grams: the effect of each token on the label, and mistakes.

If a classifier reads from left to right, its label is predicted after every token. For every classifier, the label is
predicted without each token (occlusion: M. Zeiler and R. Fergus, ECCV 2014; leave-one-out for words: J. Li, W. Monroe
and D. Jurafsky, "Understanding neural networks through representation erasure", 2016). This measures what a token
adds at its position, not its meaning by itself.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..counting.bag import Bag
from ..data.pairs import Side, encode_side
from ..data.tables import Labelled
from ..data.tokenizers import Tokenizer
from ..data.word_forms import Spellings, WordForms
from ..evaluation.error_analysis import MAX_ITEMS, AnsweredItem, Mistakes, compare_labels, evaluated_items, evenly
from ..evaluation.token_scores import token_text
from ..layers.positions import learned_positions
from ..models import Classifier
from ..models.exported_forms import label_forms
from .documents import AnyClassifier, Documents, LabelledTextReader, predictions, probabilities
from .explainer import (
    MAX_LINE,
    Example,
    Examples,
    ExplainedModel,
    Explainer,
    LabelEffect,
    LabelledData,
    Wording,
    first_line,
    no_words,
)

WORDING = Wording(title="classifier", prediction="the distribution of the label", correct="labels correct")


def explain_classifier(explained: ExplainedModel[Classifier], reader: LabelledTextReader) -> Explainer:
    """Compose what can be shown of a network."""
    examples = ClassifierExamples(explained)
    return Explainer(
        explained,
        WORDING,
        functools.partial(first_line, tokenizer=examples.tokenizer),
        inputs=examples,
        predictions=examples.predictions,
        label_effect=examples.label_effect,
        export=lambda: label_forms(explained.model),
        labelled=LabelledTexts(explained, reader),
    )


class ClassifierExamples(Examples[Classifier]):
    """Texts as a network reads them, with the label that it predicts as the target."""

    @functools.cached_property
    def forms(self) -> WordForms | None:
        """The words with an id of their own each, if the model reads characters; None otherwise."""
        return WordForms(self.vocabulary) if self.model.characters is not None else None

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the inputs, which knows every word if the model reads characters."""
        return self.forms or self.vocabulary.tokenizer

    def token_names(self, ids: Sequence[int], tokenizer: Tokenizer | None = None) -> tuple[str, ...]:
        """Return the names of tokens; words outside the vocabulary are named, too, if their characters are read."""
        return tuple(map((tokenizer or self.tokenizer).describe, ids))

    def batch(self, examples: Sequence[Example]) -> tuple[Tensor, None, Spellings | None]:
        """Return what the model reads of examples of one length; ids of unknown words may be those of other forms."""
        if self.forms is None:
            return self.model_inputs(self.tensors(examples)[0])
        ids = [list(self.forms.ids(example.words)) for example in examples]
        return self.model_inputs(torch.tensor(ids, dtype=torch.long, device=self.explained.device))

    def model_inputs(self, tokens: Tensor) -> tuple[Tensor, None, Spellings | None]:
        """Return what the model reads of tokens ``(batch, time)`` without padding."""
        forms = self.forms
        return (tokens, None, None) if forms is None else (forms.known(tokens), None, forms.spellings(tokens))

    def ids(self, text: str) -> np.ndarray:
        """Return the tokens of a text without line ends ``(tokens,)``, and refuse a text without tokens."""
        ids = encode_side([text], self.tokenizer).ids
        if not len(ids):
            raise no_words()
        return ids

    def read(self, item: object) -> list[Example]:
        """Return the text with the label that the model predicts."""
        ids = encode_side([str(item)], self.tokenizer).ids.tolist()[: learned_positions(self.model)]
        if not ids:
            return []
        with torch.no_grad():
            label = int(self.model(*self.model_inputs(torch.tensor([ids], device=self.explained.device))).argmax())
        words = () if self.forms is None else tuple(map(self.forms.form, ids))
        return [Example(tuple(ids), (label,), self.token_names(ids), words=words)]

    def forward(self, batch: Sequence[Example]) -> Tensor:
        """Return the logits of the labels ``(batch, labels)``."""
        logits: Tensor = self.model(*self.batch(batch))
        return logits

    def place_losses(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        """Return −log P of the only answer, the label."""
        return F.cross_entropy(self.forward(batch).double(), self.tensors(batch)[1][:, 0], reduction="none")

    def target_names(self, example: Example) -> tuple[str, ...]:
        """Return the name of the label."""
        return tuple(self.vocabulary.labels[label] for label in example.targets)

    def predictions(self, batch: Sequence[Example]) -> Tensor:
        """Return P(label) of each text."""
        return self.model.probabilities(*self.batch(batch)).unsqueeze(1)

    def label_effect(self, text: str) -> LabelEffect:
        """Return how the label that the network predicts depends on each of the first tokens, and the answer."""
        ids = self.ids(text)[: min(MAX_LINE, learned_positions(self.model) or MAX_LINE)]
        without = self.probabilities([np.delete(ids, i) for i in range(len(ids))])
        tokens = [token_text(self.tokenizer, token) for token in ids.tolist()]
        full = self.probabilities([ids])[0]
        answer = probabilities(self.explained.answering, self.documents([ids], [text]))[0]
        return LabelEffect(tokens, list(self.vocabulary.labels), full, without, answer)

    def probabilities(self, texts: list[np.ndarray]) -> np.ndarray:
        """Return P(label) of texts given as token ids ``(texts, labels)``, by the network alone."""
        return probabilities(self.model, self.documents(texts))

    def documents(self, texts: list[np.ndarray], strings: Sequence[str] | None = None) -> Documents:
        """Return texts, given as token ids, as a model reads them; a simple baseline reads the ``strings``."""
        labels = np.zeros(len(texts), dtype=np.int64)
        return Documents(Side.join(texts), labels, self.vocabulary, strings=strings, forms=self.forms)


@dataclass(frozen=True)
class LabelledTexts(LabelledData):
    """Reads labelled texts, and answers them as the run does: by a network or a bag of n-grams."""

    explained: ExplainedModel[Classifier | Bag]
    reader: LabelledTextReader

    def rows(self, source: str, file_format: str | None) -> Iterator[Labelled]:
        """Read the texts of some data, with labels as the model spells them."""
        return self.reader.rows(source, "test", file_format, labels=self.explained.vocabulary.labels)

    def mistakes(self, source: str, file_format: str | None) -> Mistakes:
        """Return the mistakes; the figure of an item is the probability of its label."""
        texts = [row.text for row in self.rows(source, file_format)]
        whole = self.reader.read(source, "test", self.explained.vocabulary, file_format=file_format)
        return mistakes_of(self.explained.answering, whole, texts)

    def reference_answer(self, text: str, source: str, file_format: str | None) -> Sequence[str] | None:
        """Return the label of a text."""
        rows = self.rows(source, file_format)
        return next(([row.label] for row in rows if row.text.strip() == text), None)

    def held_out(self, source: str, file_format: str | None, *, count: int, tokens: int) -> Sequence[object]:
        """Return texts of some data that are not blank, spread over them."""
        return evenly([row.text for row in self.rows(source, file_format) if row.text.strip()], count)


def explain_bag(explained: ExplainedModel[Bag], reader: LabelledTextReader) -> Explainer:
    """Compose what can be shown of a bag of n-grams, which has no layers and no order of reading.

    It reads the characters of words outside the vocabulary of tokens, so that no text has unknown words.
    """
    excerpt = functools.partial(first_line, tokenizer=explained.vocabulary.tokenizer, notes_unknown=False)
    effect = functools.partial(bag_effect, explained)
    return Explainer(explained, WORDING, excerpt, label_effect=effect, labelled=LabelledTexts(explained, reader))


def bag_effect(explained: ExplainedModel[Bag], text: str) -> LabelEffect:
    """Return how the predicted label depends on each of the first words."""
    words = text.split()[:MAX_LINE]
    if not words:
        raise no_words()
    variants = [words, *(words[:i] + words[i + 1 :] for i in range(len(words)))]
    probabilities = explained.model.probabilities([" ".join(variant) for variant in variants]).cpu().numpy()
    names = [f"{word} " for word in words]
    full, without = probabilities[0], probabilities[1:]
    return LabelEffect(names, list(explained.vocabulary.labels), full, without, answer=full)


def mistakes_of(answering: AnyClassifier, whole: Documents, texts: Sequence[str]) -> Mistakes:
    """Return the mistakes on documents, whose ``texts`` are given; of very many, on some that are spread over them."""
    labels, (ids, starts, lengths), strings = whole.label_names, whole.texts, whole.strings
    chosen = evenly(range(len(whole.labels)), MAX_ITEMS)
    texts, side = [texts[i] for i in chosen], Side(ids, starts[chosen], lengths[chosen])
    data = whole._replace(texts=side, labels=whole.labels[chosen], strings=strings and [strings[i] for i in chosen])
    _, predicted, confidence, of_truth = predictions(answering, data)

    # A true label that the model does not know has no probability.
    truth, guesses = ([labels[label] for label in indices.tolist()] for indices in (data.labels, predicted))
    items = [
        AnsweredItem(text, label, [guess], [probability], [label == guess])
        for text, label, guess, probability in zip(texts, truth, guesses, np.nan_to_num(of_truth).tolist(), strict=True)
    ]
    evaluated, figure = evaluated_items(len(texts), len(whole.labels), "texts"), "probability of the right label"
    return compare_labels(
        truth, guesses, confidence, evaluated=evaluated, items=items, figure=figure, more_is_better=True
    )
