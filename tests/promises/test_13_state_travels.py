"""A stream saved half-way through a text goes on in another process with the same bits, whatever the model."""

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import seriatim
from seriatim.core.errors import InputError
from seriatim.core.state import state_to_dict
from seriatim.runs.ensembles import ensemble
from seriatim.runs.stream import Stream
from seriatim.storage import weights
from seriatim.storage.weights import load_tensors, read_metadata, save_tensors

from ..conftest import sentences
from .going_on import compiling, go_on

pytestmark = pytest.mark.filterwarnings("ignore:too few")
FAMILIES: dict[str, dict[str, Any]] = {
    **{name: {"layer": name} for name in seriatim.layers.names()},
    "two layers": {"layer": "lstm", "num_layers": 2, "tie_weights": True},
    "mixed": {"layer": "gru,transformer,mamba", "options": {"window": 3}},
    "attention-window": {"layer": "attention", "options": {"window": 4}},
    "ngram": {"layer": "ngram", "options": {"order": 4}},
    "ngram-cache": {"layer": "ngram", "options": {"order": 3, "cache": 0.3, "cache_size": 7}},
}
COMPILED = ("lstm",)
"""What is run in compiled code, for the time that compiling takes; in the other process it is compiled as well."""
KINDS = ("char", "word", "byte", "bpe")
UNITS = ("stream", "line")


def train(folder: Path, name: str, unit: str, kind: str) -> seriatim.Run:
    text = folder / "text.txt"
    text.write_text("\n".join([*sentences(30), "façade ."]) + "\n")
    sizes = {} if name.startswith("ngram") else {"embedding_size": 8, "hidden_size": 8}
    config = {
        "data": {"train": str(text), "unit": unit},
        "tokenizer": {"kind": kind, "vocabulary_size": 300 if kind == "bpe" else None},
        "model": {**sizes, **FAMILIES[name]},
        "training": {"steps": 1, "batch_size": 4, "sequence_length": 8, "baseline": "none"},
        "out": str(folder / f"{name}-{unit}"),
    }
    with compiling(False):
        return seriatim.train(config)


EVERY = [(name, unit) for name in FAMILIES for unit in UNITS]
EVERYDAY = [(name, UNITS[i % 2]) for i, name in enumerate(FAMILIES)]
CHOICES = [pytest.param(EVERYDAY, id="everyday"), pytest.param(EVERY, id="every", marks=pytest.mark.exhaustive)]


