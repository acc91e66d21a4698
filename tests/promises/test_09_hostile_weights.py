"""Weights that are none, or not those that were written, are refused in one line, within the memory of good ones."""

import contextlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import seriatim
from seriatim.cli.main import main
from seriatim.core.errors import InputError
from seriatim.models.probabilities import NotFiniteError
from seriatim.recurrence import uncompiled
from seriatim.storage.weights import load_tensors, read_metadata, save_tensors

from ..conftest import small_config
from ..exhaustive import parameters
from ..golden.answers import GOLDEN
from ..golden.recipes import DATA
from ..refusals import refused
from .judge import refuse

LARGE = 200 << 20
WEIGHTS = "model.safetensors"
Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def run(texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seriatim.train(small_config(texts, tmp_path_factory.mktemp("good") / "run", training={"steps": 2})).path


@pytest.fixture(scope="module")
def counted(texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = {"layer": "ngram", "options": {"order": 3, "smoothing": "witten-bell"}}
    config = small_config(texts, tmp_path_factory.mktemp("counted") / "run")
    return seriatim.train({**config, "model": model}).path


def header(entries: Any, *, length: int | None = None, data: bytes = b"") -> Callable[[Path], object]:
    """A safetensors file with this header."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return lambda path: path.write_bytes((length or len(text)).to_bytes(8, "little") + text + data)


def one(dtype: str = "F32", shape: Any = (2,), places: Any = (0, 8), name: str = "x") -> dict[str, Any]:
    return {name: {"dtype": dtype, "shape": shape, "data_offsets": places}}


HEADERS: dict[str, Callable[[Path], object]] = {
    "2^63": header({}, length=1 << 63),
    "2^64 - 1": header({}, length=(1 << 64) - 1),
    "beyond the end": header({}, length=1000),
    "bloated": lambda path: (header({}, length=LARGE - 8)(path), os.truncate(path, LARGE)),
    "blanks": header(b"{}" + b" " * (5 << 20)),
    "no JSON": header(b"\x80\x04." * 30),
    "not UTF-8": header(b'{"\xff": 1}'),
    "deep": header(b'{"x":' * 100_000),
    "a list": header([1]),
    "null": header(b"null"),
    "entries that are none": header({"x": 3, "y": []}),
    "texts that are none": header({"__metadata__": {"format": {"a": 1}}}),
    "texts in a list": header({"__metadata__": [1]}),
    "twice": header(b'{"x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"x":1}'),
    "overlapping": header(one() | one(places=(4, 12), name="y"), data=bytes(12)),
    "a hole": header(one() | one(places=(12, 20), name="y"), data=bytes(20)),
    "beyond the data": header(one(places=(0, 1 << 40)), data=bytes(8)),
    "backwards": header(one(places=(8, 0)), data=bytes(8)),
    "negative places": header(one(places=(-8, 0)), data=bytes(8)),
    "an overflowing shape": header(one(shape=[1 << 32, 1 << 32]), data=bytes(8)),
    "a shape that wraps around": header(one(shape=[1 << 62, 4, 2]), data=bytes(8)),
    "a negative shape": header(one(shape=[-2, -1]), data=bytes(8)),
    "nothing of very much": header(one(shape=[0, 1 << 62], places=(0, 0))),
    "a broken shape": header(one(shape=[1.5, "a"]), data=bytes(8)),
    "true for one": header(one(shape=[True, 2]), data=bytes(8)),
    "thousands of dimensions": header(one(shape=[1] * 5000 + [2]), data=bytes(8)),
    "an unknown type": header(one("F33"), data=bytes(8)),
    "more data": header(one(), data=bytes(16)),
    "less data": header(one(), data=bytes(4)),
    "nothing": lambda path: path.write_bytes(b""),
}


def changed(run: Path, change: Change) -> Callable[[Path], object]:
    """The run's own weights with something changed, and texts that say that they belong to it."""
    weights = run / WEIGHTS
    return lambda path: save_tensors(change(load_tensors(weights)), path, read_metadata(weights))


@pytest.mark.exhaustive
def test_weights_that_are_none_are_refused(run, tmp_path: Path) -> None:
    table = "embedding.weight"
    changes: dict[str, Change] = {
        "float64": lambda found: {name: value.double() for name, value in found.items()},
        "integers": lambda found: {**found, table: found[table].int()},
        "half": lambda found: {**found, table: found[table].half()},
        "transposed": lambda found: {**found, table: found[table].t().contiguous()},
        "flattened": lambda found: {**found, table: found[table].flatten()},
        "one more": lambda found: {**found, "../../../etc/x": found[table].clone()},
        "an absolute name": lambda found: {**found, "/etc/x": found[table].clone()},
        "NUL in a name": lambda found: {**found, "x\0y": found[table].clone()},
        "one less": lambda found: {name: value for name, value in found.items() if name != table},
        "none": lambda found: {},
    }
    places = HEADERS | {name: changed(run, change) for name, change in changes.items()}
    refuse({name: (WEIGHTS, place) for name, place in places.items()}, run, tmp_path)


def saved_state(run: Path, path: Path) -> Path:
    stream = seriatim.load(run).stream()
    stream.feed("the cat")
    stream.save(path)
    return path


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), content[start:]


def test_values_that_were_swapped_or_changed_are_refused(run, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / WEIGHTS
    before = path.read_bytes()
    entries, data = split(before)
    alike = [name for name, entry in entries.items() if entry.get("shape") == [72]]
    assert len(alike) == 2
    header({**entries, alike[0]: entries[alike[1]], alike[1]: entries[alike[0]]}, data=data)(path)
    with refused("damaged", "model.safetensors"):
        seriatim.load(path.parent)
    for place in (len(before) - len(data), len(before) - len(data) // 2, len(before) - 1):
        path.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
        with refused("damaged", "model.safetensors"):
            seriatim.load(path.parent)
        with refused("damaged", "model.safetensors"):
            seriatim.train({"training": {"init": str(path.parent)}, "data": {"train": "x"}, "out": str(tmp_path / "o")})


def test_weights_without_a_digest_open(run, tmp_path: Path) -> None:
    """As runs of earlier versions have them."""
    shutil.copytree(run, tmp_path / "run")
    metadata = read_metadata(run / WEIGHTS)
    save_file(load_tensors(run / WEIGHTS), tmp_path / "run" / WEIGHTS, metadata)
    assert "sha256" not in split((tmp_path / "run" / WEIGHTS).read_bytes())[0]["__metadata__"]
    found, known = seriatim.load(tmp_path / "run"), seriatim.load(run)
    assert found.score(["the cat"]) == known.score(["the cat"])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(run, tmp_path: Path, value: float) -> None:
    """One value is enough, in a file whose digest is right."""
    shutil.copytree(run, tmp_path / "run")
    name = "output.bias"
    changed(run, lambda found: {**found, name: found[name].index_fill(0, torch.tensor([3]), value)})(
        tmp_path / "run" / WEIGHTS
    )
    with refused("damaged", "model.safetensors"):
        seriatim.load(tmp_path / "run")
    config = small_config({"train": "x", "valid": "y"}, tmp_path / "o", training={"init": str(tmp_path / "run")})
    changed(run, lambda found: {name: torch.full_like(tensor, value) for name, tensor in found.items()})(
        tmp_path / "run" / WEIGHTS
    )
    with refused("damaged", "model.safetensors"):
        seriatim.train(config)


def test_values_that_a_saved_state_cannot_have_are_refused(run, counted, tmp_path: Path) -> None:
    for folder in (run, counted):
        path = saved_state(folder, tmp_path / f"{folder.parent.name}.safetensors")
        opened, tensors, metadata = seriatim.load(folder), load_tensors(path), read_metadata(path)
        for name, value in tensors.items():
            for odd in (float("nan"), float("inf")) if value.is_floating_point() else ():
                save_tensors({**tensors, name: torch.full_like(value, odd)}, path, metadata)
                with pytest.raises(InputError, match=rf"{path.name}: .* holds NaN or infinity"):
                    opened.stream().load(path)


def large(pattern: str, value: float | None = None) -> Change:
    """The parameters of some names so large that float32 overflows where they are used, or all of one value."""

    def change(found: dict[str, Any]) -> dict[str, Any]:
        chosen = {name: tensor for name, tensor in found.items() if re.search(pattern, name) and tensor.numel()}
        made = {
            name: tensor / tensor.abs().max() * 3.4e38 if value is None else torch.full_like(tensor, value)
            for name, tensor in chosen.items()
            if tensor.is_floating_point()
        }
        return found | made

    return change


def apart(bias: Tensor) -> Tensor:
    """Values whose differences float32 cannot hold."""
    return torch.full_like(bias, -3.3e38).index_fill(0, torch.tensor([0]), 3.3e38)


ENLARGED: dict[str, Change] = {
    "scaled": large(""),
    "outputs": large("^output|^weight|^bias|crf"),
    "all the same": large("", 3e38),
    "all impossible": large("output|bias", -3.4e38),
    "far apart": lambda found: found | {name: apart(t) for name, t in found.items() if name in ("output.bias", "bias")},
    "a bias": lambda found: found | {name: t + 3.4e38 for name, t in found.items() if name in ("output.bias", "bias")},
}
KINDS = (
    *("lm-gru", "lm-transformer", "lm-mamba", "mlm-gru", "mlm-transformer", "classify-max", "classify-attention"),
    *("tag-crf", "tag-words", "seq2seq-dot", "seq2seq-copied", "seq2seq-transformer", "seq2seq-ctc"),
)
CASES = [f"{kind} {how}" for kind in KINDS for how in ENLARGED]
EVERYDAY = [f"{kind} {how}" for kind in ("lm-gru", "mlm-gru", "classify-max", "seq2seq-dot") for how in ENLARGED]
EVERYDAY += [f"{kind} scaled" for kind in KINDS]
LINE = "the [MASK] cat sees the sea ."


def enlarged(kind: str, how: str, folder: Path) -> Path:
    shutil.copytree(GOLDEN / kind, folder)
    weights = folder / WEIGHTS
    metadata = {name: text for name, text in read_metadata(weights).items() if name != "sha256"}
    save_tensors(ENLARGED[how](load_tensors(weights)), weights, metadata)
    return folder


def uses_of(run: seriatim.Run) -> dict[str, Callable[[], object]]:
    """Everything that chooses or scores."""
    uses = {"evaluate": lambda: run.evaluate(str(GOLDEN / "data" / f"valid-{DATA[run.config.task]}"))}
    if run.config.task != "lm":
        uses["predict"] = lambda: list(run.predict([LINE], details=True))
    if run.config.task == "seq2seq" and run.config.model.options["factorisation"] != "ctc":
        uses["samples"] = lambda: list(run.predict([LINE], seed=1, details=True))
    if run.config.task == "lm":
        uses |= {
            "score": lambda: run.score(["the cat"]),
            "surprisal": lambda: list(run.surprisal(["the cat"])),
            "feed": lambda: run.stream().feed("the cat"),
            "generate": lambda: list(run.generate("the", max_tokens=9, seed=1)),
            "greedy": lambda: list(run.generate("the", max_tokens=9, temperature=0)),
            "filtered": lambda: list(run.generate("the", max_tokens=9, seed=1, top_p=0.5, min_p=0.1, typical=0.9)),
            "drafted": lambda: list(run.generate("the cat the cat", max_tokens=9, seed=1, draft="lookup")),
            "together": lambda: run.samples(2, "the", max_tokens=9, seed=1),
        }
    return uses


def numbers(value: object) -> Iterator[float]:
    """All numbers of an answer, or of metrics."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from numbers(part)
    elif isinstance(value, int | float):
        yield value


def outcome(use: Callable[[], object]) -> object:
    """What comes of it, None for the error."""
    with uncompiled(), contextlib.suppress(NotFiniteError):
        return use()
    return None


@pytest.mark.parametrize("case", parameters(CASES, everyday=EVERYDAY))
def test_no_figure_is_made_from_a_nan(tmp_path: Path, case: str) -> None:
    """Weights that are finite and give NaN or infinity: one line, or a right figure."""
    kind, _, how = case.partition(" ")
    run = seriatim.load(enlarged(kind, how, tmp_path / "run"), device="cpu")
    found = {name: outcome(use) for name, use in uses_of(run).items()}
    assert not any(map(math.isnan, numbers(found))), found
    for answer in found.get("predict") or ():
        assert all(0 <= share <= 1.001 for share in numbers(answer.get("probabilities", ())))


@pytest.mark.parametrize("kind", ["lm-gru", "mlm-gru", "classify-max", "tag-crf", "seq2seq-dot", "seq2seq-ctc"])
def test_every_verb_says_so_in_one_line(tmp_path: Path, kind: str, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    run, task = str(enlarged(kind, "scaled", tmp_path / "run")), kind.split("-")[0]
    (tmp_path / "line.txt").write_text(f"{LINE}\n")
    line, data = str(tmp_path / "line.txt"), f"data/valid-{DATA[task]}"
    commands = [["evaluate", run, "--data", data], ["evaluate", run, "--data", data, "--json"], ["serve", run]]
    commands += [["inspect", run, "--text", LINE.replace("[MASK]", "")]]
    if task == "lm":
        commands += [["generate", run, "--samples", "2"], ["surprisal", run, line]]
    else:
        commands = [*commands[:2], *commands[3:], ["predict", run, line], ["predict", run, line, "--json"]]
    for command in commands:
        with uncompiled():
            assert main(command) == 2, command
        printed, error = capsys.readouterr()
        assert error.count("\n") == 1
        assert f"{run}: the scores that the model computes are NaN or infinite" in error
        assert "default" not in error  # no penalty or bias was given
        assert printed.count("\n") == (command[0] == "surprisal")  # the head of the table


def test_the_run_with_such_scores_is_named_among_several(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(GOLDEN)
    good, bad, data = "lm-gru", str(enlarged("lm-gru", "scaled", tmp_path / "run")), "data/valid-text.txt"
    (tmp_path / "line.txt").write_text(f"{LINE}\n")
    for command in (
        ["surprisal", good, bad, str(tmp_path / "line.txt")],
        ["evaluate", good, bad, "--data", data],
        ["evaluate", good, bad, "--data", data, "--interpolate", data],
        ["evaluate", f"{good},{bad}", "--data", data],
        ["serve", good, f"bad={bad}"],
    ):
        with uncompiled():
            assert main(command) == 2, command
        error = capsys.readouterr().err
        assert re.search(rf"(?<!{good}): error: ({good}, )?{bad}: the scores .* NaN or infinite", error), error
        assert error.count("\n") == 1


@pytest.mark.parametrize("kind", ["lm-gru", "seq2seq-dot"])
def test_scores_further_apart_than_float32_reaches_have_finite_differences(tmp_path: Path, kind: str) -> None:
    """Log P is finite where the scores are, however large, and every verb has the same."""
    run = seriatim.load(enlarged(kind, "far apart", tmp_path / "run"), device="cpu")
    data = GOLDEN / "data" / f"valid-{DATA[run.config.task]}"
    with uncompiled():
        metrics = run.evaluate(str(data))
        assert 3.5e38 < metrics["loss"] < math.inf
        if run.config.task == "lm":
            scores = run.score(data.read_text().splitlines())
            bits = sum(unit.bits for line in run.surprisal(data.read_text().splitlines()) for unit in line)
            assert metrics["loss"] * metrics["tokens"] == pytest.approx(-sum(score.log_probability for score in scores))
            assert bits * math.log(2) == pytest.approx(metrics["loss"] * metrics["tokens"], rel=0.2)


def test_a_state_that_is_none_is_refused(run, counted, tmp_path: Path) -> None:
    for folder in (run, counted):
        path = saved_state(folder, tmp_path / f"{folder.parent.name}.safetensors")
        opened, tensors, metadata = seriatim.load(folder), load_tensors(path), read_metadata(path)
        opened.stream().load(path).feed(" likes")
        vocabulary = opened.tokenizer.vocabulary_size
        states = {name: value for name, value in tensors.items() if name.startswith("state/")}
        odd = [
            {**tensors, "last": value}
            for value in map(torch.tensor, (-1, vocabulary, 2**62, [1, 2], 1.0, float("nan")))
        ]
        odd += [
            {**tensors, "logits": torch.zeros(size)} for size in ((1, vocabulary + 1), (2, vocabulary), (vocabulary,))
        ]
        odd += [{**tensors, name: value.repeat(2, *[1] * (value.dim() - 1))} for name, value in states.items()]
        odd += [{**tensors, name: value.double()} for name, value in states.items()]
        odd += [{**tensors, name: value[:, :-1].contiguous()} for name, value in states.items()]
        odd += [{name: value for name, value in tensors.items() if name != left} for left in tensors]
        odd.append({**tensors, "state/../../x": torch.zeros(1)})
        for changed_tensors in odd:
            save_tensors(changed_tensors, path, metadata)
            with pytest.raises(InputError, match=path.name):
                opened.stream().load(path)
        for place in HEADERS.values():
            place(path)
            with pytest.raises(InputError, match=path.name):
                opened.stream().load(path)
