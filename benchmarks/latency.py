"""Measure the milliseconds from one short text to its answer, in Python and through HTTP, beside the usual libraries.

    python benchmarks/latency.py --labelled train.tsv [--label coarse] --tagged train.conll [--threads 1]

Claims: a bag of n-grams and a CRF on attributes answer in 0.5 ms, and the default classifier and tagger, each together
with its simple baseline, in 1.5 ms.

Four models are trained for a few steps with default sizes, because their accuracy does not matter here. They answer
texts of 10 to 20 words one by one: `next(run.predict([text]))`, and a request to `seriatim serve` over a connection
that stays open; the tags and labels come with their probabilities there. scikit-learn (TF-IDF of words and logistic
regression) and CRFsuite with the usual attributes (`linear.py`) do the same in Python. "products" are the matrix
products of the default classifier alone: less is not possible with these weights. All take turns on the same texts,
twenty texts at a time, so that other load affects them equally and weights stay in the processor's cache as they do
for a model that answers alone.
"""

import argparse
import http.client
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import linear
import machine
import record
import torch
from server_processes import Place, running
from server_processes import seriatim as serve

import seriatim
from seriatim.data.conll import read_sentences
from seriatim.data.sources import find_sources
from seriatim.data.tables import read_labelled

Call = Callable[[str], object]
LIMITS = {"bag": 0.5, "features": 0.5, "classify": 1.5, "tag": 1.5}
"""Milliseconds that are claimed for each model."""
NAMES = {
    "bag": "a bag of n-grams", "features": "a CRF on attributes", "classify": "the default classifier",
    "tag": "the default tagger",
}  # fmt: skip
SHORT = range(10, 21)
"""Words of a text."""
TOGETHER = 20
"""Texts that one model answers before the next one does."""
WARM = 30
"""Texts that are answered before anything is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labelled", required=True, help="labelled texts, with the columns label and text")
    parser.add_argument("--label", default="label", help="the column of the labels")
    parser.add_argument("--tagged", required=True, help="tagged sentences in columns")
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--steps", type=int, default=20, help="of the trainings")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = list(read_labelled(find_sources(args.labelled), text="text", label=args.label))
    sentences = list(read_sentences(find_sources(args.tagged)))
    texts = {
        "classify": short([row.text for row in rows], args.texts),
        "tag": short([" ".join(sentence.words) for sentence in sentences], args.texts),
    }
    with tempfile.TemporaryDirectory(prefix="latency-") as temporary:
        folder = Path(temporary)
        runs = train(args, folder)
        peers = {
            "scikit-learn": scikit_learn([row.text for row in rows], [str(row.label) for row in rows]),
            "CRFsuite": crfsuite(args.tagged, folder),
        }
        command = serve(*(run.path for run in runs.values()))
        with running("seriatim", command, Place(args.threads, folder)) as server:
            client = http.client.HTTPConnection("127.0.0.1", server.port)
            calls: dict[str, tuple[str, Call]] = {"products": ("classify", products(runs["classify"].model))}
            for name, run in runs.items():
                task = run.config.task
                calls[name] = task, lambda text, run=run: next(run.predict([text]))
                calls[f"{name} over HTTP"] = task, asking(client, name, task)
            calls["scikit-learn"], calls["CRFsuite"] = ("classify", peers["scikit-learn"]), ("tag", peers["CRFsuite"])
            found = measure(calls, texts)
    save(args, found, runs)


def short(texts: Sequence[str], count: int) -> list[str]:
    """Return some texts of few words."""
    chosen = [text for text in texts if len(text.split()) in SHORT]
    return random.Random(1).sample(chosen, min(count, len(chosen)))


def train(args: argparse.Namespace, folder: Path) -> dict[str, seriatim.Run]:
    """Return the four models, which need not be good."""
    labelled, tagged = {"train": args.labelled, "label": args.label}, {"train": args.tagged}
    few, soon = {"steps": args.steps}, {"minutes": 0.5}
    configs: dict[str, dict[str, Any]] = {
        "bag": {"task": "classify", "data": labelled, "model": {"layer": "bag"}},
        "features": {"task": "tag", "data": tagged, "model": {"layer": "features"}, "training": soon},
        "classify": {"task": "classify", "data": labelled, "training": few},
        "tag": {"task": "tag", "data": tagged, "training": few},
    }
    for name, config in configs.items():
        seriatim.train({**config, "out": str(folder / name)})
    return {name: seriatim.load(folder / name, device="cpu") for name in configs}


def products(network: Any) -> Call:
    """Return calls of the matrix products of both directions of an LSTM: of all inputs, and of each state."""
    pairs = [(cell.weight_ih_l0.detach(), cell.weight_hh_l0.detach()) for cell in cells(network)]
    width = pairs[0][0].shape[1]
    inputs, state = torch.zeros(max(SHORT), width), torch.zeros(pairs[0][1].shape[1])
    before, gates = torch.empty(max(SHORT), len(pairs[0][0])), torch.empty(len(pairs[0][0]))

    def call(text: str) -> None:
        words = len(text.split())
        for of_inputs, of_state in pairs:
            torch.mm(inputs[:words], of_inputs.t(), out=before[:words])
            for _ in range(words):
                torch.mv(of_state, state, out=gates)

    return call


def cells(network: Any) -> list[Any]:
    """Return the cells of a network, which must be LSTMs."""
    return [module for module in network.modules() if hasattr(module, "weight_hh_l0")]


def asking(client: http.client.HTTPConnection, model: str, task: str) -> Call:
    """Return requests to a server."""

    def call(text: str) -> object:
        body = json.dumps({"model": model, "input": text})
        client.request("POST", f"/v1/{task}", body, {"content-type": "application/json"})
        answer = client.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {content!r}")
        return json.loads(content)["data"][0]["text"]

    return call


def scikit_learn(texts: Sequence[str], labels: Sequence[str]) -> Call:
    """Return a classifier with TF-IDF of words and logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    pipeline: Any = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000)).fit(texts, labels)
    return lambda text: pipeline.predict([text])[0]


