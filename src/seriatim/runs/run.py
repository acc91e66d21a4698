"""A run: the folder that a training writes, opened to evaluate, predict, score and generate."""

import contextlib
import copy
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, Unpack, overload

from torch import nn

from ..core.errors import (
    MismatchError,
    MissingError,
    NotSupportedError,
    RangeError,
    check_integer,
    data_name,
    iterate_items,
    require_known,
    shown,
)
from ..core.json_object import JsonObject
from ..data.pipes import chunks
from ..data.tokenizers import END
from ..data.vocabulary import Vocabulary, load_vocabulary
from ..decoding.speculative import Draft, PromptLookup, draft_with
from ..evaluation.word_surprisal import By, UnitSurprisal
from ..layers.outside_code import AllowCode, require_code, stacks_of
from ..layers.positions import learned_positions
from ..models import MaskedLanguageModel
from ..models.base_models import TextModel
from ..models.probabilities import named, naming
from ..recurrence.weight_formats import WeightFormat, check_format
from ..storage.written_folders import file_state, steadily
from ..tasks import open_task
from ..tasks.beside_baseline import Measured, beside_baseline
from ..tasks.data_files import check_lengths
from ..tasks.task import Predictor, Task
from ..training.hardware import choose_device, freed_memory_kept
from ..training.run_files import BASELINE, check_belongs, identity, read_config, weights_digest
from .generation import Generation, Prompt, SamplingSettings, TextSettings, choose_seed, generate_texts
from .run_summary import as_html, main_facts, read_summary
from .scoring import LineScore, line_surprisals, score_lines
from .stream import Stream
from .weight_rounding import round_model

LOOKUP = "lookup"
"""The value of ``draft`` for the continuation of an earlier occurrence in the text itself."""


