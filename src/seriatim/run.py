"""A run: the folder a training leaves behind, opened."""

import hashlib
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .config import Config, resolve
from .data.batching import Batches
from .data.corpus import Corpus, Statistics, encode_corpus
from .data.readers import find_sources
from .data.tokenizers import END, Tokenizer, load_tokenizer
from .decoding.sampling import Sampling, sample
from .errors import InputError
from .evaluation.perplexity import LINES_TOGETHER, WINDOW, Metrics, evaluate_language_model
from .models import LanguageModel
from .models.weights import load_weights, read_metadata
from .stream import Score, Stream, banned_tokens, refuse_unknown, starting_state
from .training.precision import choose_device


class Run:
    """A trained model with its tokenizer and configuration.

    Attributes:
        path: the folder.
        config: as resolved when it was trained.
        tokenizer: text to tokens and back.
        model: in evaluation mode, in float32.
        summary: what `summary.json` holds; empty while a training is under way.
    """

    def __init__(self, path: Path, config: Config, tokenizer: Tokenizer, model: LanguageModel) -> None:
        self.path, self.config, self.tokenizer, self.model = path, config, tokenizer, model.eval()
        self.device = next(model.parameters()).device
        self.summary: dict[str, Any] = _read_summary(path / "summary.json")

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
        stream = self.stream()
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
        """Several texts as one batch; text i is what `generate` writes with ``seed + i``. Arguments as there."""
        if count < 1:
            raise InputError(f"samples: {count} is none; at least 1")
        sampling = Sampling(temperature, top_k, top_p, min_p)
        refuse_unknown(self.tokenizer, prompt)
        tokens = [END, *self.tokenizer.encode(prompt).tolist()]
        logits, state = starting_state(self.model, count, tokens)
        decoders = [self.tokenizer.decoder(after=tokens[-1]) for _ in range(count)]
        texts = [""] * count
        first = _seed(seed)
        for drawn in sample(
            self.model,
            logits,
            state,
            sampling,
            max_tokens=max_tokens,
            seeds=range(first, first + count),
            stop=self.stop,
            banned=banned_tokens(self.tokenizer, self.stop),
        ):
            for i, token in enumerate(drawn.tokens):
                if token is not None:
                    texts[i] += decoders[i].feed(token)
        return [text + decoder.finish() for text, decoder in zip(texts, decoders, strict=True)]

    def score(self, lines: Iterable[str]) -> list[Score]:
        """How likely each line is as a text of its own.

        Args:
            lines: without line ends.

        Returns:
            Per line: ``log_probability`` in nats and ``tokens``, both with the symbol that ends the line (for a
            running text, the line end) included, and ``bytes`` of the line itself. An unknown word counts as ``<unk>``.
        """
        texts = list(lines)
        if not texts:
            return []
        if any("\n" in text for text in texts):
            raise InputError("score takes lines; one of them holds a line end, split it")
        end = self.tokenizer.encode("\n") if self.config.data.unit == "stream" else np.array([END])
        ids = [np.concatenate([self.tokenizer.encode(text), end]).astype(np.int64) for text in texts]
        corpus = Corpus(np.concatenate(ids), np.cumsum([len(part) for part in ids]), Statistics())
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
        sizes = zip(totals.tolist(), ids, texts, strict=True)
        return [Score(total, len(part), len(text.encode())) for total, part, text in sizes]

    def evaluate(self, data: str, *, file_format: str = "auto", window: int = WINDOW) -> Metrics:
        """The metrics of a text; see `seriatim.evaluation.perplexity`.

        Args:
            data: a file, a folder, a glob, ``-`` or a built-in corpus (its test part).
            file_format: ``text``, ``jsonl`` or ``auto``.
            window: tokens read at once; the figures do not depend on it.

        Raises:
            InputError: the text cannot be read.
        """
        sources = find_sources(data, file_format=file_format, split="test")
        corpus = encode_corpus(sources, self.tokenizer, unit=self.config.data.unit)
        return evaluate_language_model(self.model, corpus, window=window)

    def stream(self) -> Stream:
        """A text to be read and written piece by piece, at its beginning."""
        return Stream(self.model, self.tokenizer, stop=self.stop, identity=identity(self.config, self.tokenizer))


def load(path: str | Path, *, device: str = "auto") -> Run:
    """Opens a run.

    Args:
        path: the folder.
        device: where the model computes; ``auto`` is CUDA where there is one, else the CPU.

    Raises:
        InputError: a file is missing, damaged, or belongs to another run.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such run; give the folder that seriatim train --out made")
    config = read_config(folder)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    weights = folder / "model.safetensors"
    check_belongs(weights, config, tokenizer)
    model = LanguageModel.from_config(config.model, tokenizer.vocabulary_size)
    load_weights(model, weights)
    return Run(folder, config, tokenizer, model.to(choose_device(device)))


def read_config(folder: Path) -> Config:
    """The resolved configuration of a run.

    Raises:
        InputError: there is none, or it is damaged.
    """
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder}/config.yaml: missing; is {folder} the folder of a run?")
    return resolve(folder / "config.yaml")


def identity(config: Config, tokenizer: Tokenizer) -> dict[str, str]:
    """What must agree between the files of a run."""
    model = json.dumps([config.task, config.model.model_dump()], sort_keys=True)
    return {
        "format": "seriatim 1",
        "tokenizer": tokenizer.fingerprint(),
        "model": hashlib.sha256(model.encode()).hexdigest(),
    }


def check_belongs(weights: Path, config: Config, tokenizer: Tokenizer) -> None:
    """Raises InputError where the files of a run are not of one training."""
    found, expected = read_metadata(weights), identity(config, tokenizer)
    files = {"tokenizer": "tokenizer.json", "model": "config.yaml"}
    odd = [file for name, file in files.items() if found.get(name) != expected[name]]
    if len(odd) == len(files) or found.get("format") != expected["format"]:
        odd = [weights.name]  # two against one
    if odd:
        raise InputError(
            f"{weights.parent / odd[0]}: does not belong to the files beside it; restore the run's own, or train again"
        )


def _read_summary(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise InputError(f"{path}: damaged; remove it to use the run without its summary") from None


def _seed(seed: int | None) -> int:
    return random.SystemRandom().randrange(2**31) if seed is None else seed
