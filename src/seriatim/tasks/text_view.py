"""What inspection shows of models of running text: language models, and what n-gram models share with them.

`TextView` has what masked language models share with them (`seriatim.tasks.masking_view`).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import InputError
from ..core.state import State
from ..data.batching import Batches, Windows
from ..data.corpus import Corpus
from ..data.readers import read_pieces
from ..data.text_blocks import Statistics
from ..data.tokenizers import END
from ..evaluation.context_use import (
    ContextExcess,
    ContextUse,
    by_context,
    context_sizes,
    excess_losses,
    last_logits,
)
from ..evaluation.error_analysis import MAX_TOKENS, MAX_WORST, Mistakes, WrongExample, compare_labels, part_of
from ..evaluation.perplexity import each_loss
from ..evaluation.token_losses import TokenLosses
from ..evaluation.token_scores import ALTERNATIVES, TokenScore, TokenScores, score_tokens, token_name
from ..models import LanguageModel
from ..models.base_models import TextModel
from ..models.exported_forms import ExportedModel, language_forms
from ..models.probabilities import softmax, token_log_probabilities
from .measured_tokens import choose_blocks, choose_lines, with_losses
from .unknown_words import decode, unknown_words
from .view import ModelT, View
from .view_types import Example, StateReader

TextModelT = TypeVar("TextModelT", bound=TextModel, covariant=True)
BLOCK = 50
"""Tokens of a running text that count as one example in the list of mistakes."""
LINES_TOGETHER, WINDOW = 16, 256
MAX_LOGITS = 1 << 22
"""Limits of a batch: lines, tokens of a line or text, and log probabilities that are held at once."""


@dataclass(frozen=True)
class TextView(View[ModelT]):
    """View of a task whose model predicts the tokens of the text itself, with `TextTask.read_corpus` to read data."""

    read_corpus: Callable[..., Corpus]

    correct_name = "tokens predicted correctly by the top guess"
    windowed = True
    read_tokens: ClassVar[int] = 30_000
    """Tokens of a running text that are read for `token_losses`."""

    @property
    def running_text(self) -> bool:
        """Whether the text is one running text instead of lines."""
        return self.config.data.unit == "stream"

    @property
    def spacing(self) -> int | None:
        """Distance of the tokens that are predicted together when mistakes are counted; see `log_probabilities`."""
        return None

    def excerpt(self, text: str) -> tuple[str, list[str]]:
        """Return the whole text, of which `encode` uses the beginning, and sentences on what is left out."""
        ids, notes = self.encode_whole(text).ids, []
        if len(ids) > self.max_tokens:
            notes.append(f"The text has {len(ids):,} tokens; only the first {self.max_tokens:,} are inspected.")
        return text, notes + self.note_unknown(ids)

    def encode(self, text: str) -> Corpus:
        """Return the tokens of the beginning of a text that is inspected."""
        return beginning(self.encode_whole(text), self.max_tokens)

    def encode_whole(self, text: str) -> Corpus:
        """Return the tokens of a text that is read as if from a file; unknown words are read as ``<unk>``.

        Characters that did not occur in training, and texts without any known word, are refused.
        """
        tokenizer, ends = self.tokenizer, None
        if tokenizer.kind != "word":
            tokenizer.check_known(text if self.running_text else text.replace("\n", ""))
        if self.running_text:
            ids = tokenizer.encode(text)
        else:
            ids, sizes = tokenizer.encode_lines(text if text.endswith("\n") else f"{text}\n")
            ends = sizes.cumsum()
        if not np.any((ids != END) & (ids != tokenizer.unknown_id)):
            tokenizer.check_known(text)
            raise InputError("the text is empty; give some with --text or --text-file")
        return Corpus(ids, ends, Statistics(), tokenizer=self.tokenizer)

    def token_count(self, text: str) -> int:
        """Return the number of tokens of a text that are inspected."""
        return len(self.encode(text).ids)

    def log_probabilities(self, corpus: Corpus, *, every: int | None = None) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield for each window the places of its tokens, and log P of the vocabulary there ``(places, vocabulary)``.

        Every token is predicted once. Masked models mask tokens at a distance of ``every`` together; None each alone.
        """
        raise self.not_offered("no probabilities of single tokens")

    def context(self, tokens: int) -> str:
        """Return in words which tokens each of so many tokens is predicted from."""
        return "the tokens before it"

    def token_scores(self, item: object, *, alternatives: int = ALTERNATIVES) -> TokenScores:
        """Return the surprisal of every token of the text."""
        text = str(item)
        corpus, scores = self.encode(text), dict[int, TokenScore]()
        for places, log_probabilities in self.log_probabilities(corpus):
            targets = torch.from_numpy(corpus.ids[places].astype("int64"))
            rows = score_tokens(self.tokenizer, log_probabilities.cpu(), targets, alternatives=alternatives)
            scores.update(zip(places.tolist(), rows, strict=True))
        caption = (
            f"Each token is shaded by −log₂ of its probability, given {self.context(len(corpus.ids))}. Select a token "
            "to see the most likely ones."
        )
        words = self.unknown_words(text, corpus.ids)
        for place, word in words.items():
            scores[place] = scores[place]._replace(text=f"[{word}] ")
        if words:
            caption += (
                " Words in brackets are not in the vocabulary; the model reads and predicts all of them as <unk>."
            )
        in_order = [scores[place] for place in range(len(corpus.ids))]
        return TokenScores(in_order, self.tokenizer.vocabulary_size, "tokens", caption, counts_correct=True)

    def token_losses(self, data: Corpus | Windows, train: Corpus | Windows) -> TokenLosses:
        """Return the losses of single tokens of a part of a text; see `measured_tokens`."""
        whole, trained_on = (each.corpus if isinstance(each, Windows) else each for each in (data, train))
        part = choose_blocks(whole, self.read_tokens) if whole.ends is None else choose_lines(whole)
        return with_losses(part, self.losses(part.corpus), whole, trained_on, self.tokenizer)

    def losses(self, corpus: Corpus) -> np.ndarray:
        """Return −log P of each token of a text ``(tokens,)``, in nats."""
        nats = np.zeros(len(corpus.ids))
        for places, log_probabilities in self.log_probabilities(corpus, every=self.spacing):
            of_tokens = log_probabilities.cpu().numpy()[np.arange(len(places)), corpus.ids[places]]
            nats[places] = -of_tokens
        return nats

    def unknown_words(self, text: str, ids: Sequence[int] | np.ndarray) -> dict[int, str]:
        """Return the words of a text that its tokens ``ids``, or the first of them, hold as unknown, by their place."""
        return unknown_words(self.tokenizer, [text], ids)

    def mistakes(self, spec: str, file_format: str | None) -> Mistakes:
        """Return the mistakes; the worst examples are the lines, or blocks of a text, with the highest mean loss."""
        whole = self.read_corpus(spec, file_format=file_format)
        corpus = beginning(whole, MAX_TOKENS, whole_lines=True)
        size = len(corpus.ids)
        losses, best, confidence = np.zeros(size), np.zeros(size, dtype=np.int64), np.zeros(size)
        for places, log_probabilities in self.log_probabilities(corpus, every=self.spacing):
            log_probabilities = log_probabilities.cpu()
            values, tokens = log_probabilities.max(1)
            best[places], confidence[places] = tokens.numpy(), values.exp().numpy()
            losses[places] = -log_probabilities.numpy()[np.arange(len(places)), corpus.ids[places]]
        starts = np.arange(0, size, BLOCK) if corpus.ends is None else np.concatenate([[0], corpus.ends[:-1]])
        ends = np.append(starts[1:], size)
        starts, ends = starts[starts < ends], ends[starts < ends]  # empty lines may have no token
        means = np.add.reduceat(losses, starts) / (ends - starts)
        words = unknown_words(self.tokenizer, (piece.text for piece in read_pieces(whole.sources)), corpus.ids)
        worst = [
            WrongExample(float(means[i]), decode(self.tokenizer, corpus.ids, range(starts[i], ends[i]), words))
            for i in np.argsort(-means, kind="stable")[:MAX_WORST].tolist()
        ]
        truth, guesses = ([token_name(self.tokenizer, token) for token in ids.tolist()] for ids in (corpus.ids, best))
        part, name = part_of(size, len(whole.ids), "tokens"), "nats per token"
        return compare_labels(truth, guesses, confidence, evaluated=part, worst=worst, score_name=name, matrix=False)

    def held_out(self, spec: str, file_format: str | None, *, count: int, tokens: int) -> Sequence[object]:
        """Return lines of some data, or the beginning of a running text: ``count`` items of ``tokens`` together."""
        corpus = beginning(self.read_corpus(spec, file_format=file_format), count * tokens)
        if not len(corpus.ids):
            return []
        if self.running_text:
            return [self.tokenizer.decode(corpus.ids.tolist())]
        ends = [] if corpus.ends is None else corpus.ends.tolist()
        lines = (corpus.ids[start:end] for start, end in itertools.pairwise([0, *ends]))
        texts = (self.tokenizer.decode(line[line != END].tolist()) for line in lines)
        return [text for text in texts if text][:count]


