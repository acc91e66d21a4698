"""The commands that pages of the documentation show run as they are written, on small files with the names they use."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import seriatim
from seriatim.interchange.formats import export_run

from .conftest import sentences
from .interchange.checkpoints import write
from .interchange.torch_modules import Module
from .interchange.torch_modules import write as write_module

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```\n((?:seriatim|pip|printf|python) .*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = rf"""
set -e
seriatim() {{
    case "$*" in
        *"--layer ngram"*) ;;
        train\ mlm*) set -- "$@" --training.steps 5 --training.sequence_length 32 ;;
        train*) set -- "$@" --training.steps 5 ;;
    esac
    {sys.executable} -m seriatim "$@"
}}
python() {{ {sys.executable} "$@"; }}
pip() {{ :; }}
"""
"""Trainings and the texts that they read at once are short, and nothing is installed."""


def test_commands_are_found() -> None:
    found = {page.name: BLOCK.findall(page.read_text(encoding="utf-8")) for page in DOCS.glob("*.md")}
    assert all(found[name] for name in ("importing.md", "onnx.md", "surprisal.md"))


def prepare(folder: Path) -> None:
    """Write the files that the pages name."""
    lines = sentences(60)
    text = "\n".join(lines) + "\n"
    for name in ("mine.txt", "test.txt", "python-docs.txt"):
        (folder / name).write_text(text)
    write("gpt2", folder / "models" / "gpt2")
    write("bert", folder / "models" / "bert-base-uncased")
    words = ["<eos>", "<unk>", *sorted(set(text.split()))]
    write_module(folder / "mine", Module(nn.LSTM, len(words)), words)
    shutil.copy(folder / "mine" / "model.safetensors", folder / "lstm.safetensors")
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    for name in ("news", "mine"):
        config = {"data": {"train": str(folder / "mine.txt"), "unit": "line"}, "tokenizer": {"kind": "word"}}
        run = seriatim.train({**config, "model": {"layer": "ngram"}, "out": str(folder / f"counted-{name}")})
        export_run(run, "arpa", str(folder / f"{name}.arpa"))
    (folder / "model.arpa.gz").write_bytes(gzip.compress((folder / "news.arpa").read_bytes()))
    pair = {"sentence_good": lines[0], "sentence_bad": " ".join(reversed(lines[0].split())), "UID": "order"}
    (folder / "blimp.jsonl.gz").write_bytes(gzip.compress((json.dumps(pair) + "\n").encode() * 4))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:too few n-grams")
@pytest.mark.parametrize("page", ["importing.md", "onnx.md", "surprisal.md"])
def test_the_commands_of_a_page_run(page, tmp_path) -> None:
    prepare(tmp_path)
    text = "\n".join(BLOCK.findall((DOCS / page).read_text(encoding="utf-8")))
    text = text.replace("builtin:python-docs", "python-docs.txt").replace("--training.minutes 2", "")
    script = "\n".join(line for line in text.splitlines() if "hf:" not in line)  # there is no network
    environment = {**os.environ, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", f"{SHELL}\n{script}"], cwd=tmp_path, env=environment, text=True, capture_output=True
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
