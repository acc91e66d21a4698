"""A configuration executes nothing, and none makes the program hang, grow or fall: what is not plain is one line."""

import json
import shutil
from pathlib import Path

import pytest

import seriatim
from seriatim.config import parse_value, read_yaml, resolve
from seriatim.core.errors import InputError
from seriatim.data.vocabulary import load_vocabulary
from seriatim.layers import names
from seriatim.storage.weights import load_tensors, save_tensors
from seriatim.training.run_files import identity

from ..conftest import small_config
from .judge import judge, refused

BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))])
MERGED = "\n".join(["b0: &b0 {x: 1}", *(f"b{i}: &b{i} {{<<: [*b{i - 1}, *b{i - 1}]}}" for i in range(1, 30))])
DEEP = 6_000
IN_A_RUN = ", in a run"
FILES: dict[str, tuple[bytes | str, str]] = {
    "a call": ("task: !!python/object/apply:os.system ['touch MARK']", ":1: not valid YAML (tags"),
    "a name": ("task: lm\nout: !!python/name:os.system", ":2: not valid YAML (tags"),
    "an unknown tag": ("task: !thing lm", "tags"),
    "a known tag": ("model: {hidden_size: !!int '1:1:1'}", "tags"),
    "billion laughs": (BOMB, "anchors and aliases"),
    "itself": ("model: &m {options: *m}", "anchors and aliases"),
    "merged": (MERGED, "anchors and aliases"),
    "merged once": ("model: {<<: {layer: gru}}", "unknown key model.<<"),
    "deep lists": ("[" * DEEP * 10, "deep"),
    "deep mappings": ("{a: " * DEEP, "deep"),
    "deep sequences": ("- " * DEEP * 5, "deep"),
    "deep blocks": ("\n".join(" " * i + "a:" for i in range(350)), "deep"),
    "deep keys": ("? " * DEEP, "deep"),
    "too large": ("#" * (1 << 16) + "\ntask: lm", "larger than 65,536 bytes"),
    "a million digits": ("training: {steps: 1" + "0" * 10**6 + "}", "larger than"),
    "many digits": ("training: {steps: 1" + "0" * 5000 + "}", ":1: not valid YAML (a number of more"),
    "hexadecimal": ("training: {steps: 0x" + "f" * 6000 + "}", "training.steps: '0xfff"),
    "sexagesimal": ("training: {steps: 1" + ":1" * 6000 + "}", "training.steps: '1:1:1"),
    "a date": ("training: {steps: 2001-01-01}", "training.steps: '2001-01-01' does not fit"),
    "twice": ("task: lm\nmodel: {layer: gru}\ntask: mlm", ":3: not valid YAML (duplicate key 'task')"),
    "twice inside": ("model:\n  layer: gru\n  layer: rnn", ":3: not valid YAML"),
    "a number as a key": ("1: lm", "a key that is not text"),
    "a list as a key": ("? [1, 2]\n: lm", "a key that is not text"),
    "an option's key": ("model: {options: {null: 1}}", "a key that is not text"),
    "two documents": ("task: lm\n---\ntask: mlm", "not valid YAML"),
    "NUL": (b"task: lm\0", "not valid YAML"),
    "UTF-16": ("task: lm".encode("utf-16"), "cannot be read"),
    "a list": ("- task", "a configuration is a mapping"),
    "not a number": ("training: {learning_rate: .nan}", "training.learning_rate: nan does not fit"),
    "infinity": ("training: {minutes: .inf}", "training.minutes: inf does not fit"),
    "a terminal's orders": ('"\\e]0;x\\a\\n\\n": 1', r"unknown key \x1b]0;x\x07"),
    "a long value": ("task: " + "x" * 60_000, "does not fit"),
    "a long layer": ("model: {layer: " + "x" * 60_000 + "}", "unknown layer"),
    "many layers": ("model: {layer: 'gru" + ",gru" * 15_000 + "', num_layers: 1001}", "num_layers"),
    "junk options": ("model: {options: {x: [[{a: [1]}]]}}", "no option 'x'"),
    "a junk option": ("model: {layer: mamba, options: {state_size: {a: [1]}}}", "state_size"),
    "a huge option": ("model: {layer: mamba, options: {state_size: 3000000000}}", "state_size"),
    "out of range": ("model: {hidden_size: 99999999999999999999999999}", "hidden_size"),
}
"""What a file holds, and part of what is said of it."""
SIZES = {
    **{f"hidden, {name}": {"layer": name, "hidden_size": 10**9, "embedding_size": 10**9} for name in names()},
    **{f"wide, {name}": {"layer": name, "hidden_size": 60_000, "embedding_size": 16} for name in names()},
    "embedding": {"embedding_size": 2**31 - 1},
    "layers": {"num_layers": 1000},
    "many names": {"layer": ",".join(["gru"] * 3000), "num_layers": 1000},
    "positions": {"layer": "transformer", "options": {"position": "learned", "max_length": 2**31 - 1}},
    "experts": {"layer": "transformer", "options": {"num_experts": 2**31 - 1}},
    "heads": {"layer": "transformer", "options": {"num_heads": 2**31 - 1}},
    "kernel": {"layer": "convolution", "options": {"kernel_size": 2**31 - 1}},
    "state": {"layer": "mamba", "options": {"state_size": 2**31 - 1}},
    "expansion": {"layer": "mamba", "options": {"expansion": 2**31 - 1}},
    "negative": {"layer": "mamba", "options": {"expansion": -5}},
    "cache": {"layer": "ngram", "options": {"cache": 0.5, "cache_size": 2**31 - 1}},
}
"""What a run's configuration asks for; the weights beside it are those of a small model."""
TYPICAL = ("lstm", "transformer", "mamba")
EVERYDAY = {name: size for name, size in SIZES.items() if "," not in name or name.partition(", ")[2] in TYPICAL}
"""Of the sizes that every layer can have, those of a few."""


