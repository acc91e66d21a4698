"""What can be shown of models that predict the tokens of a text itself: language models, with networks or n-grams.

`TextScores` and `InspectedText` also serve masked language models (`seriatim.tasks.mlm`).
"""

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import EmptyError
from ..core.state import State
from ..counting.ngram import NGram
from ..counting.ngrams.orders_used import count_occurrences, orders_used
from ..counting.ngrams.unseen import sparsity
from ..data.batches import Batches, Windows
from ..data.corpus import Corpus
from ..data.encoding import Statistics
from ..data.text import read_chunks
from ..data.tokenizers import END, Tokenizer, whole_characters
from ..evaluation.context_use import READ, ContextExcess, excess_losses, last_logits
from ..evaluation.error_analysis import MAX_TOKENS, AnsweredItem, Mistakes, compare_labels, evenly
from ..evaluation.perplexity import BLOCK, each_loss
from ..evaluation.text_sample import TextSample, choose_sample
from ..evaluation.token_scores import (
    ALTERNATIVES,
    UNKNOWN,
    TokenLosses,
    TokenScore,
    TokenSurprisals,
    cut_evenly,
    positions_in_lines,
    score_tokens,
    surprisals,
    token_name,
    token_text,
)
from ..models import LanguageModel
from ..models.base_models import TextModel
from ..models.exported_forms import language_forms
from ..models.probabilities import softmax, token_log_probabilities
from .explainer import (
    Example,
    Examples,
    ExplainedModel,
    Explainer,
    LabelledData,
    ModelT,
    Refusal,
    TextOrders,
    Wording,
    note_unknown,
)

ReadCorpus = Callable[..., Corpus]
"""`Reader.read` of a reader of texts."""
EXCERPT = 50
"""Tokens of a running text that count as one example in the list of mistakes."""
LINES_TOGETHER, WINDOW = 16, 256
MAX_LOGITS = 1 << 22
"""Limits of a batch: lines, tokens of a line or text, and log probabilities that are held at once."""
MAX_ORDERS, MAX_COUNTED = 2_000, 5_000_000
"""Tokens of a text whose n-grams are looked up one by one, and those of a training text in which they are counted."""
MAX_TEXT = 10_000
"""Largest number of tokens of a text that are inspected, for a model that reads from left to right."""


@dataclass(frozen=True)
class InspectedText:
    """The text that a model reads: its first ``max_tokens`` tokens, as one running text or in lines."""

    tokenizer: Tokenizer
    running_text: bool
    max_tokens: int

    def excerpt(self, text: str) -> tuple[str, list[str]]:
        """Return the whole text, of which `encode` uses the beginning, and sentences on what is left out."""
        ids, notes = self._encode_whole(text).ids, []
        if len(ids) > self.max_tokens:
            notes.append(f"The text has {len(ids):,} tokens; only the first {self.max_tokens:,} are inspected.")
        return text, notes + note_unknown(self.tokenizer, ids)

    def encode(self, text: str) -> Corpus:
        """Return the tokens of a text that are inspected; unknown words are read as ``<unk>``.

        Characters that did not occur in training, and texts without any known word, are refused.
        """
        return beginning(self._encode_whole(text), self.max_tokens)

    def _encode_whole(self, text: str) -> Corpus:
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
            raise EmptyError("the text is empty; give some with --text or --text-file")
        return Corpus(ids, ends, Statistics(), tokenizer=tokenizer)


def beginning(corpus: Corpus, tokens: int) -> Corpus:
    """Return the first tokens of a text, in whole lines if it has lines; a first line that is longer is cut."""
    if corpus.ends is None:
        return Corpus(np.asarray(corpus.ids[:tokens]), None, Statistics(), tokenizer=corpus.tokenizer)
    ends = corpus.ends[corpus.ends <= tokens]
    if not len(ends):
        ends = np.array([tokens])
    return Corpus(np.asarray(corpus.ids[: ends[-1]]), ends, Statistics(), tokenizer=corpus.tokenizer)


# Probabilities of the tokens of a text, and what follows from them


