"""Shared by every test: a cache of its own, one thread, small texts made on the spot."""

import copy
import json
import os
import random
import signal
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

import seriatim
from seriatim.comparison import planning, row, worker, workers
from seriatim.comparison.worker import WorkerJob, work
from seriatim.core.contract import SequenceLayer
from seriatim.data.vocabulary import Vocabulary
from seriatim.evaluation import context_use
from seriatim.layers import to_torch
from seriatim.layers.registry import BUILT_IN
from seriatim.processes.executors import InlineExecutor
from seriatim.recurrence import uncompiled
from seriatim.tasks.model_size import count_parameters
from seriatim.tasks.task import ModelBuilder

from .quick_compiler import optimised
from .tasks import outside_layer

try:
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    LAY_OUT = ConstrainedLayoutEngine.execute
except ImportError:
    ConstrainedLayoutEngine = None

outside_layer.remove_both()
FULL_DISK = "/dev/full"
needs_full_disk = pytest.mark.skipif(not Path(FULL_DISK).is_char_device(), reason=f"{FULL_DISK} is no device here")
# Nothing fails because the machine is busy. Continuous integration tries the same examples of a test each time, so that
# it judges the change; developers try new ones.
settings.register_profile(
    "any load", suppress_health_check=[HealthCheck.too_slow], deadline=None, derandomize="CI" in os.environ
)
settings.load_profile("any load")

EVERYDAY = 4
"""Of a test with more parameters than so many, ``make test`` runs so many, and ``make test-all`` every one."""


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the others as exhaustive. They lie evenly, from a place on that differs from test to test."""
    variants: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("exhaustive") is None:
            variants[item.nodeid.partition("[")[0]].append(item)
    for test, found in variants.items():
        first = zlib.crc32(test.encode())
        chosen = {(first + len(found) * i // EVERYDAY) % len(found) for i in range(EVERYDAY)}
        for i, item in enumerate(found):
            if i not in chosen:
                item.add_marker("exhaustive")


@pytest.fixture(autouse=True, scope="session")
def _quiet_machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell that runs the tests in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patch:
        base = tmp_path_factory.getbasetemp()
        shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # what one worker compiles serves all
        patch.setenv("SERIATIM_CACHE", str(shared / "cache"))
        patch.setenv("TESTED_HEADERS", str(shared / "headers"))  # see quick_compiler.py
        for device in (torch.cuda, torch.xpu, torch.mtia):  # these format the call stack for a device that is not there
            if not device.is_available():
                patch.setattr(device, "manual_seed_all", lambda seed: None)
        if ConstrainedLayoutEngine is not None:
            patch.setattr(
                ConstrainedLayoutEngine, "execute", lambda engine, figure: None
            )  # takes half of a page's time
        patch.setattr(os, "fsync", lambda descriptor: None)  # no test cuts the power; tests/promises waits for the disk
        if request.config.option.markexpr == "not exhaustive":
            yield from optimised("-O1")  # what is not optimised at all trains for longer than this compiles
        else:
            yield


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay out figures as for users."""
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", LAY_OUT)


@pytest.fixture(scope="module")
def outside_registered():
    """Register the task of `outside_task.py` and the layer of `outside_layer.py` for one file of tests."""
    outside_layer.register_both()
    yield
    outside_layer.remove_both()


COUNTED: dict[tuple[object, ...], int] = {}