class Runs(dict[tuple[str, str], seriatim.Run]):
    """Untrained models of families over units, with one tokenizer after another; each is made where it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kinds = dict(zip(EVERY, itertools.cycle([*KINDS, *KINDS[1:], KINDS[0]]), strict=False))

    def __missing__(self, key: tuple[str, str]) -> seriatim.Run:
        self[key] = train(self.folder, *key, self.kinds[key])
        return self[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def moments(run: seriatim.Run, chosen: random.Random) -> Iterator[tuple[Stream, str]]:
    """Streams at the start, anywhere in a text, after its end, and in the middle of writing on; and what then comes."""
    lines = sentences(12, seed=3)
    text = ("\n" if run.config.data.unit == "stream" else " ").join([lines[0], "façade .", *lines[1:]])
    words = [i for i, symbol in enumerate(text) if symbol == " "]
    places = words if run.tokenizer.kind == "word" else range(1, len(text))
    for place, writing in ((0, 0), (chosen.choice(places), 0), (len(text), 0), (chosen.choice(places), 7)):
        stream = run.stream()
        stream.feed(text[:place])
        for _ in itertools.islice(stream.generate(max_tokens=50, seed=chosen.randrange(99)), writing):
            pass
        yield stream, text[place:]


def elsewhere(jobs: list[dict[str, Any]]) -> list[list[Any]]:
    """What another process finds."""
    package = str(Path(seriatim.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "tests.promises.going_on"],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": package},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.exhaustive
@pytest.mark.parametrize("keys", CHOICES)
def test_another_process_goes_on_with_the_same_bits(runs, tmp_path: Path, keys: list[tuple[str, str]]) -> None:
    """Scores of the rest, what is written after it, and logits and state at the end."""
    chosen, names, here, ends, jobs = random.Random(0), [], [], [], []
    for name, unit in keys:
        run = runs[name, unit]
        job = {"run": str(run.path), "compiled": name in COMPILED, "moments": []}
        with compiling(name in COMPILED):
            for stream, rest in moments(run, chosen):
                state, end, other = (tmp_path / f"{len(ends)}.{part}" for part in ("state", "here", "there"))
                stream.save(state)
                here.append(go_on(stream, rest, end))
                names.append(f"{name} {unit} {run.tokenizer.kind} before {rest[:20]!r}")
                ends.append((end, other))
                job["moments"].append([str(state), rest, str(other)])
        jobs.append(job)
    for name, mine, theirs, (end, other) in zip(names, here, elsewhere(jobs), ends, strict=True):
        assert mine == theirs, name
        assert end.read_bytes() == other.read_bytes(), name


@pytest.mark.exhaustive
@pytest.mark.parametrize("keys", CHOICES)
def test_the_same_state_is_the_same_bytes(runs, tmp_path: Path, keys: list[tuple[str, str]]) -> None:
    """Saved again, and saved by a stream that loaded it."""
    first, again = tmp_path / "first", tmp_path / "again"
    for run in map(runs.__getitem__, keys):
        stream = run.stream()
        with compiling(False):
            stream.feed("the cat")
        stream.save(first)
        for other in (stream, stream, run.stream().load(first)):
            other.save(again)
            assert again.read_bytes() == first.read_bytes()


def kept(stream: Stream) -> list[Any]:
    tensors = {**state_to_dict(stream.state), "logits": stream.logits}
    return [stream.last, {name: leaf.tolist() for name, leaf in tensors.items()}]


def expect_refusal(stream: Stream, path: Path, message: str) -> None:
    """In one line that names the file; the stream is where it was."""
    before = kept(stream)
    with pytest.raises(InputError, match=message) as caught:
        stream.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).count(str(path)) == 1
    assert "\n" not in str(caught.value)
    assert kept(stream) == before


def boundaries(content: bytes) -> list[int]:
    """Of the header's length, the header and every tensor, and beside each."""
    header = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:header])
    ends = [header + end for name, entry in entries.items() if name != "__metadata__" for end in entry["data_offsets"]]
    beside = {size + step for size in (0, 8, header, *ends) for step in (-1, 0, 1)}
    return sorted(size for size in beside if 0 <= size < len(content))


@pytest.mark.parametrize("name", ["lstm", "attention", "mixed", "ngram-cache"])
def test_a_file_that_was_cut_off_is_refused(runs, tmp_path: Path, name: str) -> None:
    with compiling(False):
        stream, path = runs[name, "stream"].stream(), tmp_path / "state"
        stream.feed("the cat")
        stream.save(path)
        stream.feed(" sees")
    content = path.read_bytes()
    for size in boundaries(content):
        path.write_bytes(content[:size])
        expect_refusal(stream, path, "damaged|unreadable")
    path.unlink()
    expect_refusal(stream, path, "missing")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["lstm", "ngram-cache"])
def test_a_flipped_bit_is_refused_or_changes_nothing(runs, tmp_path: Path, name: str) -> None:
    """In the blanks of a header, or the names of what need not be there, it says nothing."""
    with compiling(False):
        stream, path = runs[name, "stream"].stream(), tmp_path / "state"
        stream.feed("the cat")
        stream.save(path)
        content, saved, chosen = path.read_bytes(), kept(stream), random.Random(0)
        header, refusals = 8 + int.from_bytes(content[:8], "little"), []
        fresh = kept(runs[name, "stream"].stream())
        for place in [*range(header), *chosen.choices(range(header, len(content)), k=200)]:
            damaged = bytearray(content)
            damaged[place] ^= 1 << chosen.randrange(8)
            path.write_bytes(damaged)
            other, wanted = runs[name, "stream"].stream(), saved
            try:
                other.load(path)
            except InputError as error:
                refusals.append(str(error))
                wanted = fresh
            assert wanted is fresh or place < header
            assert kept(other) == wanted
    assert len(refusals) > 0.9 * (header + 200)
    assert all(refusal.startswith(f"{path}: ") and "\n" not in refusal for refusal in refusals)


@pytest.mark.parametrize("keys", CHOICES)
def test_states_of_other_models_are_refused(runs, tmp_path: Path, keys: list[tuple[str, str]]) -> None:
    streams = {}
    for name, unit in keys:
        with compiling(False):
            streams[name, unit] = runs[name, unit].stream()
        streams[name, unit].save(tmp_path / f"{name} {unit}")
    for key, stream in streams.items():
        for other in random.Random(0).sample([each for each in streams if each != key], 9):
            if stream.identity != streams[other].identity:
                expect_refusal(stream, tmp_path / " ".join(other), "does not belong to this model")