@dataclass(frozen=True)
class TextScores(LabelledData, Generic[ModelT]):
    """Scores every token of a text, or of some data that ``read_corpus`` reads."""

    read_tokens: ClassVar[int] = 30_000  # of a running text, for `token_losses`
    judged_tokens: ClassVar[int] = MAX_TOKENS  # of a running text, for `mistakes`

    explained: ExplainedModel[ModelT]
    text: InspectedText
    read_corpus: ReadCorpus
    spacing: int | None = None  # distance of the tokens that are predicted together, in data; None for each alone

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the text."""
        return self.text.tokenizer

    @abstractmethod
    def log_probabilities(self, corpus: Corpus, *, every: int | None = None) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield the positions of the tokens of each window, and log P of the vocabulary there ``(tokens, vocabulary)``.

        Every token is predicted once. Masked models mask tokens at a distance of ``every`` together; None each alone.
        """

    def context(self, tokens: int) -> str:
        """Return in words which tokens each of so many tokens is predicted from."""
        return "the tokens before it"

    def losses(self, corpus: Corpus) -> np.ndarray:
        """Return −log P of each token of a text ``(tokens,)``, in nats."""
        nats = np.zeros(len(corpus.ids))
        for positions, log_probabilities in self.log_probabilities(corpus, every=self.spacing):
            of_tokens = log_probabilities.cpu().numpy()[np.arange(len(positions)), corpus.ids[positions]]
            nats[positions] = -of_tokens
        return nats

    def token_scores(self, item: object, *, alternatives: int = ALTERNATIVES) -> TokenSurprisals:
        """Return the surprisal of every token of the text."""
        text = str(item)
        corpus, scores = self.text.encode(text), dict[int, TokenScore]()
        for positions, log_probabilities in self.log_probabilities(corpus):
            targets = torch.from_numpy(corpus.ids[positions].astype("int64"))
            rows = score_tokens(self.tokenizer, log_probabilities.cpu(), targets, alternatives=alternatives)
            scores.update(zip(positions.tolist(), rows, strict=True))

        caption = (
            f"Each token is shaded by −log₂ of its probability, given {self.context(len(corpus.ids))}. Select a token "
            "to see the most likely ones."
        )

        # A reader should see the text itself, so that unknown tokens are shown as the words they stand for.
        words = unknown_words(self.tokenizer, text, corpus.ids)
        for position, word in words.items():
            scores[position] = scores[position]._replace(text=f"[{word}] ")
        if words:
            caption += (
                " Words in brackets are not in the vocabulary; the model reads and predicts all of them as <unk>."
            )
        in_order = [scores[position] for position in range(len(corpus.ids))]
        return TokenSurprisals(in_order, self.tokenizer.vocabulary_size, "tokens", caption)

    def token_losses(self, data: Corpus | Windows, train: Corpus | Windows) -> TokenLosses:
        """Return the losses of single tokens of a sample of a text; see `choose_sample`."""
        whole, trained_on = (each.corpus if isinstance(each, Windows) else each for each in (data, train))
        sample = choose_sample(whole, MAX_KEPT, stretch=BLOCK, read=self.read_tokens)
        return with_losses(sample, self.losses(sample.corpus), whole, trained_on, self.tokenizer)

    def mistakes(self, source: str, file_format: str | None) -> Mistakes:
        """Return the mistakes; the items are lines, or blocks of a text, with the bits of each token."""
        whole = self.read_corpus(source, "test", self.explained.vocabulary, file_format=file_format)
        sample = choose_sample(whole, MAX_TOKENS, stretch=EXCERPT, read=self.judged_tokens, at_least=1)
        corpus, size = sample.corpus, len(sample.corpus.ids)
        losses, best, confidence = np.zeros(size), np.zeros(size, dtype=np.int64), np.zeros(size)
        for positions, log_probabilities in self.log_probabilities(corpus, every=self.spacing):
            log_probabilities = log_probabilities.cpu()
            values, tokens = log_probabilities.max(1)
            best[positions], confidence[positions] = tokens.numpy(), values.exp().numpy()
            losses[positions] = -log_probabilities.numpy()[np.arange(len(positions)), corpus.ids[positions]]

        # A single token says little about where a model fails, so items are stretches that can be read.
        ids, losses, best, confidence = (each[sample.kept] for each in (corpus.ids, losses, best, confidence))
        starts, ends = np.concatenate([[0], sample.ends[:-1]]), sample.ends
        starts, ends = starts[starts < ends], ends[starts < ends]  # empty lines may have no token
        means = np.add.reduceat(losses, starts) / (ends - starts)
        unknown = np.flatnonzero(ids == self.tokenizer.unknown_id) if self.tokenizer.kind == "word" else ids[:0]
        words = spelled_words(whole, sample.at[unknown], unknown, self.tokenizer)
        texts = [token_text(self.tokenizer, token) for token in ids.tolist()]
        texts = [f"[{words[i]}] " if i in words else text for i, text in enumerate(texts)]
        bits = surprisals(losses)
        items = [
            AnsweredItem(whole_characters(texts[start:end]), "", [bits[start:end]], [mean])
            for start, end, mean in zip(starts.tolist(), ends.tolist(), surprisals(means), strict=True)
        ]
        truth, guesses = ([token_name(self.tokenizer, token) for token in tokens.tolist()] for tokens in (ids, best))
        return compare_labels(
            truth, guesses, confidence, evaluated=sample.measured, items=items, figure="bits per token"
        )

    def held_out(self, source: str, file_format: str | None, *, count: int, tokens: int) -> Sequence[object]:
        """Return lines of some data, or stretches of ``tokens`` tokens of a running text, spread over it."""
        whole = self.read_corpus(source, "test", self.explained.vocabulary, file_format=file_format)
        starts, ends = whole.spans(1)
        if self.text.running_text:
            starts = np.arange(0, max(1, len(whole.ids) - tokens + 1), tokens)
            ends = np.minimum(starts + tokens, len(whole.ids))
        spans = evenly(list(zip(starts.tolist(), ends.tolist(), strict=True)), count)
        found = (whole.ids[start:end] for start, end in spans)
        found = found if self.text.running_text else (ids[ids != END] for ids in found)
        return [text for ids in found if (text := self.tokenizer.decode(ids.tolist()))]


