"""A run: the folder a training leaves behind, opened."""

import contextlib
import itertools
import os
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..core.allocator import freed_memory_kept
from ..core.errors import InputError
from ..data.arguments import check_integer, check_text, data_name, iterate_items
from ..data.batching import Batches
from ..data.corpus import Corpus
from ..data.encoding import Statistics
from ..data.tokenizers import END, Tokenizer
from ..data.vocabulary import Vocabulary, load_vocabulary
from ..decoding.sampling import Sampling
from ..evaluation.intervals import Metrics
from ..evaluation.perplexity import LINES_TOGETHER, WINDOW
from ..layers.origins import AllowCode, require_code, stacks_of
from ..tasks import find
from ..tasks.overlong import warn_of_long
from ..training.hardware import choose_device
from ..training.task import AnyTask
from .identity import check_belongs, identity, read_config, run_folder
from .stream import Score, Stream, refuse_unknown
from .summary import read_summary
from .text_batches import draw_texts


class Run:
    """A trained model with its vocabulary and configuration.

    Attributes:
        path: the folder.
        task: what it was trained for.
        config: as resolved when it was trained.
        vocabulary: text to numbers, and numbers to answers.
        tokenizer: the vocabulary's tokenizer of inputs.
        model: in evaluation mode, in float32.
        summary: what `summary.json` holds; empty while a training is under way.
    """

    def __init__(self, path: Path, task: AnyTask, vocabulary: Vocabulary, model: Any) -> None:
        self.path, self.task, self.config = path, task, task.config
        self.vocabulary, self.model = vocabulary, model.eval()
        self.tokenizer: Tokenizer = vocabulary.tokenizer
        self.device = next(model.parameters()).device
        self.summary: dict[str, Any] = read_summary(path / "summary.json", [figure.key for figure in task.figures])

    @property
    def stop(self) -> int | None:
        """The token that ends a text; None for a running text in which it ends lines, or never stood."""
        running = self.config.data.unit == "stream"
        one_document = self.summary.get("documents") == 1
        return None if running and (self.tokenizer.ends_lines or one_document) else END

    def generate(
        self,
        prompt: str = "",
        *,
        max_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
    ) -> Iterator[str]:
        """Writes a text that follows ``prompt``, piece by piece as it is made.

        Args:
            prompt: not repeated in the pieces.
            max_tokens: at most so many.
            temperature: 0 for the likeliest token always.
            top_k: only the k likeliest tokens.
            top_p: only the likeliest tokens with this probability together.
            min_p: only tokens with at least this share of the likeliest one's probability.
            seed: for the same text again; None for another each time.

        Raises:
            InputError: a setting outside its range, or a prompt with symbols never seen.
        """
        Sampling(temperature, top_k, top_p, min_p)
        stream = self.stream()  # of a language model alone
        stream.feed(prompt)
        return stream.generate(
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=_seed(seed),
        )

    def samples(
        self,
        count: int,
        prompt: str = "",
        *,
        max_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
    ) -> list[str]:
        """The texts of `iter_samples` as a list. Arguments as there."""
        found = self.iter_samples(
            count,
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
        )
        return list(found)

    def iter_samples(
        self,
        count: int,
        prompt: str = "",
        *,
        max_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
    ) -> Iterator[str]:
        """Several texts, written in batches of bounded memory; text i is what `generate` writes with ``seed + i``.

        Args:
            count: of texts.
            prompt: not repeated in the texts.
            max_tokens: as for `generate`, like the arguments that follow.
            temperature: likewise.
            top_k: likewise.
            top_p: likewise.
            min_p: likewise.
            seed: of the first text.

        Raises:
            InputError: as `generate`, or a count below 1.
        """
        self.needs("lm")
        check_integer("samples", count, minimum=1)
        check_integer("max_tokens", max_tokens, minimum=0)
        sampling, first = Sampling(temperature, top_k, top_p, min_p), _seed(seed)
        refuse_unknown(self.tokenizer, prompt)
        tokens = self.tokenizer.encode(prompt).tolist()
        return draw_texts(
            self.model,
            self.tokenizer,
            tokens,
            sampling,
            max_tokens=max_tokens,
            seeds=range(first, first + count),
            stop=self.stop,
        )

    def score(self, lines: Iterable[str]) -> list[Score]:
        """How likely each line is as a text of its own.

        Args:
            lines: without line ends.

        Returns:
            Per line: ``log_probability`` in nats and ``tokens``, both with the symbol that ends the line (for a
            running text, the line end) included, and ``bytes`` of the line itself. An unknown word counts as ``<unk>``.
        """
        self.needs("lm")
        texts = list(iterate_items(lines, "score"))
        for number, text in enumerate(texts):
            check_text(text, f"score: item {number}")
        if not texts:
            return []
        if any("\n" in text for text in texts):
            raise InputError("score takes lines; one of them holds a line end, split it")
        end = self.tokenizer.encode("\n") if self.config.data.unit == "stream" else np.array([END])
        ids = [np.concatenate([self.tokenizer.encode(text), end]).astype(np.int64) for text in texts]
        sizes = np.array([len(part) for part in ids])
        warn_of_long(sizes, self.config, name="score", items="lines")
        corpus = Corpus(np.concatenate(ids), sizes.cumsum(), Statistics())
        batches = Batches(corpus, LINES_TOGETHER, WINDOW)
        totals, state = np.zeros(len(texts)), None
        for batch in batches.read(batches.in_order()):
            losses, state = self.model.token_losses(
                batch.inputs.to(self.device),
                batch.targets.to(self.device),
                None if batch.fresh else state,
                lengths=batch.lengths,
            )
            totals[batch.rows] -= losses.double().sum(1).cpu().numpy()
        found = zip(totals.tolist(), ids, texts, strict=True)
        return [Score(total, len(part), len(text.encode())) for total, part, text in found]

    def evaluate(self, data: str | os.PathLike[str], *, file_format: str | None = None, **settings: Any) -> Metrics:
        """The metrics of some data, those of the run's task.

        Args:
            data: a file, a folder, a glob, ``-`` or a built-in corpus (its test part).
            file_format: as ``data.format`` of a configuration; None for the run's own.
            settings: those of the task: ``window``, the tokens that a language model reads at once.

        Raises:
            InputError: the data cannot be read.
        """
        found = self.task.read(data_name(data), "test", self.vocabulary, file_format=file_format)
        with freed_memory_kept():
            return self.task.evaluate(self.model, found, **settings)

    def predict(self, lines: Iterable[Any], **settings: Any) -> Iterator[str]:
        """Labels, tags or translations: an answer a line, lazily and in order; see `details`."""
        return (answer["text"] for answer in self.details(lines, **settings))

    def details(self, lines: Iterable[Any], **settings: Any) -> Iterator[dict[str, Any]]:
        """What `predict` gives (``text``), and what is known of it: probabilities, scores, alignments.

        Args:
            lines: inputs, without line ends; an empty line is an input too.
            settings: those of the task, as ``beam``.

        Raises:
            InputError: a single string, an item that the task cannot read, or a language model, which has no answers.
        """
        return self.answers(chunks(self._checked(lines), self.task.together), **settings)

    def _checked(self, lines: Iterable[Any]) -> Iterator[Any]:
        """The items, each checked as it is read; a single string is refused at once."""

        def each() -> Iterator[Any]:
            for number, item in enumerate(items):
                self.task.check_item(item, f"predict: item {number}")
                yield item

        items = iterate_items(lines, "predict")
        return each()

    def answers(self, together: Iterable[list[Any]], **settings: Any) -> Iterator[dict[str, Any]]:
        """As `details`, for items that are already in lists of what is to be answered at once."""
        with contextlib.ExitStack() as stack:
            for number, items in enumerate(together):
                if number == 1:  # for one batch the settings of malloc cost more than they save
                    stack.enter_context(freed_memory_kept())
                started = time.perf_counter()
                found = self.task.answer(self.model, self.vocabulary, items, **settings)
                seconds = (time.perf_counter() - started) / len(items)
                for answer in found:
                    yield {**answer, "seconds": seconds}

    def stream(self) -> Stream:
        """A text to be read and written piece by piece, at its beginning.

        Raises:
            InputError: the run is not a language model.
        """
        self.needs("lm")
        return Stream(self.model, self.tokenizer, stop=self.stop, identity=identity(self.config, self.vocabulary))

    def needs(self, task: str) -> None:
        """Raises InputError where the run was trained for another task."""
        if self.config.task != task:
            raise InputError(
                f"{self.path}: trained to {self.config.task}, which writes no text of its own; use predict, or a run "
                f"trained with: seriatim train {task}"
            )


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Items in lists of ``size``, the last one shorter."""
    remaining = iter(items)
    while chunk := list(itertools.islice(remaining, size)):
        yield chunk


def load(path: str | Path, *, device: str = "auto", allow_code: AllowCode = False) -> Run:
    """Open a run.

    Args:
        path: the folder.
        device: where the model computes; ``auto`` is CUDA where there is one, else the CPU.
        allow_code: whether the code of a layer outside the library may be imported from the file that the run names:
            True if the file has not changed since the training, ``"changed"`` in any case. A layer that this process
            has registered needs no permission.

    Raises:
        InputError: a file is missing, damaged, or belongs to another run; or the run needs code that is not allowed,
            is missing or has changed.
    """
    folder = run_folder(path)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such run; give the folder that seriatim train --out made")
    config = read_config(folder)
    require_code(folder, stacks_of(config), allow_code=allow_code)
    vocabulary = load_vocabulary(folder)
    weights = folder / "model.safetensors"
    if not weights.exists() and (folder / "checkpoints").is_dir():
        raise InputError(f"{weights}: not there yet; a training keeps weights after its first validation, wait for it")
    check_belongs(weights, config, vocabulary)
    task = find(config)
    model = task.load_model(vocabulary, weights)
    return Run(folder, task, vocabulary, model.to(choose_device(device)))


def _seed(seed: int | None) -> int:
    if seed is None:
        return random.SystemRandom().randrange(2**31)
    check_integer("seed", seed)
    return seed