def count_once(builder: ModelBuilder, vocabulary: Vocabulary) -> int:
    """Count the parameters of equal models once: comparisons of all tests try the same widths of the same layers."""
    config, sizes = builder.config, [tokenizer.vocabulary_size for tokenizer in vocabulary.tokenizers.values()]
    if not {*config.model.layer.split(",")} <= {*BUILT_IN}:
        return count_parameters(builder, vocabulary)  # layers of different tests may have one name
    key = (type(builder), config.task, config.model.model_dump_json(), *sizes, len(vocabulary.labels))
    if key not in COUNTED:
        COUNTED[key] = count_parameters(builder, vocabulary)
    return COUNTED[key]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let comparisons measure little, and train in the process of the test: another one takes seconds to start."""

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        events: list[dict] = []

        def tell(event: dict) -> None:
            events.append(json.loads(json.dumps(event)))
            listen(events[-1])

        with uncompiled():
            work(job, tell)
        return events[-1]

    monkeypatch.setattr(workers, "run_worker", run)
    monkeypatch.setattr(planning, "count_parameters", count_once)

    def inline(count: int) -> InlineExecutor:
        executor = InlineExecutor()
        executor.worker_count = count
        return executor

    monkeypatch.setattr(workers, "ThreadExecutor", inline)
    monkeypatch.setattr(worker, "SHORTEST", 0.0)
    monkeypatch.setattr(worker, "ROUGH", 0.0)
    monkeypatch.setattr(row, "STATE_AFTER", (1, 10, 100))
    monkeypatch.setattr(row, "TEXT_LENGTHS", (16,))
    monkeypatch.setattr(row, "GENERATED", 5)
    monkeypatch.setattr(row, "CHARACTERS", 10)
    monkeypatch.setattr(context_use, "EXCESS_TOKENS", 40)
    monkeypatch.setattr(context_use, "STRETCH", 4)
    monkeypatch.setattr(context_use, "COMPARED", (1, 4))


SUBJECTS = ("the cat", "a dog", "our friend", "the old man", "she", "nobody")
VERBS = ("sees", "likes", "follows", "paints", "forgets")
OBJECTS = ("the sea", "a small house", "the moon", "her brother", "red wine", "it")


def sentences(count: int, seed: int = 0) -> list[str]:
    """Simple English that a small model can learn."""
    choose = random.Random(seed).choice
    return [f"{choose(SUBJECTS)} {choose(VERBS)} {choose(OBJECTS)} ." for _ in range(count)]


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of a training, a validation and a test text."""
    folder = tmp_path_factory.mktemp("texts")
    paths = {}
    for i, (name, count) in enumerate({"train": 400, "valid": 60, "test": 60}.items()):
        path = folder / f"{name}.txt"
        path.write_text("\n".join(sentences(count, seed=i)) + "\n")
        paths[name] = str(path)
    return paths


def small_config(texts: dict[str, str], out: Path | str, **sections) -> dict:
    """A configuration that trains in about a second."""
    base = {
        "data": {"train": texts["train"], "valid": texts["valid"]},
        "tokenizer": {"kind": "char"},
        "model": {"layer": "gru", "embedding_size": 16, "hidden_size": 24},
        "training": {"steps": 30, "batch_size": 8, "sequence_length": 16, "learning_rate": 0.01, "baseline": "none"},
        "out": str(out),
    }
    for name, section in sections.items():
        base[name] = {**base[name], **section}
    return base


class SmallRuns(dict[str, seriatim.Run]):
    """Small runs by tokenizer and unit, such as ``char-line``; each is trained when a test first asks for it."""

    def __init__(self, texts: dict[str, str], folder: Path) -> None:
        self.texts, self.folder = texts, folder

    def __missing__(self, name: str) -> seriatim.Run:
        kind, unit = name.split("-")
        self[name] = seriatim.train(
            small_config(
                self.texts,
                self.folder / name,
                data={"unit": unit},
                tokenizer={"kind": kind, "vocabulary_size": 300 if kind == "bpe" else None},
                model={"layer": "lstm" if unit == "stream" else "gru"},
                training={"steps": 120},
            )
        )
        return self[name]


@pytest.fixture(scope="session")
def runs(texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> SmallRuns:
    return SmallRuns(texts, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, seriatim.Run]:
    """A small run of every task, to be looked into."""
    from .inspection.inspected import make_runs

    return make_runs(tmp_path_factory.mktemp("inspected"))


def randn(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64)


def as_torch(layer: SequenceLayer, values: Sequence[Tensor]) -> dict[str, Tensor]:
    """One tensor for every parameter of ``layer``, in their order, under the names of its `torch.nn` twin."""
    holder = copy.deepcopy(layer)
    for parameter, value in zip(holder.parameters(), values, strict=True):
        parameter.data = value
    return dict(to_torch(holder).state_dict())
