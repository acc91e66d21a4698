"""Writes golden runs: ``python -m tests.golden.make NAME...``. Once: what is written is never written again."""

import contextlib
import copy
import json
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import seriatim
from seriatim.interchange.formats import import_run
from seriatim.recurrence import uncompiled
from seriatim.storage.files import LOCK
from seriatim.training.checkpoints import checkpoints

from ..conftest import OBJECTS, SUBJECTS, sentences
from .answers import GOLDEN, answers, differences
from .recipes import CHECKPOINTED, IMPORTED, MODELS, STEPS, recipe

MORE_STEPS = 3
NOISE = 1e-6
LARGEST = 2000
"""Bytes of a log that is kept."""


def write_data() -> None:
    """The texts, and the same labelled, tagged and turned around, where they are not there."""
    (GOLDEN / "data").mkdir(exist_ok=True)
    for seed, (name, count) in enumerate({"": 60, "valid-": 12}.items()):
        lines = sentences(count, seed)
        for file, text in {
            "text.txt": "".join(f"{line}\n" for line in lines),
            "labels.tsv": "label\ttext\n" + "".join(f"{_label(line)}\t{line}\n" for line in lines),
            "tags.conll": "".join(f"{_tagged(line)}\n" for line in lines),
            "pairs.tsv": "".join(f"{line}\t{' '.join(line.split()[::-1][:4])}\n" for line in lines),
        }.items():
            path = GOLDEN / "data" / f"{name}{file}"
            if not path.exists():
                path.write_text(text, encoding="utf-8")


def _label(line: str) -> str:
    return "thing" if any(word in line for word in ("sea", "moon", "wine", "house")) else "other"


def _tagged(line: str) -> str:
    """Columns, in which who does something and to what are chunks."""
    chunks = {tuple(words.split()): kind for kind, those in (("WHO", SUBJECTS), ("WHAT", OBJECTS)) for words in those}
    words, rows = line.split(), []
    while words:
        chunk = next((chunk for chunk in chunks if tuple(words[: len(chunk)]) == chunk), None)
        tags = ["O"] if chunk is None else [f"{'BI'[i > 0]}-{chunks[chunk]}" for i in range(len(chunk))]
        rows += [f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=False)]
        words = words[len(tags) :]
    return "".join(rows)


def make(name: str) -> None:
    """Trains one run, and writes beside it what it answers."""
    folder = GOLDEN / name
    if folder.exists():
        raise SystemExit(f"{folder}: written once and for ever; give the new run another name in recipes.py")
    with tempfile.TemporaryDirectory() as aside:
        made = Path(aside) / name
        run = imported(made, IMPORTED[name]) if name in IMPORTED else seriatim.train(recipe(name) | {"out": str(made)})
        expected = answers(seriatim.load(made, device="cpu"))
        refuse_narrow(run, expected)
        if name == CHECKPOINTED:
            expected["resumed"] = resumed(made)
        lighten(made)
        (made / "expected.json").write_text(json.dumps(expected) + "\n", encoding="utf-8")
        shutil.copytree(made, folder)
    versions = GOLDEN / "versions.json"
    known = json.loads(versions.read_text()) if versions.exists() else {}
    versions.write_text(json.dumps({**known, name: seriatim.__version__}, indent=1, sort_keys=True) + "\n")


def imported(out: Path, checkpoint: str) -> seriatim.Run:
    """A run that came from another library, with weights that are large enough to tell tokens apart."""
    from ..interchange.checkpoints import CHECKPOINTS, write

    with tempfile.TemporaryDirectory() as folder:
        model = write(checkpoint, Path(folder))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(12 if parameter.dim() > 1 and checkpoint in CHECKPOINTS else 1)
        model.save_pretrained(folder)
        return import_run(folder, str(out))


def lighten(run: Path) -> None:
    """Leaves out what opening a run does not need: checkpoints, but for one, and the log where it is long."""
    (run / LOCK).unlink(missing_ok=True)
    kept = checkpoints(run / "checkpoints")[-1:] if run.name == CHECKPOINTED else []
    for path in (run / "checkpoints").glob("*"):
        if path not in kept:
            shutil.rmtree(path)
    log = run / "metrics.jsonl"
    if not kept:
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        if log.exists() and log.stat().st_size > LARGEST:
            log.unlink()


def refuse_narrow(run: seriatim.Run, expected: Any) -> None:
    """Answers must not hang on the last digit of a weight: they would be others on another processor."""
    noisy = copy.copy(run)
    noisy.model = copy.deepcopy(run.model)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in noisy.model.parameters():
            if parameter.is_floating_point():
                parameter.mul_(1 + NOISE * torch.randn_like(parameter))
    if found := differences(answers(noisy), expected):
        raise SystemExit(f"{run.path.name}: hangs on the last digits; change its recipe: {found[0]}")


def resumed(run: Path) -> Any:
    """What a copy of the run answers when it was trained for `MORE_STEPS` more."""
    with tempfile.TemporaryDirectory() as aside:
        shutil.copytree(run, Path(aside) / "run")
        return answers(seriatim.resume(Path(aside) / "run", overrides={"training.steps": STEPS + MORE_STEPS}))


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="too few")
    write_data()
    with contextlib.chdir(GOLDEN), uncompiled():
        for name in sys.argv[1:] or [name for name in MODELS if not (GOLDEN / name).exists()]:
            make(name)


if __name__ == "__main__":
    main()
