"""Compare the scores of our n-gram models with those of kenlm, and with those after export and import.

    python benchmarks/arpa_agreement.py --train train.txt --test test.txt [--kind char] [--min-count 5] [--order 5]

The script trains a model, exports an ARPA file, scores the test text line by line with the module `kenlm`, and imports
the file again. For both, it prints the largest difference of the log10 probability of a token, of a line and of the
whole text. kenlm stores and adds float32. Unknown words are passed to it as a word that occurs in no text.
`--min-count` makes rare words unknown.
"""

import argparse
import math
import tempfile
from pathlib import Path

import kenlm
import numpy as np

import seriatim
from seriatim.interchange.arpa import spelled
from seriatim.interchange.formats import export_run, import_run

STRANGE = "never-seen-anywhere"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--kind", default="word")
    parser.add_argument("--min-count", type=int, default=1)
    parser.add_argument("--order", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = seriatim.train(
            {
                "data": {"train": arguments.train, "unit": "line"},
                "tokenizer": {"kind": arguments.kind, "min_count": arguments.min_count},
                "model": {"layer": "ngram", "options": {"order": arguments.order}},
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
        for line in Path(arguments.test).read_text(encoding="utf-8").splitlines():
            ids = run.tokenizer.encode(line)
            starts.append(len(mine))
            words = [STRANGE if token == 1 else spelled(run.tokenizer, int(token)) for token in ids]
            mine += (run.model.text_losses(np.append(ids, 0)) / -math.log(10)).tolist()
            others += [score for score, *_ in theirs.full_scores(" ".join(words))]
            back += (again.model.text_losses(np.append(place[ids], 0)) / -math.log(10)).tolist()
            unknown += int((ids == 1).sum())
    print(f"{len(mine):,} tokens, {len(starts):,} of them line ends, {unknown:,} unknown")
    for name, found in (("kenlm", others), ("read back", back)):
        differences = np.array(found) - np.array(mine)
        token, line = np.abs(differences).max(), np.abs(np.add.reduceat(differences, starts)).max()
        print(
            f"{name}: a token differs by {token:.1e} at most, a line by {line:.1e}, "
            f"the total of {sum(mine):.3f} by {differences.sum():.1e}"
        )


if __name__ == "__main__":
    main()
