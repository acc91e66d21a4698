"""Measure the milliseconds from one text to its answer, beside the model alone and scikit-learn.

    python benchmarks/latency.py --data train.tsv [--label coarse] [--layer gru] [--tagged train.conllu] [--threads 1]

For each task, a small model is trained for a few steps, because its accuracy does not matter here. It then answers
texts of the training data one by one: `next(run.predict([text]))`, or `run.score([text])` for a language model. "model"
is the part of this time that the model needs if the ids are already in a tensor; it is the lower limit. If scikit-learn
is installed (the extra `peers`), its usual classifier is measured beside ours: TF-IDF of words and logistic regression.
All of them take turns on the same texts, so that other load on the machine affects them equally. The script prints
median and 95th percentile, and last the ratio of our classifier to that of scikit-learn.
"""

import argparse
import importlib.util
import itertools
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import seriatim
from seriatim.data.conll import read_sentences
from seriatim.data.sources import find_sources
from seriatim.data.tables import read_labelled
from seriatim.tasks.documents import batch_of, encode

Call = Callable[[str], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="labelled texts, with the columns label and text")
    parser.add_argument("--label", default="label")
    parser.add_argument("--tagged", help="a file of tagged sentences in columns")
    parser.add_argument("--layer", default="gru")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = list(read_labelled(find_sources(arguments.data), file_format="auto", text="text", label=arguments.label))
    random.Random(1).shuffle(rows)
    texts, labels = [row.text for row in rows], [str(row.label) for row in rows]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        classifier = small(folder, "classify", arguments.data, arguments, {"label": arguments.label})
        calls: dict[str, Call] = {"classify": lambda text: next(classifier.predict([text]))}
        calls["classify, model"] = model_alone(classifier, texts[: arguments.texts])
        if importlib.util.find_spec("sklearn"):
            calls["scikit-learn"] = scikit_learn(texts, labels)
        (folder / "lines.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        scorer = small(folder, "lm", str(folder / "lines.txt"), arguments, {"unit": "line"})
        calls["score"] = lambda text: scorer.score([text])
        found = measure(calls, texts[: arguments.texts])
        if arguments.tagged:
            tagger = small(folder, "tag", arguments.tagged, arguments, {})
            sentences = itertools.islice(read_sentences(find_sources(arguments.tagged)), arguments.texts)
            lines = [" ".join(sentence.words) for sentence in sentences]
            found |= measure({"tag": lambda text: next(tagger.predict([text]))}, lines)
    print(f"{'ms a text':18}{'median':>8}{'p95':>8}")
    for name, times in found.items():
        print(f"{name:18}{np.median(times):8.2f}{np.percentile(times, 95):8.2f}")
    limit = np.median(found["classify"]) / np.median(found["classify, model"])
    print(f"classify takes {limit:.2f} times the model alone")
    if "scikit-learn" in found:
        print(f"classify / scikit-learn: {np.median(found['classify']) / np.median(found['scikit-learn']):.2f}")


def small(folder: Path, task: str, data: str, arguments: argparse.Namespace, fields: dict[str, str]) -> seriatim.Run:
    """Return a model that was trained for a few steps."""
    return seriatim.train(
        {
            "task": task,
            "data": {"train": data, **fields},
            "tokenizer": {"kind": "word"},
            "model": {"layer": arguments.layer, "embedding_size": 128, "hidden_size": arguments.hidden},
            "training": {"steps": 5},
            "out": str(folder / task),
        }
    )


def model_alone(run: seriatim.Run, texts: Sequence[str]) -> Call:
    """Return the calls of the classifier's model on texts that are already encoded."""
    batches = {text: batch_of(encode([text], [0], run.vocabulary), np.array([0])) for text in texts}

    def call(text: str) -> object:
        batch = batches[text]
        return run.model.probabilities(batch.inputs, batch.lengths)

    return call


def scikit_learn(texts: Sequence[str], labels: Sequence[str]) -> Call:
    """Return a classifier with TF-IDF of words and logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    pipeline: Any = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000)).fit(texts, labels)
    return lambda text: pipeline.predict([text])[0]


def measure(calls: dict[str, Call], texts: Sequence[str]) -> dict[str, list[float]]:
    """Return the milliseconds of each call on each text, in turns, after some calls to warm up."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for text in texts[:20]:
        for call in calls.values():
            call(text)
    for text in texts:
        for name, call in calls.items():
            started = time.perf_counter()
            call(text)
            found[name].append(1e3 * (time.perf_counter() - started))
    return found


if __name__ == "__main__":
    main()