class Run:
    """A trained model with its vocabulary and configuration.

    Attributes:
        path: the folder.
        task: the task it was trained for.
        config: the configuration, with all defaults filled in.
        vocabulary: tokenizers and labels.
        tokenizer: the tokenizer of the inputs.
        model: in evaluation mode, in float32.
        weights: the format to which the weights of the model are rounded.
        num_combined: the number of runs that it combines.
        place: the folders of all of them, as messages name them.
        device: where the model computes.
        summary: the content of `summary.json`; empty until the training has ended.
    """

    def __init__(self, path: Path, task: Task, vocabulary: Vocabulary, model: nn.Module) -> None:
        self.path, self.task, self.config = path, task, task.config
        self.vocabulary, self.model = vocabulary, model.eval()
        self._blended: nn.Module | None = None
        self._baseline: Run | None = None
        self.weights: WeightFormat = "float32"
        self.num_combined, self.place = 1, str(path)
        self.file_state: object = None  # of the weights when they were read, by which a replaced run is noticed
        self._unrounded: dict[str, str] = {}  # the digest of the weights before they were rounded, by that after
        self.tokenizer = vocabulary.tokenizer
        self.device = next(model.parameters()).device
        self.summary: JsonObject = read_summary(
            path / "summary.json", [metric.key for metric in task.evaluator.metrics]
        )

    @property
    def answering(self) -> nn.Module:
        """The model used for inference: the network, or its ensemble with the baseline; see `blend`."""
        return self.model if self._blended is None else self._blended

    @property
    def language_model(self) -> TextModel:
        """The model used for inference; raise InputError if the run was not trained to continue texts."""
        self.needs("lm")
        assert isinstance(self.answering, TextModel)
        return self.answering

    @property
    def predictor(self) -> Predictor:
        """What answers items; raise InputError if the run does not predict."""
        if self.task.predictor is None:
            uses = "generate, evaluate or surprisal"
            raise NotSupportedError(f"predict: the task {self.config.task} does not support it; use {uses}")
        return self.task.predictor

    def reading(self, values: Mapping[str, object]) -> "Run":
        """Return the run with other values of fields that say how data are read, by dotted name; its files stay."""
        if not values:
            return self
        run = copy.copy(self)
        run.task = open_task(self.config.replaced(values))
        run.config = run.task.config
        return run

    @property
    def measured(self) -> Measured:
        """What is measured of the run."""
        return Measured(self.task, self.vocabulary, self.model, self.answering)

    def blend(self, baseline: "Run", weight: float) -> None:
        """Answer with this model together with a baseline, which has the ``weight``; see `Blender`.

        Raises:
            InputError: the baseline is another model or has another vocabulary, or the task does not support it.
        """
        name = self.task.kind.reference_model
        if baseline.config.model.layer != name:
            raise MismatchError(f"{baseline.path}: not the simple baseline {name}; restore it")
        if baseline.vocabulary.fingerprint() != self.vocabulary.fingerprint():
            raise MismatchError(f"{baseline.path}: of another vocabulary than the run; restore it")
        if self.task.blender is None:
            raise NotSupportedError(f"training.baseline_weight: not supported for {self.config.task}; leave it out")
        model = self.task.blender.blend(self.model, baseline.model.to(self.device), weight)
        self._blended, self._baseline = model.eval(), baseline

    def _round_weights(self, weights: WeightFormat) -> None:
        before = weights_digest(self.answering)  # by which saved streams belong to the run
        round_model(self.model, weights, self.path, self.config.task)
        self.weights, self._unrounded = weights, {weights_digest(self.answering): before}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in list(self._facts().items())[:4])
        return f"Run({str(self.path)!r}, {shown})"

    def _repr_html_(self) -> str:
        return as_html({"folder": str(self.path), **self._facts()})

    def _facts(self) -> dict[str, str]:
        parameters = self.summary.get("parameters") or sum(value.numel() for value in self.model.parameters())
        return main_facts(self.task, self.summary, parameters)

    @property
    def stop(self) -> int | None:
        """The token that ends a text; None for a running text where it ends lines or does not occur."""
        running = self.config.data.unit == "stream"
        one_document = self.summary.get("documents") == 1
        return None if running and (self.tokenizer.ends_lines or one_document) else END

    def generate(
        self,
        prompt: str = "",
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
        draft: "str | os.PathLike[str] | Run | None" = None,
        **sampling: Unpack[SamplingSettings],
    ) -> Iterator[str]:
        """Generate a text that follows ``prompt``, in pieces as they are generated.

        Args:
            prompt: the beginning of the text, which is not repeated.
            max_tokens: largest number of tokens; None for 200, or as many as a model with learned positions can read.
            seed: the same seed gives the same text; None gives another text each time.
            draft: where drafts of the next tokens come from, of which the model verifies several in one pass: an n-gram
                run (or another fast language model) with the same vocabulary, its folder, or ``"lookup"`` for what
                followed the last tokens before. The distribution of the text stays the same.
            sampling: ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``typical``, ``repetition_penalty``,
                ``frequency_penalty``, ``presence_penalty``, ``logit_bias`` and ``stop``, as in `SamplingSettings`.

        Raises:
            InputError: a setting outside its range, a prompt or a bias with unknown symbols, a run of another task, a
                draft of another vocabulary, or fewer learned positions than the prompt and ``max_tokens`` need.
        """
        self.needs("lm")
        Generation.parse(self.tokenizer, sampling)  # checks the settings before the prompt is read
        stream, drafts = self.stream(), None if draft is None else self._drafts(draft)
        stream.read(prompt)
        if drafts is not None:
            drafts.append([self.tokenizer.begin, *self.tokenizer.encode(prompt).tolist()])
        return stream.generate(max_tokens=max_tokens, seed=choose_seed(seed), draft=drafts, **sampling)

    def _drafts(self, draft: "str | os.PathLike[str] | Run") -> Draft:
        if draft == LOOKUP:
            return PromptLookup()
        if not isinstance(draft, str | os.PathLike | Run):
            raise RangeError(f"draft: {shown(draft)} cannot be one; give {LOOKUP!r}, a run or the folder of a run")
        other = draft if isinstance(draft, Run) else load(os.fspath(draft), device=str(self.device))
        other.needs("lm")

        # A draft that ends before the model does could propose nothing for the rest of the text.
        read, ours = learned_positions(other.answering), learned_positions(self.answering)
        if read is not None and (ours is None or read < ours):
            raise MismatchError(
                f"draft: {other.path} reads only {read:,} tokens, fewer than {self.path}; use another run"
            )

        # Drafted tokens are verified by their ids, which must mean the same in both models.
        if other.vocabulary.fingerprint() != self.vocabulary.fingerprint():
            raise MismatchError(
                f"draft: {other.path} has another vocabulary than {self.path}; train it on the same data with the same "
                "tokenizer"
            )
        return draft_with(other.language_model)

    def samples(self, count: int, prompt: str = "", **settings: Unpack[TextSettings]) -> list[str]:
        """Return the texts of `iter_samples` as a list; the arguments are the same."""
        return list(self.iter_samples(count, prompt, **settings))

    def iter_samples(
        self,
        count: int,
        prompt: str = "",
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
        **sampling: Unpack[SamplingSettings],
    ) -> Iterator[str]:
        """Generate several texts in batches of bounded memory; text i is that of `generate` with seed ``seed + i``.

        Args:
            count: number of texts.
            prompt: the beginning of each text, which is not repeated.
            max_tokens: as in `generate`.
            seed: seed of the first text.
            sampling: as in `generate`.

        Raises:
            InputError: as in `generate`, or a count below 1.
        """
        count = check_integer("samples", count, minimum=1)
        self.tokenizer.check_known(prompt)
        return self.generate_many((prompt for _ in range(count)), max_tokens=max_tokens, seed=seed, **sampling)

    def generate_many(
        self,
        prompts: Iterable[str | Prompt],
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
        **sampling: Unpack[SamplingSettings],
    ) -> Iterator[str]:
        """Generate a text for each prompt, in order, in one batch that texts leave as they end and others enter.

        Text i is that of `generate` with seed ``seed + i``. The prompts are read while texts are generated.

        Args:
            prompts: the beginnings of the texts, which are not repeated.
            max_tokens: as in `generate`, for each text.
            seed: seed of the first text.
            sampling: as in `generate`.

        Raises:
            InputError: as in `generate`. The texts before a prompt that cannot be read are generated first.
        """
        self.needs("lm")
        if max_tokens is not None:
            max_tokens = check_integer("max_tokens", max_tokens, minimum=0)
        settings = Generation.parse(self.tokenizer, sampling)

        # A prompt is located when it is read: an error must name one of many, which are not kept.
        items = iterate_items(prompts, "prompts")
        located = (
            item if isinstance(item, Prompt) else Prompt(item, f"prompts: item {number}")
            for number, item in enumerate(items)
        )
        texts = generate_texts(
            self.language_model,
            self.tokenizer,
            located,
            settings,
            max_tokens=max_tokens,
            seed=choose_seed(seed),
            stop=self.stop,
        )
        return named(self.place, texts)

    def score(self, lines: Iterable[str]) -> list[LineScore]:
        """Compute the probability of each line as a text of its own.

        Args:
            lines: texts without line ends.

        Returns:
            For each line ``log_probability`` in nats and ``tokens``, both with the symbol that ends the line (for a
            running text, the line end), and ``bytes`` of the line itself. An unknown word counts as ``<unk>``.

        Raises:
            InputError: a line is not a text, contains a line end, or has more tokens than learned positions; or the run
                is not a language model.
        """
        model = self.language_model
        with naming(self.place):
            return score_lines(model, self.tokenizer, self.config, lines)

    def surprisal(
        self, lines: Iterable[str], *, by: By = "word", carry_context: bool = False
    ) -> Iterator[list[UnitSurprisal]]:
        """Yield the surprisals of the words, tokens or characters of each line, lazily and in order.

        Args:
            lines: texts without line ends.
            by: ``word``, ``token`` or ``character``; see `seriatim.evaluation.word_surprisal`.
            carry_context: read the lines as one text, with a line end between them; by default each is its own text.

        Raises:
            InputError: a line is not a text or contains a line end; the run is not a language model, or reads separate
                lines and the context is to be carried; or a token is a part of two words or characters.

        A masked language model gives pseudo-surprisals; see `seriatim.evaluation.pseudo_likelihood`.
        """
        self.needs("lm", "mlm")
        model = self.answering
        assert isinstance(model, TextModel | MaskedLanguageModel)
        unit = self.config.data.unit
        if carry_context and unit == "line":
            raise NotSupportedError(f"{self.path}: was trained on separate lines; score each line alone")
        if carry_context and self.config.task == "mlm":
            raise NotSupportedError(
                f"{self.path}: is a masked language model, which keeps no context; score each line alone"
            )
        surprisals = line_surprisals(model, self.tokenizer, lines, by=by, carry_context=carry_context, unit=unit)
        return named(self.place, surprisals)

    def check_lengths(self, texts: Iterable[tuple[str, str]], *, more: int = 0) -> None:
        """Raise InputError for the first of some texts that is too long for a model with learned positions.

        Each text comes after its location, such as its file and line; ``more`` tokens follow it. Models of the other
        kinds read texts of any length, and then nothing is read here.
        """
        if (limit := learned_positions(self.answering)) is None:
            return
        around = 2 if self.tokenizer.frames else 1
        for location, text in texts:
            check_lengths(limit, [len(self.tokenizer.encode(text)) + around], [location].__getitem__, more=more)

    def evaluate(
        self, data: str | os.PathLike[str], *, file_format: str | None = None, **settings: object
    ) -> JsonObject:
        """Compute the metrics of the run's task on some data.

        If the run answers with its network together with its simple baseline, these are the metrics of both together;
        ``network`` and ``baseline`` hold those of each alone, as ``seriatim evaluate --json`` prints them.

        Args:
            data: a file, a folder, a glob, ``-`` or a built-in corpus, of which the test part is read.
            file_format: a value of ``data.format``; None for that of the run.
            settings: fields of the `settings` of the task's evaluator, such as ``window``, the number of tokens that a
                language model reads at once.

        Raises:
            InputError: the data cannot be read.
        """
        test = self.task.reader.read(data_name(data), "test", self.vocabulary, file_format=file_format)
        with freed_memory_kept(), naming(self.place):
            if self._baseline is None:
                return self.task.evaluator.evaluate(self.answering, test, **settings)
            return beside_baseline(self.measured, self._baseline.measured, test, **settings).as_json(
                self.config.training.baseline_weight
            )

    @overload
    def predict(
        self, items: Iterable[object], *, details: Literal[False] = ..., **settings: object
    ) -> Iterator[str]: ...

    @overload
    def predict(
        self, items: Iterable[object], *, details: Literal[True], **settings: object
    ) -> Iterator[JsonObject]: ...

    def predict(
        self, items: Iterable[object], *, details: bool = False, **settings: object
    ) -> Iterator[str] | Iterator[JsonObject]:
        """Predict a label, tags or a translation for each item, lazily and in order.

        Args:
            items: texts without line ends, or what else the task accepts; an empty text is an item too.
            details: yield a dict for each item instead of its text: ``text``, ``seconds``, and what the task knows
                of the answer, such as probabilities, scores and alignments.
            settings: fields of the `settings` of the task's predictor, such as ``beam``.

        Raises:
            InputError: a single string, an item that the task cannot read, or a language model, which does not predict.
        """
        batches = chunks(iterate_items(items, "predict"), self.predictor.batch_size)
        answers = self.predict_batches(batches, details=details, **settings)
        return answers if details else (answer["text"] for answer in answers)

    def predict_batches(
        self, batches: Iterable[list[object]], *, details: bool = True, **settings: object
    ) -> Iterator[JsonObject]:
        """Predict as `predict` does with ``details``, for items in lists that are answered together.

        Without ``details``, those that take time of their own may be missing.
        """
        predictor = self.predictor
        for name in settings:
            require_known("setting", name, predictor.settings.model_fields)
        if not details and "probabilities" in predictor.settings.model_fields:
            settings.setdefault("probabilities", False)

        # Items are checked before any of their batch is answered, and counted over all batches for messages.
        numbers = itertools.count()
        with contextlib.ExitStack() as stack:
            for index, items in enumerate(batches):
                for item in items:
                    predictor.check_item(item, f"predict: item {next(numbers)}")
                if index == 1:  # for one batch the settings of malloc cost more than they save
                    stack.enter_context(freed_memory_kept())
                started = time.perf_counter()
                with naming(self.place):
                    answers = predictor.answer(self.answering, self.vocabulary, items, **settings)
                seconds = (time.perf_counter() - started) / len(items)
                for answer in answers:
                    yield {**answer, "seconds": seconds}

    def stream(self) -> Stream:
        """Return an empty text that is read and generated piece by piece; only language models have streams."""
        model, owner, before = self.language_model, identity(self.config, self.vocabulary), self._unrounded
        return Stream(model, self.tokenizer, stop=self.stop, identity=owner, unrounded=before, place=self.place)

    def needs(self, *tasks: str) -> None:
        """Raise InputError if the run was trained for another task than these."""
        if self.config.task not in tasks:
            use = "surprisal or predict" if self.config.task == "mlm" else "predict"
            raise NotSupportedError(
                f"{self.path}: trained to {self.config.task}, which writes no text of its own; use {use}, or a run "
                f"trained with: seriatim train {tasks[0]}"
            )


