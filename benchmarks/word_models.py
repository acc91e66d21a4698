"""Compare values of a field for language models of words: the held-out loss after the plain command.

    python benchmarks/word_models.py --train FILE [--valid FILE] [--test FILE] [--minutes 1.5]
        [--vary model.options.word_dropout=0,0.5,0.8] [--set tokenizer.min_count=2]

For each value the script runs ``seriatim train lm --kind word`` until the held-out loss stops improving, or for the
given minutes. It prints the losses of all validations, the best one, and that of the n-gram baseline; and the
perplexities on the test text, if there is one.
"""

import argparse
import json
import tempfile
from pathlib import Path

from machine import describe

import seriatim
from seriatim.config import parse_value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--valid", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--minutes", type=float, default=1.5)
    parser.add_argument("--vary", default="model.options.word_dropout=0,0.5,0.8", help="FIELD=VALUE,VALUE")
    parser.add_argument("--set", action="append", default=[], help="FIELD=VALUE, for all")
    arguments = parser.parse_args()
    print(describe(), flush=True)
    field, _, values = arguments.vary.partition("=")
    fixed = {name: parse_value(value) for name, _, value in (text.partition("=") for text in arguments.set)}
    usual = {"training.patience": 5, "training.schedule": "constant", "training.average": 0.998}
    data = {"data.train": str(arguments.train), "tokenizer.kind": "word", "training.minutes": arguments.minutes}
    if arguments.valid is not None:
        data["data.valid"] = str(arguments.valid)
    for value in values.split(","):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            fields = {**usual, **data, **fixed, field: parse_value(value)}
            run = seriatim.train({"task": "lm", "out": str(out)}, overrides=fields)
            rows = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
            losses = [row["loss"] for row in rows if row["kind"] == "valid"]
            baseline = run.summary["baseline"]["simple"]["loss"]
            print(f"{field} {value}: held-out loss {min(losses):.3f}, n-gram {baseline:.3f}; validations:", end=" ")
            print(", ".join(f"{loss:.3f}" for loss in losses), flush=True)
            if arguments.test is not None:
                both = (
                    one.evaluate(str(arguments.test))["perplexity"] for one in (run, seriatim.load(out / "baseline"))
                )
                print("  test perplexity {:.2f}, n-gram {:.2f}".format(*both), flush=True)


if __name__ == "__main__":
    main()
