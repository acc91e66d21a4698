"""Record what some forty small jobs do, so that a change that should change nothing can be compared with its start.

    python scripts/behaviour.py record BEFORE     # a folder; with the source before a change
    python scripts/behaviour.py record AFTER      # with the source after it, on the same machine
    python scripts/behaviour.py compare BEFORE AFTER

Recorded are: weights (SHA-256 of all tensors), `config.yaml`, files, metrics, predictions and generated text of every
task and family of models; a resumed training, one from another run, blended answers, two ranks; streams, pages, a
comparison, exported files; the help, messages and exit codes of the command; the public names. What depends on the
clock is left out. The recorded bits hold on one machine only.
"""

import contextlib
import difflib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
DATA = Path(__file__).parent.parent / "tests" / "golden" / "data"
CLOCK = re.compile(
    r"(?:at most )?[\d.,:]+ (?:min|ms|s|seconds|minutes|tokens/s|MB|GB)\b(?: [\d.]+ s\b)?(?: left)?"
    r"|seriatim_[\w.]+|/tmp/[\w./-]*"
)
"""What differs from run to run in what is printed."""
TIMES = {
    "seconds",
    "tokens_per_second",
    "seconds_left",
    "training_seconds",
    "versions",
    "created",
    "id",
    "seconds_per_item",
}
"""Keys of JSON that depend on the clock."""
SMALL = "--embedding-size 12 --hidden-size 16 --steps 12 --batch-size 8 --sequence-length 24 --precision float32"
NO_BASELINE = "--training.baseline none"
FILES = {
    "lm": ("text.txt", "valid-text.txt"),
    "mlm": ("text.txt", "valid-text.txt"),
    "classify": ("labels.tsv", "valid-labels.tsv"),
    "tag": ("tags.conll", "valid-tags.conll"),
    "seq2seq": ("pairs.tsv", "valid-pairs.tsv"),
}
JOBS: dict[str, tuple[str, str]] = {
    "lm-lstm": ("lm", f"--layer lstm {NO_BASELINE}"),
    "lm-gru-lines": ("lm", f"--layer gru --unit line --kind word {NO_BASELINE}"),
    "lm-bpe": (
        "lm",
        f"--layer gru --kind bpe --vocabulary-size 280 --accumulate 2 --tie-weights true --embedding-size 16 "
        f"{NO_BASELINE}",
    ),
    "lm-peephole": ("lm", f"--layer lstm-peephole --num-layers 2 --dropout 0.2 {NO_BASELINE}"),
    "lm-transformer": ("lm", f"--layer transformer --model.options.window 8 {NO_BASELINE}"),
    "lm-learned": (
        "lm",
        f"--layer transformer --unit line --model.options.position learned --model.options.max_length 80 {NO_BASELINE}",
    ),
    "lm-mamba": ("lm", f"--layer mamba {NO_BASELINE}"),
    "lm-mixed": ("lm", f"--layer gru,transformer --num-layers 2 {NO_BASELINE}"),
    "lm-window": ("lm", f"--layer window --schedule plateau --evaluate-every 4 {NO_BASELINE}"),
    "lm-convolution": ("lm", f"--layer convolution --training.average 0.9 --keep last {NO_BASELINE}"),
    "lm-s4": ("lm", f"--layer s4 --optimizer sgd --learning-rate 0.1 {NO_BASELINE}"),
    "lm-held-out": ("lm", f"--layer gru --valid 10% {NO_BASELINE}"),
    "lm-baseline": ("lm", "--layer mingru"),
    "lm-bfloat16": ("lm", f"--layer lstm --precision bfloat16 {NO_BASELINE}"),
    "lm-ngram": ("lm", "--layer ngram --model.options.order 3 --kind word"),
    "lm-ngram-cache": ("lm", "--layer ngram --model.options.cache 0.2 --model.options.cache_size 9"),
    "lm-unigram": ("lm", f"--layer unigram {NO_BASELINE}"),
    "lm-synthetic": ("lm", "--data builtin:copy:train-5"),
    "mlm-gru": ("mlm", f"--layer gru {NO_BASELINE}"),
    "mlm-transformer": ("mlm", f"--layer transformer --unit line {NO_BASELINE}"),
    "classify-blend": ("classify", "--layer gru"),
    "classify-attention": ("classify", f"--layer transformer --model.options.pooling attention {NO_BASELINE}"),
    "classify-characters": ("classify", "--layer lstm --model.options.characters convolution --baseline-weight 0.5"),
    "classify-bag": ("classify", "--layer bag"),
    "classify-synthetic": ("classify", "--data builtin:adding"),
    "tag-blend": ("tag", "--layer lstm"),
    "tag-crf": ("tag", f"--layer gru --model.options.output crf {NO_BASELINE}"),
    "tag-words": ("tag", f"--layer transformer --model.options.characters none {NO_BASELINE}"),
    "tag-features": ("tag", "--layer features"),
    "seq2seq-default": ("seq2seq", ""),
    "seq2seq-dot": ("seq2seq", f"--layer gru --model.options.attention dot {NO_BASELINE}"),
    "seq2seq-transformer": ("seq2seq", f"--layer transformer {NO_BASELINE}"),
    "seq2seq-ctc": (
        "seq2seq",
        f"--layer gru --model.options.factorisation ctc --model.options.upsample 3 {NO_BASELINE}",
    ),
    "seq2seq-rules": ("seq2seq", "--layer rules"),
}
"""The task and the options of each training."""
LINES = "the cat sees the sea .\n\nnobody paints it .\nshe forgets her brother .\n"
BAD = (
    "",
    "--version",
    "trian lm",
    "train",
    "train x",
    "train lm",
    "train lm --data missing.txt --out r",
    "train lm --data DATA/text.txt",
    "train lm --data DATA/text.txt --layer lsmt --out r",
    "train lm --data DATA/text.txt --layer bag --out r",
    "train classify --data DATA/labels.tsv --layer ngram --out r",
    "train lm --data DATA/text.txt --lr 1 --out r",
    "train lm --data DATA/text.txt --training.stesp 1 --out r",
    "train lm --data DATA/text.txt --steps many --out r",
    "train lm --data DATA/text.txt --steps 0 --out r",
    "train lm --data DATA/text.txt --valid 200% --out r",
    "train lm --data DATA/text.txt --steps 1 --baseline-weight 0.5 --out r",
    "train lm --data DATA/text.txt --config missing.yaml --out r",
    "train lm --data DATA/text.txt --model.options.windw 3 --layer transformer --out r",
    "train lm --data DATA/text.txt --init missing --out r",
    "train tag --data DATA/labels.tsv --out r",
    "train seq2seq --data DATA/text.txt --out r",
    "train classify --data DATA/text.txt --out r",
    "train --resume missing",
    "train --resume RUN --seed 3",
    "train lm --data DATA/text.txt --out RUN",
    "evaluate RUN",
    "evaluate RUN --data missing",
    "evaluate RUN --data DATA/valid-text.txt --window x",
    "evaluate TAG --data DATA/valid-text.txt",
    "predict RUN",
    "predict TAG missing",
    "predict TAG --beam 3",
    "predict LABEL --format tsv",
    "generate RUN --temperature -1",
    "generate RUN --top-p 2",
    "generate TAG",
    "generate RUN --prompt é",
    "surprisal TAG",
    "inspect RUN",
    "inspect RUN --text x --out",
    "serve missing",
    "serve RUN --port 99999999",
    "export RUN --format nothing --out x",
    "export RUN --format arpa --out x",
    "import missing --out r",
    "check lm --data missing",
    "check lm --data DATA/text.txt --layer lsmt",
    "compare lm --data DATA/text.txt --layers gru,lsmt --out r",
    "compare lm --data DATA/text.txt --layers gru --minutes 0 --out r",
    "docs nothing",
    "layers nothing",
)
"""Commands that fail, or print little."""


