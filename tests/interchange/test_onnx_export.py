"""The exported folder holds all that a program needs, and its example program runs without PyTorch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tokenizers
import torch
from safetensors.numpy import load_file

import seriatim
from seriatim.cli.main import main
from seriatim.interchange import onnx_export

from ..conftest import sentences
from ..exhaustive import parameters

SMALL = {"embedding_size": 12, "hidden_size": 12, "num_layers": 1}
STEPS = {"steps": 20, "batch_size": 8, "learning_rate": 0.03, "baseline": "none"}
LINES = sentences(12, seed=5)


def trained(
    task: str, data: Path, out: Path, *, unit: str | None = None, model: dict | None = None, **sections: object
) -> seriatim.Run:
    parts = {"train": str(data), **({} if unit is None else {"unit": unit})}
    return seriatim.train(
        {"task": task, "data": parts, "model": {**SMALL, **(model or {})}, "training": STEPS,
         "out": str(out), **sections}
    )  # fmt: skip


def exported(run: seriatim.Run, out: Path) -> Path:
    assert main(["export", str(run.path), "--format", "onnx", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of packages: onnxruntime, NumPy and tokenizers, and nothing else."""
    folder = tmp_path_factory.mktemp("packages")
    for package in (np, onnxruntime, tokenizers):
        place = Path(package.__file__).parent
        for path in (place, place.with_name(f"{place.name}.libs")):
            if path.exists():
                (folder / path.name).symlink_to(path)
    return folder


def run_program(folder: Path, packages: Path, *arguments: str, lines: list[str] | None = None) -> list[str]:
    """Run `run.py` where no other package can be imported; return the lines it prints."""
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    for unwanted in ("torch", "seriatim"):
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({unwanted!r}) is not None)"
        subprocess.run([sys.executable, "-S", "-c", code], env=environment, check=True, cwd=folder)
    done = subprocess.run(
        [sys.executable, "-S", str(folder / "run.py"), *arguments], env=environment, check=True, text=True,
        capture_output=True, input=None if lines is None else "".join(f"{line}\n" for line in lines), encoding="utf-8",
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind",
    ["char", pytest.param("word", marks=pytest.mark.exhaustive), pytest.param("bpe", marks=pytest.mark.exhaustive)],
)
def test_a_text_is_continued_as_by_the_run(texts, tmp_path, without_torch, kind) -> None:
    tokenizer = {"kind": kind, **({"vocabulary_size": 300} if kind == "bpe" else {})}
    run = trained("lm", Path(texts["train"]), tmp_path / "run", model={"layer": "lstm"}, tokenizer=tokenizer)
    folder = exported(run, tmp_path / "onnx")
    prompt = "the cat"
    expected = prompt + ("" if kind != "word" else " ") + "".join(run.generate(prompt, max_tokens=30, top_k=1))
    printed = "\n".join(run_program(folder, without_torch, prompt, "30", "0"))
    assert printed.split() == expected.split()


@pytest.mark.exhaustive
def test_words_are_tagged_as_by_the_run(tmp_path, without_torch) -> None:
    data = tmp_path / "tags.conll"
    rows = ("the O", "Cat B-X", "sat O", "", "Dogs B-X", "Cats I-X", "bark42 B-Y", "") * 6
    data.write_text("\n".join(rows) + "\n")
    run = trained("tag", data, tmp_path / "run")
    folder = exported(run, tmp_path / "onnx")
    lines = ["the Cat sat", "Dogs bark77 unSeen " + "long" * 20, "Cat", ""]
    answers = list(run.predict(lines))
    printed = run_program(folder, without_torch, lines=lines)
    assert [[item.rpartition("/")[2] for item in line.split()] for line in printed] == [a.split() for a in answers]


ODD_LINES = [
    "a fine Day",
    "Unknown words, no Good",
    "",
    "at all",
    "foo</s>bar baz </s>",
    "a\x1cfine <unk> " + "Day" * 30,
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("lowercase", parameters([False, True], everyday=[True]))
def test_texts_are_labelled_as_by_the_run(tmp_path, without_torch, lowercase) -> None:
    data = tmp_path / "labels.tsv"
    data.write_text("label\ttext\n" + "good\ta fine Day\nbad\tno Good at all\n" * 12)
    run = trained("classify", data, tmp_path / "run", tokenizer={"kind": "word", "lowercase": lowercase})
    folder = exported(run, tmp_path / "onnx")
    assert run_program(folder, without_torch, lines=ODD_LINES) == list(run.predict(ODD_LINES))


@pytest.mark.exhaustive
def test_labels_keep_their_order_with_the_tokenizer_of_an_imported_run(made, tmp_path, without_torch) -> None:
    _, _, initial = made("llama-tied")
    data = tmp_path / "labels.tsv"
    data.write_text("label\ttext\n" + "".join(f"{name}\t{name} {name}\n" for name in ("abc", "cat", "dog", "the")) * 8)
    training = {**STEPS, "init": str(initial.path), "steps": 30, "learning_rate": 0.003}
    run = seriatim.train(
        {"task": "classify", "data": {"train": str(data)}, "training": training, "out": str(tmp_path / "run")}
    )
    folder, lines = exported(run, tmp_path / "onnx"), ["abc abc", "cat cat", "dog dog", "the the"]
    assert len({*run.predict(lines)}) > 2
    assert run_program(folder, without_torch, lines=lines) == list(run.predict(lines))


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [{}, {"factorisation": "ctc"}, {"attention": "none"}])
def test_sources_are_answered_as_by_the_run(tmp_path, without_torch, options) -> None:
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{line}\t{line[::-1]}\n" for line in sentences(40)))
    run = trained(
        "seq2seq", data, tmp_path / "run", model={"layer": "gru", "options": options}, tokenizer={"kind": "char"}
    )
    folder = exported(run, tmp_path / "onnx")
    expected = list(run.predict(LINES, beam=1, length_penalty=0))
    assert run_program(folder, without_torch, lines=LINES) == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", parameters(["word-stream", "char-line", "bpe-line"], everyday=["bpe-line"]))