def load(
    path: str | Path, *, device: str = "auto", allow_code: AllowCode = False, weights: WeightFormat = "float32"
) -> Run:
    """Open a run.

    Args:
        path: the folder.
        device: where the model computes; ``auto`` is CUDA if there is one, else the CPU.
        allow_code: whether the code of a layer outside the library may be imported from the file that the run names:
            True if the file has not changed since the training, ``"changed"`` in any case. A layer that this process
            has registered needs no permission.
        weights: ``bfloat16``, ``int8`` or ``int4`` rounds the matrices that each decoding step multiplies with, so that
            it reads fewer bytes; see `seriatim.recurrence.weight_formats`.

    Raises:
        InputError: a file is missing, damaged, or belongs to another run; or the run needs code that is not allowed,
            is missing or has changed; or its weights cannot be rounded.
    """
    if weights != "float32":
        check_format(weights)  # before anything is read
    if not isinstance(path, str | Path):
        raise RangeError(f"load: {shown(path)} is not the path of a folder; give that of a run")
    return steadily(Path(path), lambda: _load(path, device, allow_code, weights))


def _load(path: str | Path, device: str, allow_code: AllowCode, weights: WeightFormat) -> Run:
    """Open a run; see `load`."""
    # What the folder names is checked before anything of it is imported or read.
    config, folder = read_config(path), Path(path)
    require_code(folder, stacks_of(config), allow_code=allow_code)
    vocabulary = load_vocabulary(folder)
    file = folder / "model.safetensors"
    if not file.exists() and (folder / "checkpoints").is_dir():
        raise MissingError(f"{file}: not there yet, as training saves it after the first validation; wait for it")
    check_belongs(file, config, vocabulary)
    task = open_task(config)

    # The state of the file is taken before it is read, so that weights that come meanwhile are noticed.
    state = file_state(file)
    run = Run(folder, task, vocabulary, task.builder.load(vocabulary, file).to(choose_device(device)))
    run.file_state = state

    # Rounding comes last, because the answers of both together are what a saved stream belongs to.
    weight = config.training.baseline_weight
    if weight and weight != "auto":  # auto: the training has not ended yet
        run.blend(load(folder / BASELINE, device=device), weight)
    if weights != "float32":
        run._round_weights(weights)
    return run
