"""Small data of every task, made on the spot, and the pages of comparisons and inspections that are made of them.

Language models read the beginning of Python's documentation. A classifier says what a customer writes about, a tagger
names the parts of speech of a small grammar with ambiguous words, and a translator writes dates in digits.
"""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from seriatim.data.sources import builtin_text

TOPICS = {
    "delivery": "parcel courier address late arrived box driver street waiting",
    "payment": "card invoice refund charged twice bank price receipt euro",
    "account": "password login email locked reset profile name code delete",
    "praise": "thanks great quick helpful friendly perfect love happy works",
}
COMMON = "the a my i it is was and to for with of you please today again not still since we"
WORDS = {
    "DET": "the a this every some",
    "ADJ": "old green light quick open cold",
    "NOUN": "light book watch farmer river plan house stone",
    "VERB": "watch book plan open light cold carries finds leaves sees",
    "ADV": "often quickly then early",
    "ADP": "near with under behind",
    "PUNCT": ". !",
}
PATTERNS = (
    "DET NOUN VERB DET ADJ NOUN PUNCT",
    "DET ADJ NOUN ADV VERB PUNCT",
    "ADV DET NOUN VERB ADP DET NOUN PUNCT",
    "DET NOUN ADP DET ADJ NOUN VERB DET NOUN PUNCT",
)
MONTHS = "January February March April May June July August September October November December"
PARTS = {"train": 1200, "valid": 150, "test": 300}
CHARACTERS = {"train": 120_000, "valid": 8_000, "test": 16_000}


class Data(NamedTuple):
    """The files of a task, by the parts that exist; the layers of its comparison; and a text to inspect."""

    files: dict[str, str]
    layers: str
    text: str


LM_TEXT = "Return the number of items in the container. If there are none, raise an error that names the container."
LM_LAYERS = "ngram,rnn,lstm,transformer,mamba"
MLM_LAYERS = "lstm,transformer"
OTHER_LAYERS = "gru,lstm,transformer"
PAIR_LAYERS = "lstm,transformer"


def made_up(folder: Path) -> dict[str, Data]:
    """Write small data of all tasks, and return them by task."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = {
        "classify": ("tsv", "label\ttext\n", _labelled),
        "tag": ("conll", "", _tagged),
        "seq2seq": ("tsv", "", _date),
    }
    files: dict[str, dict[str, str]] = {"text": {}}
    for part, length in CHARACTERS.items():
        text, path = builtin_text("builtin:python-docs", part).read_text(encoding="utf-8"), folder / f"text-{part}.txt"
        path.write_text(text[:length].rpartition("\n")[0] + "\n", encoding="utf-8")
        files["text"]["data" if part == "train" else part] = str(path)
    for task, (ending, header, row) in rows.items():
        files[task] = {}
        for part, count in PARTS.items():
            chance, path = random.Random(f"{task} {part}"), folder / f"{task}-{part}.{ending}"
            path.write_text(header + "".join(row(chance) for _ in range(count)), encoding="utf-8")
            files[task]["data" if part == "train" else part] = str(path)
    return {
        "lm": Data(files["text"], LM_LAYERS, LM_TEXT),
        "mlm": Data(files["text"], MLM_LAYERS, LM_TEXT),
        "classify": Data(files["classify"], OTHER_LAYERS, "my parcel is late again and the courier was not friendly"),
        "tag": Data(files["tag"], OTHER_LAYERS, "the old farmer often watch the light behind the house ."),
        "seq2seq": Data(files["seq2seq"], PAIR_LAYERS, "Monday, 14 July 1997"),
    }


def corpora(folder: Path) -> dict[str, Data]:
    """Return the corpora of all tasks in a folder: Tiny Shakespeare, MASC, CLINC150, EWT and SIGMORPHON 2017."""

    def files(train: str, valid: str, test: str) -> dict[str, str]:
        return {"data": str(folder / train), "valid": str(folder / valid), "test": str(folder / test)}

    treebank = (f"ud-en-ewt/en_ewt-ud-{part}.conllu" for part in ("train", "dev", "test"))
    masc = (f"masc-lm/{part}.txt" for part in ("train", "valid", "test"))
    intents = ("clinc150/train.tsv", "clinc150/dev.tsv", "clinc150/test.tsv")
    forms = (f"inflection-de/{part}.tsv" for part in ("train-high", "dev", "test"))
    question = "what is the exchange rate between dollars and euros today"
    return {
        "lm": Data({"data": str(folder / "tinyshakespeare/input.txt")}, LM_LAYERS, "To be, or not to be: that is it."),
        "mlm": Data(files(*masc), MLM_LAYERS, "The committee has not yet decided when the new school will open."),
        "classify": Data(files(*intents), OTHER_LAYERS, question),
        "tag": Data(files(*treebank), OTHER_LAYERS, "The old man the boat while Google opens a new office in Paris ."),
        "seq2seq": Data(files(*forms), PAIR_LAYERS, "ausgehen V;3;SG;PRS"),
    }


INSPECTED = {
    "lm": ("lstm", "transformer", "mamba", "ngram"),
    "mlm": ("transformer",),
    "classify": ("lstm",),
    "tag": ("lstm",),
    "seq2seq": ("transformer",),
}


def make_pages(data: dict[str, Data], out: Path, steps: int) -> Iterator[tuple[str, Path]]:
    """Compare the layers of each task, inspect some of the runs, and yield the name and the file of every page.

    Pages that exist already are not made again.
    """
    for task, (files, layers, text) in data.items():
        folder = out / task
        report = folder / "report.html"
        if not report.exists():
            options = [part for name, spec in files.items() for part in (f"--{name}", spec)]
            size = ["--layers", layers, "--steps", str(steps), "--hidden_size", "48", "--training.batch_size", "16"]
            run_command("compare", task, *options, *size, "--overwrite", "--out", str(folder), "--quiet")
        yield f"compare {task}", report
        for layer in INSPECTED[task]:
            page = out / f"{task}-{layer}.html"
            if not page.exists():
                run_command(
                    "inspect", str(folder / "runs" / f"{layer}-1"), f"--text={text}", "--permute", "--out", str(page)
                )
            yield f"inspect {task} {layer}", page


def run_command(*arguments: str) -> None:
    """Run a command of Seriatim, which must succeed."""
    command = [sys.executable, "-m", "seriatim", *arguments]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"seriatim {' '.join(arguments)}\n{done.stderr}")


def _labelled(chance: random.Random) -> str:
    label = chance.choice(list(TOPICS))
    other = chance.choice(list(TOPICS))
    words = [*chance.choices(TOPICS[label].split(), k=2), *chance.choices(TOPICS[other].split(), k=1)]
    words += chance.choices(COMMON.split(), k=chance.randint(3, 9))
    chance.shuffle(words)
    return f"{label}\t{' '.join(words)}\n"


def _tagged(chance: random.Random) -> str:
    tags = chance.choice(PATTERNS).split()
    return "".join(f"{chance.choice(WORDS[tag].split())} {tag}\n" for tag in tags) + "\n"


def _date(chance: random.Random) -> str:
    months = MONTHS.split()
    day, month, year = chance.randint(1, 28), chance.randrange(12), chance.randint(1950, 2029)
    weekday = chance.choice(("", "Monday, ", "Friday, ", "Sunday, "))
    words = chance.choice((f"{day} {months[month]} {year}", f"{months[month]} {day}, {year}"))
    return f"{weekday}{words}\t{year}-{month + 1:02}-{day:02}\n"