class CausalScores(TextScores[TextModel]):
    """Scores the tokens of a text by the answers of a run, each given the tokens before it."""

    read_tokens, judged_tokens = READ, 4 * MAX_TOKENS

    def losses(self, corpus: Corpus) -> np.ndarray:
        """Return −log P of each token, by which the model need not compute whole distributions."""
        return each_loss(self.explained.answering, corpus)

    def log_probabilities(self, corpus: Corpus, *, every: int | None = None) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield the answers of the run window by window, with the state carried from one window to the next."""
        model, rows = self.explained.answering, 1 if corpus.ends is None else LINES_TOGETHER
        window = max(1, min(WINDOW, MAX_LOGITS // (rows * model.vocabulary_size)))
        batches, state = Batches(corpus, rows, window), None
        for batch in batches.read(batches.in_order()):
            with torch.no_grad():
                start = None if batch.fresh else state
                logits, state = model(batch.inputs.to(model.device), start, lengths=batch.lengths)
            position = np.arange(batch.targets.shape[1])
            positions = (batches.starts_of(batch.rows) + batch.start)[:, None] + position
            lengths = np.full(len(positions), len(position)) if batch.lengths is None else batch.lengths.numpy()
            valid = position < lengths[:, None]
            yield positions[valid], token_log_probabilities(model, logits[torch.from_numpy(valid)])


# The text as a model reads it


class CausalExamples(Examples[ModelT]):
    """The tokens of a text after the boundary symbol, each with the next one as its target."""

    predicts = "next token"
    is_divisible = True

    def read(self, item: object) -> list[Example]:
        """Return the running text, or each line with its end, as an example."""
        end = () if self.running_text else (END,)
        examples = []
        for line in self.lines(str(item)):
            targets = (*self.tokenizer.encode(line).tolist(), *end)
            inputs = (self.tokenizer.begin, *targets)[: len(targets)]
            first, *rest = self.token_names((END, *targets))
            names = (first, *named_unknown(self.tokenizer, rest, line, targets))
            examples.append(Example(inputs, targets, names[:-1], answers=names[1:]))
        return examples

    def lines(self, text: str) -> list[str]:
        """Return the running text as a whole, or each line that is not blank."""
        return [text] if self.running_text else [line for line in text.split("\n") if line.strip()]

    def shortened(self, item: object, max_tokens: int) -> tuple[Example, int]:
        """Return the first tokens of a text, or of its first line, without the boundary symbol in front."""
        ids: list[int] = next((self.tokenizer.encode(line).tolist() for line in self.lines(str(item))), [])
        first = tuple(ids[: max_tokens - 1])
        names = ("↵" if token == END else self.tokenizer.describe(token) for token in first)
        return Example(first, (), tuple(names)), len(ids)

    def with_boundary(self, batch: Sequence[Example]) -> Tensor:
        """Return the inputs with the boundary symbol in front ``(batch, 1 + time)``."""
        rows = [[self.tokenizer.begin, *example.inputs] for example in batch]
        return torch.tensor(rows, device=self.explained.device)


class NetworkExamples(CausalExamples[LanguageModel]):
    """The same for a network, with its losses, which can be differentiated."""

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the inputs of the output layer ``(batch, time, size)``."""
        return self.model.features(tokens, None, None)[0]

    def forward(self, batch: Sequence[Example]) -> Tensor:
        """Run the model over the examples."""
        return self.hidden(self.tensors(batch)[0])

    def place_losses(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        """Return −log P of the token after one input of each example."""
        rows = range(len(batch))
        logits = self.model.output(self.forward(batch)[rows, places])
        return F.cross_entropy(logits.double(), self.tensors(batch)[1][rows, places], reduction="none")

    def target_names(self, example: Example) -> tuple[str, ...]:
        """Return the names of the tokens after the inputs."""
        return example.answers or self.token_names(example.targets)

    def predictions(self, batch: Sequence[Example]) -> Tensor:
        """Return P(next token) after each example, by one pass over all of its tokens."""
        logits = self.model.output(self.hidden(self.with_boundary(batch))[:, -1])
        return softmax(logits).unsqueeze(1)


# The explainers


def explain_language_model(explained: ExplainedModel[LanguageModel], read_corpus: ReadCorpus) -> Explainer:
    """Compose what can be shown of a language model that is trained by gradients."""
    examples = NetworkExamples(explained)
    return replace(
        _explain_causal(explained, read_corpus),
        inputs=examples,
        predictions=examples.predictions,
        export=lambda: language_forms(explained.model),
    )


def explain_ngrams(explained: ExplainedModel[TextModel], read_corpus: ReadCorpus, counts: NGram | None) -> Explainer:
    """Compose what can be shown of an n-gram model; its ``counts`` are None if a trained model is mixed with them."""
    examples, text = CausalExamples(explained), _inspected_text(explained)

    def predictions(batch: Sequence[Example]) -> Tensor:
        logits = last_logits(explained.model, examples.with_boundary(batch))
        return token_log_probabilities(explained.model, logits).exp().unsqueeze(1)

    def ngram_orders(model: NGram, item: str, source: str | None) -> TextOrders:
        ids = text.encode(item).ids
        unseen = sparsity(model.look_up(ids), model.seen, model.vocabulary_size, impossible=0)
        ids = ids[:MAX_ORDERS]
        names = [text.tokenizer.describe(token) for token in ids.tolist()]
        train = None if source is None else read_corpus(source, "train", explained.vocabulary).ids
        is_counted = train is not None and len(train) <= MAX_COUNTED
        found = count_occurrences(np.asarray(train), ids, model.order) if is_counted else None
        return TextOrders(names, orders_used(model.table, ids), found, unseen)

    explainer = replace(
        _explain_causal(explained, read_corpus),
        inputs=examples,
        predictions=predictions,
        embeddings=Refusal(
            "an n-gram model has no embeddings: its counts treat every word as different from every other word, so "
            "that nothing learned about one carries over to similar ones"
        ),
    )
    return explainer if counts is None else replace(explainer, ngram_orders=functools.partial(ngram_orders, counts))


def _inspected_text(explained: ExplainedModel[TextModel]) -> InspectedText:
    return InspectedText(explained.vocabulary.tokenizer, explained.config.data.unit == "stream", MAX_TEXT)


def _explain_causal(explained: ExplainedModel[TextModel], read_corpus: ReadCorpus) -> Explainer:
    """Compose what any model offers that predicts each token from those before it."""
    model, text = explained.model, _inspected_text(explained)
    scores = CausalScores(explained, text, read_corpus)

    def context_excess(source: str, file_format: str | None) -> ContextExcess:
        corpus = read_corpus(source, "test", explained.vocabulary, file_format=file_format)
        return excess_losses(model, corpus)

    def state_after(tokens: int) -> State:
        return model.advance(torch.zeros(1, tokens, dtype=torch.long, device=model.device), model.initial_state(1))

    return Explainer(
        explained,
        Wording(
            title="language model",
            prediction="the distribution of the next token",
            correct="tokens predicted correctly by the top guess",
        ),
        text.excerpt,
        token_scores=scores.token_scores,
        token_losses=scores.token_losses,
        context_excess=context_excess,
        states=state_after,
        labelled=scores,
    )


# Unknown words, so that a reader sees the text itself


def unknown_words(tokenizer: Tokenizer, text: str, ids: Sequence[int] | np.ndarray) -> dict[int, str]:
    """Return the words that the tokens ``ids`` hold as unknown, by their position; empty if they cannot be told.

    The ids are those of the text, or the first of them.
    """
    if tokenizer.kind != "word" or tokenizer.unknown_id is None:
        return {}
    positions = [position for position, token in enumerate(ids) if token == tokenizer.unknown_id]
    words = _read_as_unknown(tokenizer, text)[: len(positions)]
    return dict(zip(positions, words, strict=True)) if len(words) == len(positions) else {}


def _read_as_unknown(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the words or characters of a text that become unknown tokens, in their order."""
    missing = tokenizer.find_unknown(text)
    if tokenizer.kind != "word" or tokenizer.unknown_id is None:
        return missing
    known = {*missing, tokenizer.describe(tokenizer.unknown_id)}  # whose name may be a word of the text itself
    return [word for word in tokenizer.prepare(text).split() if word in known]


def named_unknown(tokenizer: Tokenizer, names: Sequence[str], line: str, ids: Sequence[int]) -> list[str]:
    """Return the names of the tokens of a line, with the words of the line in place of unknown tokens."""
    words = unknown_words(tokenizer, line, ids)
    return [f"[{words[position]}]" if position in words else name for position, name in enumerate(names)]


MAX_KEPT = 30_000  # tokens that are kept
SHOWN_CHARACTERS = 120  # approximate size of a chunk of text that is shown
MAX_BYTES = 1 << 24  # size of a text up to which it is read again to name its unknown words
MAX_NAME = 60  # characters of a token that are kept


def with_losses(
    sample: TextSample, nats: np.ndarray, whole: Corpus, train: Corpus, tokenizer: Tokenizer
) -> TokenLosses:
    """Return the losses of the chosen tokens, from those of all tokens that were read ``(tokens read,)``."""
    # Names and positions need every token that was read, not only those that are kept.
    ids = np.asarray(sample.corpus.ids).astype(np.int64)
    texts = {token: token_text(tokenizer, token) for token in np.unique(ids).tolist()}
    ending = np.array([token for token, text in texts.items() if text.rstrip(" ").endswith("\n")], np.int64)
    in_line = positions_in_lines(ids, np.isin(ids, ending))

    # What is known of a token: how often the training text has it, unless it is unknown.
    counts = train.counts(tokenizer.vocabulary_size)
    chosen = ids[sample.kept]
    unknown = np.zeros(len(chosen), bool) if tokenizer.unknown_id is None else chosen == tokenizer.unknown_id
    statistics = whole.statistics
    characters = max(1.0, statistics.characters / max(1, statistics.tokens))
    piece_ends, piece_blocks = cut_evenly(sample.ends, max(8, round(SHOWN_CHARACTERS / characters)))
    return TokenLosses(
        nats[sample.kept],
        chosen,
        in_line[sample.kept],
        np.where(unknown, UNKNOWN, counts[chosen]),
        piece_ends,
        piece_blocks,
        {token: _shortened(texts[token]) for token in np.unique(chosen).tolist()},
        spelled_words(whole, sample.at[unknown], np.flatnonzero(unknown), tokenizer),
        sample.measured,
    )


def spelled_words(whole: Corpus, at: np.ndarray, keys: np.ndarray, tokenizer: Tokenizer) -> dict[int, str]:
    """Return the words in place of the unknown tokens ``at`` some positions of a text, by their ``keys``, in order.

    The text is read again, unless it is large; without a word for each unknown token, the answer is empty.
    """
    if not len(at) or not whole.sources or whole.statistics.bytes > MAX_BYTES:
        return {}
    words = [word for chunk in read_chunks(whole.sources) for word in _read_as_unknown(tokenizer, chunk.text)]
    if len(words) != whole.statistics.unknown_tokens:
        return {}
    ranks = (np.asarray(whole.ids) == tokenizer.unknown_id).cumsum()[at] - 1
    return {key: _shortened(words[rank]) for key, rank in zip(keys.tolist(), ranks.tolist(), strict=True)}


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}…"