def crfsuite(spec: str, folder: Path) -> Call:
    """Return a tagger of CRFsuite after a few iterations."""
    import pycrfsuite

    trainer = pycrfsuite.Trainer(verbose=False)
    for sentence in read_sentences(find_sources(spec)):
        trainer.append(linear.attributes(sentence.words), list(sentence.tags))
    trainer.set_params({"c1": 0.0, "c2": 1.0, "max_iterations": 10, "feature.possible_transitions": True})
    trainer.train(str(folder / "crfsuite"))
    tagger = pycrfsuite.Tagger()
    tagger.open(str(folder / "crfsuite"))
    return lambda text: tagger.tag(linear.attributes(text.split()))


def measure(calls: dict[str, tuple[str, Call]], texts: dict[str, list[str]]) -> dict[str, list[float]]:
    """Return the milliseconds of each call on each text of its task, in turns, after some calls to warm up."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(WARM):
        for task, call in calls.values():
            call(texts[task][-1 - i % len(texts[task])])
    for start in range(0, max(map(len, texts.values())), TOGETHER):
        for name, (task, call) in calls.items():
            for i in range(start, start + TOGETHER):
                text = texts[task][i % len(texts[task])]
                found[name].append(1000 * machine.seconds(lambda call=call, text=text: call(text)))
    return found


def save(args: argparse.Namespace, found: dict[str, list[float]], runs: dict[str, seriatim.Run]) -> None:
    """Write the record: a claim for each model, in Python and over HTTP."""
    middle = {name: median(times) for name, times in found.items()}
    claims = []
    for name in (name for one in LIMITS for name in (one, f"{one} over HTTP")):
        model, _, way = name.partition(" ")
        peer = "scikit-learn" if runs[model].config.task == "classify" else "CRFsuite"
        claim = record.Claim(
            text=f"{NAMES[model]} answers a short text {way or 'in Python'} in {LIMITS[model]} ms",
            reached=middle[name] <= LIMITS[model],
            peer=f"{peer} in Python",
            ours=f"{middle[name]:.2f} ms",
            theirs=f"{middle[peer]:.2f} ms",
            ratio=middle[peer] / middle[name],
            limit=f"{middle['products']:.2f} ms for the products of the classifier" if model == "classify" else "",
        )
        claims.append(claim)
    table = [["", "ms a text", "95 % below"]]
    table += [[name, f"{middle[name]:.2f}", f"{quantiles(times, n=20)[-1]:.2f}"] for name, times in found.items()]
    record.save(
        "latency",
        claims=claims,
        settings={name: record.plain(run) for name, run in runs.items()},
        figures={name: record.Figure(middle[name], *quantiles(times, n=4)[::2]) for name, times in found.items()},
        tables=[table],
        peers=["scikit-learn", "python-crfsuite"],
        notes=f"""{args.texts} texts of {SHORT.start} to {SHORT.stop - 1} words, one at a time; medians,
        with the quartiles as ranges. Accuracy is not compared: the trainings are short.""",
    )


if __name__ == "__main__":
    main()