@pytest.fixture(scope="module")
def run(texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    return seriatim.train(small_config(texts, folder / "run", data={"unit": "line"}, training={"steps": 2})).path


@pytest.mark.exhaustive
def test_what_is_not_plain_is_refused_in_one_line(run, tmp_path: Path, texts) -> None:
    cases = {}
    for i, (name, (content, _)) in enumerate(FILES.items()):
        content = content.replace("MARK", str(tmp_path / "mark")) if isinstance(content, str) else content
        path = tmp_path / f"{i}.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        given = ["--data", texts["train"], "--out", str(tmp_path / "out"), "--training.epochs", "1"]
        cases[name] = ["train", "--config", str(path), *given]
        copied = tmp_path / f"run {i}"
        shutil.copytree(run, copied, ignore=shutil.ignore_patterns("checkpoints"))
        shutil.copy(path, copied / "config.yaml")
        cases[f"{name}{IN_A_RUN}"] = ["evaluate", str(copied), "--data", texts["test"]]
    found = judge(tmp_path, ["evaluate", str(run), "--data", texts["test"]], cases)
    wrong = {
        name: outcome
        for name, outcome in found.items()
        if not refused(outcome, FILES[name.removesuffix(IN_A_RUN)][1]) and not refused(outcome, "does not belong to")
    }
    assert not wrong
    assert not (tmp_path / "mark").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "sizes", [pytest.param(EVERYDAY, id="everyday"), pytest.param(SIZES, id="every", marks=pytest.mark.exhaustive)]
)
def test_absurd_sizes_are_refused_before_there_is_memory_for_them(run, tmp_path: Path, texts, sizes) -> None:
    cases = {}
    for i, (name, model) in enumerate(sizes.items()):
        folder = tmp_path / str(i)
        shutil.copytree(run, folder)
        config = read_yaml(run / "config.yaml")
        config["model"] |= model
        (folder / "config.yaml").write_text(json.dumps(config))  # which is YAML
        belongs = identity(resolve(folder / "config.yaml"), load_vocabulary(folder))
        save_tensors(load_tensors(run / "model.safetensors"), folder / "model.safetensors", belongs)
        cases[name] = ["generate", str(folder), "--max-tokens", "3"]
        if not name.startswith("wide"):
            cases[f"{name}, resumed"] = ["train", "--resume", str(folder), "--quiet", "--training.steps", "3"]
    found = judge(tmp_path, ["train", "--resume", str(run), "--quiet"], cases)
    assert not {name: found[name] for name in cases if not refused(found[name])}


def test_values_on_the_command_line_are_plain_or_text() -> None:
    hostile = ("[" * 50_000, "{a: " * 20_000, "!!python/object/apply:os.system [true]", "9" * 100_000, "&a [*a]")
    for text in (*hostile, "a: b: c", "2001-01-01", "0x" + "f" * 1000, "--- 1\n--- 2", "\0"):
        assert parse_value(text) == text
    assert [parse_value(text) for text in ("1", "1e-3", "true", "null", "[1, a]", "{a: 1}")] == [
        *(1, 1e-3, True, None),
        *([1, "a"], {"a": 1}),
    ]


def test_what_a_run_writes_is_read(tmp_path: Path) -> None:
    given = {"data": {"train": "2001-01-01", "valid": "null"}, "training": {"learning_rate": 1e-5}}
    config = resolve({**given, "model": {"options": {"a": "1:30", "b": [0, 1], "c": "é\n"}}})
    (tmp_path / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    assert resolve(tmp_path / "config.yaml") == config


def test_a_message_is_one_line_that_no_terminal_obeys() -> None:
    message = str(InputError("a\nb\x1b[2J\udcff" + "x" * 10_000 + "; mend it"))
    assert message.startswith(r"a b\x1b[2J\udcff")
    assert message.endswith("; mend it")
    assert len(message) < 2000


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """Also where one list stands in two places, which YAML would write once and refer to."""
    shared = [1, 2]
    config = resolve({"model": {"options": {"one": shared, "two": shared, "é: #": "2001-01-01"}}})
    (tmp_path / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    assert resolve(tmp_path / "config.yaml") == config
