"""Compare the scores of our n-gram models with those of kenlm, and with those after export and import.

Claim: tokens and lines have the log10 probabilities of kenlm within 1e-4.

    python benchmarks/arpa_agreement.py --data FOLDER

The script trains a model of each text, exports an ARPA file, scores the test text line by line with the module `kenlm`,
and imports the file again. For both, the figures are the largest differences of the log10 probability of a token, of a
line and of the whole text. kenlm stores and adds float32. Unknown words are passed to it as a word that occurs in no
text; a minimum count makes rare words unknown.
"""

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import kenlm
import numpy as np
import record

import seriatim
from seriatim.interchange.arpa import spelled
from seriatim.interchange.formats import export_run, import_run

STRANGE, ORDER, ASKED = "never-seen-anywhere", 5, 1e-4


class Case(NamedTuple):
    """What is counted, and what it is tested on: files of the folder."""

    train: str
    test: str
    kind: str = "word"
    min_count: int = 1


CASES = {
    "masc-lm": Case("masc-lm/train.txt", "masc-lm/test.txt"),
    "masc-lm, words that occur 10 times, tested on wikitext-2": Case(
        "masc-lm/train.txt", "wikitext-2/test.txt", min_count=10
    ),
    "tinyshakespeare, characters, tested on masc-lm": Case(
        "tinyshakespeare/input.txt", "masc-lm/test.txt", kind="char"
    ),
}


def compare(case: Case, data: Path, folder: Path) -> dict[str, Any]:
    """Return the largest differences of a model, the number of tokens, and its settings."""
    run = seriatim.train(
        {
            "data": {"train": str(data / case.train), "unit": "line"},
            "tokenizer": {"kind": case.kind, "min_count": case.min_count},
            "model": {"layer": "ngram", "options": {"order": ORDER}},
            "out": str(folder / "run"),
        }
    )
    export_run(run, "arpa", str(folder / "model.arpa"))
    again = import_run(str(folder / "model.arpa"), str(folder / "again"))
    theirs = kenlm.Model(str(folder / "model.arpa"))
    tokens = range(run.tokenizer.vocabulary_size)
    place_of = {again.tokenizer.describe(token): token for token in tokens}
    place = np.array([place_of[run.tokenizer.describe(token)] for token in tokens])
    starts, unknown, mine, others, back = [], 0, [], [], []
    for line in (data / case.test).read_text(encoding="utf-8").splitlines():
        ids = run.tokenizer.encode(line)
        starts.append(len(mine))
        words = [STRANGE if token == 1 else spelled(run.tokenizer, int(token)) for token in ids]
        mine += (run.model.text_losses(np.append(ids, 0)) / -math.log(10)).tolist()
        others += [score for score, *_ in theirs.full_scores(" ".join(words))]
        back += (again.model.text_losses(np.append(place[ids], 0)) / -math.log(10)).tolist()
        unknown += int((ids == 1).sum())
    found: dict[str, Any] = {"tokens": len(mine), "unknown": unknown, "total": sum(mine)}
    for name, scores in (("kenlm", others), ("read back", back)):
        differences = np.array(scores) - np.array(mine)
        largest = {
            "token": float(np.abs(differences).max()),
            "line": float(np.abs(np.add.reduceat(differences, starts)).max()),
        }
        found[name] = {key: record.Figure(value, 0.0, ASKED) for key, value in largest.items()}
        found[f"{name}, total"] = abs(float(differences.sum()))
    return {**found, "settings": record.plain(run)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path)
    arguments = parser.parse_args()
    figures, settings = {}, {}
    rows = [["", "tokens", "unknown", "kenlm: a token", "a line", "the total", "read back: a token"]]
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = found = compare(case, arguments.data, Path(folder))
        settings[name] = found.pop("settings")
        token, line, back = found["kenlm"]["token"], found["kenlm"]["line"], found["read back"]["token"]
        total = f"{found.pop('kenlm, total'):.1e} of {-found['total']:,.0f}"
        sizes = [f"{found[key]:,}" for key in ("tokens", "unknown")]
        rows.append([name, *sizes, f"{token.value:.1e}", f"{line.value:.1e}", total, f"{back.value:.1e}"])
        print(*rows[-1], sep="  ", flush=True)
        found.pop("read back, total")
    worst = max(found["kenlm"]["line"].value for found in figures.values())
    claim = record.Claim(
        text="tokens and lines have the log10 probabilities of kenlm",
        reached=worst <= ASKED,
        peer="kenlm",
        ours=f"differ by at most {worst:.1e}",
        limit=f"{ASKED:g} asked",
    )
    record.save(
        "arpa_agreement",
        claims=[claim],
        settings=settings,
        figures=figures,
        tables=[rows],
        peers=["kenlm"],
        notes="Models of order 5; kenlm reads their ARPA files, and stores and adds float32.",
    )


if __name__ == "__main__":
    main()