@dataclass(frozen=True)
class CausalTextView(TextView[TextModelT]):
    """View of a language model, which predicts each token from those before it."""

    title = "language model"
    prediction_name = "the distribution of the next token"
    target_place = "after"
    max_tokens = 10_000
    read_tokens = 100_000

    def losses(self, corpus: Corpus) -> np.ndarray:
        """Return −log P of each token, by which the model need not compute whole distributions."""
        return each_loss(self.answering, corpus)

    def log_probabilities(self, corpus: Corpus, *, every: int | None = None) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield the answers of the run window by window, with the state carried from one window to the next."""
        model, rows = self.answering, 1 if corpus.ends is None else LINES_TOGETHER
        window = max(1, min(WINDOW, MAX_LOGITS // (rows * model.vocabulary_size)))
        batches, state = Batches(corpus, rows, window), None
        for batch in batches.read(batches.in_order()):
            with torch.no_grad():
                start = None if batch.fresh else state
                logits, state = model(batch.inputs.to(model.device), start, lengths=batch.lengths)
            position = np.arange(batch.targets.shape[1])
            places = (batches.starts_of(batch.rows) + batch.start)[:, None] + position
            lengths = np.full(len(places), len(position)) if batch.lengths is None else batch.lengths.numpy()
            valid = position < lengths[:, None]
            yield places[valid], token_log_probabilities(model, logits[torch.from_numpy(valid)])

    def read(self, item: object) -> list[Example]:
        """Return the running text, or each line with its end, as an example."""
        end = () if self.running_text else (END,)
        examples = []
        for line in self.lines(str(item)):
            targets = (*self.tokenizer.encode(line).tolist(), *end)
            inputs, names = (self.tokenizer.begin, *targets)[: len(targets)], list(self.token_names((END, *targets)))
            for place, word in self.unknown_words(line, targets).items():
                names[place + 1] = f"[{word}]"
            examples.append(Example(inputs, targets, tuple(names[:-1]), answers=tuple(names[1:])))
        return examples

    def target_names(self, example: Example) -> tuple[str, ...]:
        """Return the names of the tokens after the inputs."""
        return example.answers or self.token_names(example.targets)

    def lines(self, text: str) -> list[str]:
        """Return the running text as a whole, or each line that is not blank."""
        return [text] if self.running_text else [line for line in text.split("\n") if line.strip()]

    def sequences(self, text: str) -> list[list[int]]:
        """Return the tokens of the running text, or of each line that is not blank."""
        return [self.tokenizer.encode(line).tolist() for line in self.lines(text)]

    def shortened(self, item: object, max_tokens: int) -> tuple[Example, int]:
        """Return the first tokens of a text, or of its first line, without the boundary symbol in front."""
        ids = next(iter(self.sequences(str(item))), [])
        first = tuple(ids[: max_tokens - 1])
        names = ("↵" if token == END else self.tokenizer.describe(token) for token in first)
        return Example(first, (), tuple(names)), len(ids)

    def predictions(self, batch: Sequence[Example]) -> Tensor:
        """Return P(next token) after each example, which has no boundary symbol in front."""
        logits = last_logits(self.model, self.with_boundary(batch))
        return token_log_probabilities(self.model, logits).exp().unsqueeze(1)

    def with_boundary(self, batch: Sequence[Example]) -> Tensor:
        """Return the inputs with the boundary symbol in front ``(batch, 1 + time)``."""
        return torch.tensor([[self.tokenizer.begin, *example.inputs] for example in batch], device=self.device)

    def context_use(self, item: object) -> ContextUse:
        """Return loss and accuracy when only the last tokens of the text are seen."""
        text = str(item)
        corpus = self.encode(text)
        sizes = context_sizes(len(corpus.ids))
        return ContextUse(by_context(self.model, corpus.ids, sizes, ends=corpus.ends), len(corpus.ids))

    def context_excess(self, spec: str, file_format: str | None) -> ContextExcess:
        """Return by how much the loss on some data is higher when only the last tokens are seen."""
        corpus = self.read_corpus(spec, file_format=file_format)
        return excess_losses(self.model, corpus.ids, ends=corpus.ends)

    def state_reader(self) -> StateReader:
        """Return a way to read tokens by the language model."""
        model = self.model

        def read(count: int, state: State) -> State:
            return model.advance(torch.zeros(1, count, dtype=torch.long, device=model.device), state)

        return StateReader(model.initial_state(1), read)


@dataclass(frozen=True)
class LanguageModelView(CausalTextView[LanguageModel]):
    """View of a language model that is trained by gradients."""

    def exported(self) -> ExportedModel:
        """Return a step and a sequence."""
        return language_forms(self.model)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the inputs of the output layer ``(batch, time, size)``."""
        return self.model.features(tokens, None, None)[0]

    def forward(self, batch: Sequence[Example]) -> Tensor:
        """Run the model over the examples."""
        return self.hidden(self.tensors(batch)[0])

    def end_losses(self, batch: Sequence[Example], *, at_start: bool = False) -> Tensor:
        """Return −log P of the last token of each example."""
        return self.place_losses(batch, [len(example.targets) - 1 for example in batch])

    def place_losses(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        """Return −log P of the token after one input of each example."""
        rows = range(len(batch))
        logits = self.model.output(self.forward(batch)[rows, places])
        return F.cross_entropy(logits.double(), self.tensors(batch)[1][rows, places], reduction="none")

    def predictions(self, batch: Sequence[Example]) -> Tensor:
        """Return P(next token) after each example, by one pass over all of its tokens."""
        logits = self.model.output(self.hidden(self.with_boundary(batch))[:, -1])
        return softmax(logits).unsqueeze(1)


def beginning(corpus: Corpus, tokens: int, *, whole_lines: bool = False) -> Corpus:
    """Return the first tokens of a text, in whole lines if it has lines.

    A first line that is longer than that is cut, unless ``whole_lines``.
    """
    if corpus.ends is None:
        return Corpus(np.asarray(corpus.ids[:tokens]), None, Statistics(), tokenizer=corpus.tokenizer)
    ends = corpus.ends[corpus.ends <= tokens]
    if not len(ends):
        ends = corpus.ends[:1] if whole_lines else np.array([tokens])
    return Corpus(np.asarray(corpus.ids[: ends[-1]]), ends, Statistics(), tokenizer=corpus.tokenizer)