def command(arguments: list[str], text: str = "") -> dict[str, Any]:
    """Run a command in this process; return its exit code and what it prints."""
    from seriatim.cli.main import main

    out, err, before = io.StringIO(), io.StringIO(), sys.stdin
    code: object
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
        try:
            code = main(arguments)
        except SystemExit as error:
            code = error.code
        finally:
            sys.stdin = before
    return {"code": code, "out": without_clock(out.getvalue()), "err": without_clock(err.getvalue())}


def without_clock(text: str) -> str:
    """Return a text without what depends on the clock and the folder."""
    return CLOCK.sub("~", text.replace("\r", "\n"))


def steady(value: Any) -> Any:
    """Return a value of JSON without what depends on the clock."""
    if isinstance(value, dict):
        return {key: steady(one) for key, one in value.items() if key not in TIMES}
    if isinstance(value, list):
        return [steady(one) for one in value]
    return without_clock(value) if isinstance(value, str) else value


def lines_of_json(text: str) -> list[Any]:
    """Return each line of a text as JSON, without what depends on the clock."""
    return [steady(json.loads(line)) for line in text.splitlines() if line.startswith("{")]


def weights(run: Path) -> dict[str, str]:
    """Return a digest of every tensor of a run."""
    from safetensors import safe_open

    found = {}
    for file in sorted(run.rglob("model.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            names = sorted(tensors.keys())
            content = b"".join(
                tensors.get_tensor(name).contiguous().flatten().view(-1).numpy().tobytes() for name in names
            )
            found[str(file.relative_to(run))] = hashlib.sha256(content).hexdigest()[:16] + f" of {len(names)} tensors"
            found[f"{file.relative_to(run)} names"] = " ".join(names)
            found[f"{file.relative_to(run)} metadata"] = json.dumps(tensors.metadata(), sort_keys=True)
    return found


def facts_of(name: str, run: Path, trained: dict[str, Any]) -> dict[str, Any]:
    """Return what a run is and what it answers."""
    import seriatim

    task = name.partition("-")[0]
    valid = (
        "builtin:copy:train-5"
        if name == "lm-synthetic"
        else "builtin:adding"
        if "synthetic" in name
        else str(DATA / FILES[task][1])
    )
    facts: dict[str, Any] = {
        "train": trained,
        "weights": weights(run),
        "config": (run / "config.yaml").read_text() if (run / "config.yaml").exists() else None,
        "files": sorted(str(path.relative_to(run)) for path in run.rglob("*") if "tensorboard" not in str(path)),
    }
    if trained["code"]:
        return facts
    for file in ("summary.json", "metrics.jsonl"):
        facts[file] = [steady(json.loads(line)) for line in json_texts(run / file)]
    facts["card"] = without_clock((run / "README.md").read_text())
    measured = command(["evaluate", str(run), "--data", valid, "--json"])
    facts["evaluate"] = {
        **measured,
        "out": [steady(json.loads(measured["out"]))] if measured["out"].startswith("{") else measured["out"],
    }
    facts["evaluate table"] = command(["evaluate", str(run), "--data", valid])
    if "synthetic" in name:
        return facts
    if task == "lm":
        facts["generate"] = command(["generate", str(run), "--prompt", "the", "--max-tokens", "20", "--seed", "3"])
        facts["samples"] = command(
            ["generate", str(run), "--samples", "3", "--max-tokens", "9", "--seed", "3", "--top-k", "5", "--json"]
        )
        facts["surprisal"] = command(["surprisal", str(run)], LINES.replace("\n\n", "\n"))
        opened = seriatim.load(run)
        stream = opened.stream()
        stream.feed("the cat ")
        stream.save(run.parent / f"{name}.state")
        facts["stream"] = ["".join(stream.generate(max_tokens=8, seed=2)), opened.score(["the cat", "the sea ."])]
        again = opened.stream()
        again.load(run.parent / f"{name}.state")
        facts["restored"] = "".join(again.generate(max_tokens=8, seed=2))
        with contextlib.suppress(seriatim.InputError):
            facts["draft"] = "".join(opened.generate("the", max_tokens=12, seed=4, draft="lookup"))
        facts["repr"] = repr(opened)
    else:
        text = LINES.replace("cat", "[MASK]") if task == "mlm" else LINES
        facts["predict"] = command(["predict", str(run)], text)
        details = command(["predict", str(run), "--json"], text)
        facts["details"] = {**details, "out": lines_of_json(details["out"])}
        if task == "seq2seq":
            facts["beam"] = command(["predict", str(run), "--beam", "4"], text)
    return facts


def json_texts(file: Path) -> Iterator[str]:
    """Yield the values of a file of JSON or of lines of JSON."""
    if file.exists():
        text = file.read_text()
        yield from text.splitlines() if file.suffix == ".jsonl" else [text]


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, or its size where PyTorch numbers the values of a program through the process."""
    content = path.read_bytes()
    return f"{len(content)} bytes" if path.suffix in (".torch", ".onnx") else hashlib.sha256(content).hexdigest()


def train(name: str, task: str, options: str, folder: Path) -> dict[str, Any]:
    """Train a job; return what the command prints."""
    words = options.split()
    data = [] if "--data" in words else ["--data", str(DATA / FILES[task][0])]
    valid = [] if "--valid" in words or "--data" in words else ["--valid", str(DATA / FILES[task][1])]
    small = SMALL.split()
    pairs = zip(small[::2], small[1::2], strict=True)
    usual = [word for pair in pairs if pair[0] not in words for word in pair]
    trained = command(["train", task, *data, *valid, *usual, *words, "--out", str(folder / name)])
    if trained["code"] != 0:
        raise SystemExit(f"{name} records nothing: {trained['err']}")
    return trained


def variants(folder: Path) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield what is done with the runs of `JOBS`: resuming, starting from another run, and others, by name."""

    def of(name: str, arguments: list[str]) -> dict[str, Any]:
        trained = command(arguments)
        return facts_of(name, folder / name, trained)

    def resumed() -> dict[str, Any]:
        shutil.copytree(folder / "lm-peephole", folder / "lm-resumed")
        return of("lm-resumed", ["train", "--resume", str(folder / "lm-resumed"), "--steps", "20"])

    def resumed_early() -> dict[str, Any]:
        words = ["--data", str(DATA / "tags.conll"), "--valid", str(DATA / "valid-tags.conll"), *SMALL.split()]
        out = str(folder / "tag-resumed")
        command(["train", "tag", *words, "--layer", "gru", "--out", out])
        return of("tag-resumed", ["train", "--resume", out, "--steps", "18"])

    def initial(name: str, task: str, other: str) -> Callable[[], dict[str, Any]]:
        return lambda: facts_of(
            name, folder / name, train(name, task, f"--init {folder / other} {NO_BASELINE}", folder)
        )

    def overwritten() -> dict[str, Any]:
        shutil.copytree(folder / "lm-lstm", folder / "lm-overwritten")
        trained = train("lm-overwritten", "lm", f"--layer gru --overwrite {NO_BASELINE}", folder)
        return facts_of("lm-overwritten", folder / "lm-overwritten", trained)

    def ranks() -> dict[str, Any]:
        words = [
            "--data",
            str(DATA / "text.txt"),
            "--valid",
            str(DATA / "valid-text.txt"),
            *SMALL.split(),
            *NO_BASELINE.split(),
        ]
        module = [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--standalone",
            "-m",
            "seriatim",
            "train",
            "lm",
        ]
        done = subprocess.run(
            [sys.executable, *module, *words, "--layer", "gru", "--out", str(folder / "lm-ranks")],
            capture_output=True,
            text=True,
            check=False,
        )
        return facts_of("lm-ranks", folder / "lm-ranks", {"code": done.returncode, "out": "", "err": ""})

    yield "lm-resumed", resumed
    yield "tag-resumed", resumed_early
    yield "classify-initial", initial("classify-initial", "classify", "lm-gru-lines")
    yield "lm-initial", initial("lm-initial", "lm", "lm-lstm")
    yield "lm-overwritten", overwritten
    yield "lm-ranks", ranks


def others(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what is recorded of the whole program, by name."""
    replaced = {
        "DATA": str(DATA),
        "RUN": str(folder / "lm-lstm"),
        "TAG": str(folder / "tag-crf"),
        "LABEL": str(folder / "classify-bag"),
    }

    def bad(text: str) -> dict[str, Any]:
        for name, path in replaced.items():
            text = text.replace(name, path)
        return command(text.split(), "a line\n")

    def names() -> list[str]:
        import seriatim

        return dir(seriatim)

    def ensemble() -> Any:
        shutil.copytree(folder / "classify-attention", folder / "classify-copy")
        return command(["predict", f"{folder / 'classify-attention'},{folder / 'classify-copy'}"], LINES)

    def pages() -> Any:
        found = {}
        for name in INSPECTED:
            page = folder / f"{name}.html"
            done = command(["inspect", str(folder / name), "--text", "the cat sees the sea .", "--out", str(page)])
            text = re.sub(r"<(script|style).*?</\1>", "", page.read_text(), flags=re.S) if page.exists() else ""
            found[name] = {**done, "text": without_clock(re.sub(r"<[^>]+>|\s+", " ", text))}
        return found

    def comparison() -> Any:
        out = folder / "comparison"
        words = [
            "--data",
            str(DATA / "text.txt"),
            "--valid",
            str(DATA / "valid-text.txt"),
            *SMALL.split(),
            "--layers",
            "gru,ngram",
        ]
        done = command(["compare", "lm", *words, "--out", str(out), "--workers", "1"])
        rows = json.loads((out / "results.json").read_text()) if (out / "results.json").exists() else {}
        return {
            "code": done["code"],
            "keys": keys_of(rows),
            "files": sorted(str(path.relative_to(out)) for path in out.rglob("*")),
        }

    def exports() -> Any:
        found = {}
        for name, kind in (
            ("lm-ngram", "arpa"),
            ("lm-learned", "onnx"),
            ("classify-attention", "onnx"),
            ("lm-lstm", "torch"),
        ):
            target = folder / f"{name}.{kind}"
            done = command(["export", str(folder / name), "--format", kind, "--out", str(target)])
            found[f"{name} {kind}"] = {
                **done,
                "digests": {path.name: digest(path) for path in sorted([target, *target.rglob("*")]) if path.is_file()},
            }
        return found

    yield "public names", names
    yield "help", lambda: {verb: command([*verb.split(), "--help"]) for verb in ("", *VERBS)}
    yield "bad", lambda: {text: bad(text) for text in BAD}
    yield (
        "check",
        lambda: {task: command(["check", task, "--data", str(DATA / files[0])]) for task, files in FILES.items()},
    )
    yield "layers", lambda: command(["layers", "--json"])
    yield "ensemble", ensemble
    yield "pages", pages
    yield "comparison", comparison
    yield "exports", exports


INSPECTED = (
    *(
        "lm-lstm",
        "lm-transformer",
        "lm-ngram",
        "mlm-gru",
        "classify-blend",
        "classify-bag",
        "tag-blend",
        "tag-features",
    ),
    *("seq2seq-dot", "seq2seq-ctc", "seq2seq-rules"),
)
"""The runs whose pages are recorded."""
VERBS = (
    "train",
    "compare",
    "evaluate",
    "predict",
    "generate",
    "check",
    "export",
    "import",
    "surprisal",
    "inspect",
    "serve",
    "layers",
    "docs",
)


def keys_of(value: Any, depth: int = 4) -> Any:
    """Return the names in a value of JSON, without the values."""
    if isinstance(value, dict) and depth:
        return {key: keys_of(one, depth - 1) for key, one in value.items()}
    if isinstance(value, list) and value and depth:
        return [keys_of(value[0], depth - 1)]
    return type(value).__name__


def record(folder: Path, only: list[str]) -> None:
    """Do everything, and write ``behaviour.json`` into a folder; ``only`` names the parts to do again."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("default")
    file, work = folder / "behaviour.json", folder / "work"
    found: dict[str, Any] = json.loads(file.read_text()) if only and file.exists() else {}
    if not only:
        shutil.rmtree(folder, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    parts: list[tuple[str, Callable[[], Any]]] = [
        (name, lambda name=name, job=job: facts_of(name, work / name, train(name, *job, work)))
        for name, job in JOBS.items()
    ]
    for name, part in [*parts, *variants(work), *others(work)]:
        if only and name not in only:
            continue
        if only and (work / name).exists():
            shutil.rmtree(work / name)
        print(name, flush=True)
        found[name] = json.loads(json.dumps(part(), default=str).replace(str(folder), "~").replace(str(DATA), "DATA"))
        file.write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False))


def compare(first: Path, second: Path) -> int:
    """Print the differences of two records; return their number."""
    one, two = (json.loads((folder / "behaviour.json").read_text()) for folder in (first, second))
    count = 0
    for name in sorted(one.keys() | two.keys()):
        left, right = (
            json.dumps(each.get(name), indent=1, sort_keys=True, ensure_ascii=False).splitlines() for each in (one, two)
        )
        if left != right:
            count += 1
            print(f"== {name}")
            print(
                "\n".join(
                    line[:400]
                    for line in list(difflib.unified_diff(left, right, "before", "after", n=1, lineterm=""))[2:60]
                )
            )
    print(f"{count} of {len(one)} parts differ")
    return count


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]).absolute(), sys.argv[3:])
    else:
        sys.exit(bool(compare(Path(sys.argv[2]), Path(sys.argv[3]))))