def test_masks_are_filled_as_by_the_run(texts, tmp_path, without_torch, case) -> None:
    kind, unit = case.split("-")
    tokenizer = {"kind": kind, **({"vocabulary_size": 300} if kind == "bpe" else {})}
    run = trained("mlm", Path(texts["train"]), tmp_path / "run", tokenizer=tokenizer, unit=unit)
    check_gaps(run, exported(run, tmp_path / "onnx"), without_torch)


@pytest.mark.exhaustive
def test_masks_are_filled_as_by_an_imported_run(made, tmp_path, without_torch) -> None:
    _, _, run = made("bert")
    check_gaps(run, exported(run, tmp_path / "onnx"), without_torch)


def check_gaps(run: seriatim.Run, folder: Path, packages: Path) -> None:
    lines = ["the [MASK] sat on the mat", "[MASK] cat", "the cat [MASK]"]
    printed = run_program(folder, packages, lines=lines)
    assert [line.split() for line in printed] == [line.split() for line in run.predict(lines)]


@pytest.mark.exhaustive
def test_weights_are_stored_once_and_no_path_of_this_machine(texts, tmp_path) -> None:
    run = trained("lm", Path(texts["train"]), tmp_path / "run", model={"layer": "transformer", "tie_weights": True})
    folder = exported(run, tmp_path / "onnx")
    assert {path.name for path in folder.iterdir()} == {
        "model.json", "run.py", "sequence.onnx", "step.onnx", "tokenizer.json", "weights.safetensors"
    }  # fmt: skip
    stored = sum(value.nbytes for value in load_file(folder / "weights.safetensors").values())
    parameters = sum(value.nbytes for value in run.model.parameters())
    assert stored < 1.2 * parameters
    for name in ("step.onnx", "sequence.onnx"):
        assert str(Path(seriatim.__file__).parent).encode() not in (folder / name).read_bytes()
    (tmp_path / "elsewhere").mkdir()
    moved = folder.rename(tmp_path / "elsewhere" / "moved")
    onnxruntime.InferenceSession(str(moved / "step.onnx"))
    assert json.loads((moved / "model.json").read_text())["task"] == "lm"


class PickyCell(seriatim.RecurrentCell):
    """Looks at the values of its inputs in Python code, and has a state."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.map = torch.nn.Linear(input_size, hidden_size)

    def initial_state(self, batch_size: int) -> torch.Tensor:
        return self.zeros(batch_size, self.output_size)

    def forward(self, inputs, state):
        signs = torch.tensor([1.0 if float(x[0].detach()) > 0 else -1.0 for x in inputs])
        state = torch.tanh(self.map(inputs) * signs.unsqueeze(1) + 0.5 * state)
        return state, state


class Picky(seriatim.SequenceLayer):
    """Looks at the values of its inputs in Python code."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.weight = torch.nn.Parameter(torch.randn(input_size, hidden_size))

    def initial_state(self, batch_size: int) -> tuple[()]:
        return ()

    def forward(self, inputs, state=None, *, lengths=None):
        inputs, state, lengths = self.begin(inputs, state, lengths)
        signs = [[1.0 if float(x[0].detach()) > 0 else -1.0 for x in row] for row in inputs]
        signed = torch.tensor(signs).view(inputs.shape[0], -1, 1) * (inputs @ self.weight)
        return signed, state


@pytest.fixture
def picky():
    seriatim.register("picky", Picky)
    seriatim.register("picky-cell", PickyCell)
    yield
    del seriatim.layers.REGISTRY["picky"], seriatim.layers.REGISTRY["picky-cell"]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("picky")
@pytest.mark.filterwarnings("ignore:too few n-grams")
def test_what_cannot_be_exported_is_refused_in_one_line(texts, tmp_path, capsys, monkeypatch) -> None:
    run = trained("lm", Path(texts["train"]), tmp_path / "run", model={"layer": "lstm"})
    grams = trained("lm", Path(texts["train"]), tmp_path / "grams", model={"layer": "ngram"})
    own = trained("lm", Path(texts["train"]), tmp_path / "own", model={"layer": "picky"})
    cell = trained("lm", Path(texts["train"]), tmp_path / "cell", model={"layer": "picky-cell"})
    (tmp_path / "full").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    cases = {
        "an existing folder": (run, tmp_path / "full", "exists; choose another folder"),
        "no such parent": (run, tmp_path / "no" / "such", "folder in one that exists"),
        "n-grams": (grams, tmp_path / "a", "model.layer: ngram"),
        "a layer that looks at values": (own, tmp_path / "b", "depend on the values"),
        "a cell that looks at values": (cell, tmp_path / "b", "depend on the values"),
        "a link to nothing": (run, tmp_path / "link", "exists; choose another folder"),
    }
    for name, (source, out, message) in cases.items():
        before = set(tmp_path.rglob("*"))
        assert main(["export", str(source.path), "--format", "onnx", "--out", str(out)]) == 2, name
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert message in line, name
        assert set(tmp_path.rglob("*")) == before, name
    monkeypatch.setattr(onnx_export, "MODULES", ("onnx", "no_such_module"))
    assert main(["export", str(run.path), "--format", "onnx", "--out", str(tmp_path / "c")]) == 2
    assert "pip install 'seriatim[onnx]'" in capsys.readouterr().err