def test_a_state_of_the_same_model_with_other_parameters_is_refused(runs, tmp_path: Path) -> None:
    """Trained further, or beside another in an ensemble."""
    run, path = runs["mingru", "line"], tmp_path / "state"
    run.stream().save(path)
    shutil.copytree(run.path, tmp_path / "run")
    with compiling(False):
        further = seriatim.resume(tmp_path / "run", overrides={"training.steps": 2})
    assert further.stream().identity == run.stream().identity
    expect_refusal(further.stream(), path, "does not belong to this model")
    ensemble([run, run]).stream().save(path)
    expect_refusal(ensemble([run, further]).stream(), path, "does not belong to this model")


@pytest.mark.parametrize("name", ["gru", "transformer", "ngram-cache"])
def test_tensors_that_do_not_fit_are_refused(runs, tmp_path: Path, name: str) -> None:
    with compiling(False):
        run, path = runs[name, "line"], tmp_path / "state"
        stream = run.stream()
        stream.feed("the cat")
    stream.save(path)
    tensors, metadata = load_tensors(path), read_metadata(path)
    for name in ("weights", "kind", "num_tokens"):
        save_tensors(tensors, path, {key: value for key, value in metadata.items() if key != name})
        expect_refusal(stream, path, "saved state|another layer|kind")
    save_tensors(tensors, path, {**metadata, "kind": metadata["kind"].replace(" of ", " of Another")})
    expect_refusal(stream, path, "the state belongs to another layer")
    leaf = next(key for key in tensors if key.startswith("state/"))
    changes: list[dict[str, Any]] = [
        *({key: None} for key in tensors),
        *({key: torch.cat([value, value])} for key, value in tensors.items() if value.dim()),
        *({key: value.squeeze(0)} for key, value in tensors.items() if value.dim()),
        *({key: value.half()} for key, value in tensors.items()),
        {"more": torch.zeros(1)},
        {"state/more": torch.zeros(1)},
        {leaf: torch.zeros(1, 2, 3, 4, 5)},
        {"logits": tensors["logits"][:, :-1]},
        {"last": torch.tensor([1, 2])},
        {"last": torch.tensor(-1)},
        {"last": torch.tensor(tensors["logits"].shape[1])},
    ]
    for change in changes:
        changed = {key: value for key, value in {**tensors, **change}.items() if value is not None}
        save_tensors(changed, path, metadata)
        expect_refusal(stream, path, "the saved state")
    for texts in (None, {}, {**metadata, "model": "another"}, {**metadata, "format": "seriatim 0"}):
        save_tensors(tensors, path, texts)
        expect_refusal(stream, path, "does not belong to this model")


def test_a_state_is_written_whole_or_not_at_all(runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, path = runs["lstm", "stream"].stream(), tmp_path / "state"
    stream.save(path)
    before = path.read_bytes()

    def half(_tensors: object, aside: Path, _metadata: object) -> None:
        aside.write_bytes(before[: len(before) // 2])
        raise KeyboardInterrupt

    stream.feed("the cat")
    with monkeypatch.context() as patched:
        patched.setattr(weights, "save_file", half)
        with pytest.raises(KeyboardInterrupt):
            stream.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    stream.save(path)
    assert path.read_bytes() != before


def test_who_may_read_one_file_of_a_run_may_read_all(runs, tmp_path: Path) -> None:
    run = runs["lstm", "stream"]
    run.stream().save(tmp_path / "state")
    (tmp_path / "other").write_text("any")
    files = [tmp_path / "state", *(path for path in run.path.rglob("*") if path.is_file())]
    assert {path.stat().st_mode for path in files} == {(tmp_path / "other").stat().st_mode}


@pytest.mark.parametrize(
    "name", [None, 5, [], b"state", "", "a\0b", "missing/state", ".", "x" * 300, "file/state"], ids=str
)
def test_what_cannot_be_the_file_of_a_state_is_refused(runs, tmp_path: Path, monkeypatch, name: object) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    stream = runs["lstm", "stream"].stream()
    for use in (stream.save, stream.load):
        with pytest.raises(InputError) as raised:
            use(name)
        assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
