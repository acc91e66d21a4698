"""Train a character model of first names, with the sizes of a published notebook: validation loss of several layers.

Claims: an Elman network of 24,028 parameters and a Transformer of 62,236, trained for 10 epochs of batches of 16
without any option about dropout, reach the validation losses that are published for these models, in nats per character
(the end of a name is one): 2.0557 and 2.0513.

    python benchmarks/names.py --names names.txt

The notebook divides the sum of 201 means of batches by 200 (3,203 names in batches of 16), so that its 2.0660 and
2.0616 are 2.0557 and 2.0513. `--peer` trains its Elman network as it does, in a plain loop of PyTorch, and prints both
figures: per character, as this script measures ours, and the mean of the batches, which is a little larger.

The split is the published one: random.seed(123), shuffle, 80 % / 10 % / 10 %.
"""

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import machine
import record
import torch
from torch import nn
from torch.nn import functional as F

import seriatim

PUBLISHED = {"rnn": 2.0660 * 200 / 201, "transformer": 2.0616 * 200 / 201}
PARAMETERS = {"rnn": 24_028, "transformer": 62_236}
BATCH_SIZE, EPOCHS = 16, 10
OPTIONS: dict[str, Any] = {"word_dropout": 0.0}
TRANSFORMER: dict[str, Any] = {
    **OPTIONS,
    "num_heads": 2,
    "position": "learned",
    "max_length": 128,
    "norm": "layer",
    "norm_first": True,
    "final_norm": False,
    "feed_forward": "relu",
    "feed_forward_size": 64,
    "bias": True,
}
MODELS: dict[str, dict[str, Any]] = {
    **{
        layer: {"embedding_size": 96, "hidden_size": 96, "num_layers": 1, "options": OPTIONS}
        for layer in ("rnn", "lstm", "gru")
    },
    "transformer": {"embedding_size": 64, "hidden_size": 64, "num_layers": 2, "options": TRANSFORMER},
}


def split(names: Path, folder: Path) -> dict[str, str]:
    """Write the three parts and return their paths."""
    lines = [line for line in names.read_text(encoding="utf-8").split("\n") if line]
    random.seed(123)
    random.shuffle(lines)
    first, second = int(0.8 * len(lines)), int(0.9 * len(lines))
    parts = {"train": lines[:first], "valid": lines[first:second], "test": lines[second:]}
    for name, part in parts.items():
        (folder / f"{name}.txt").write_text("\n".join(part) + "\n", encoding="utf-8")
    return {name: str(folder / f"{name}.txt") for name in parts}


def config(layer: str, parts: dict[str, str], seed: int, out: str) -> dict[str, Any]:
    return {
        "task": "lm",
        "data": {"train": parts["train"], "valid": parts["valid"], "unit": "line"},
        "tokenizer": {"kind": "char"},
        "model": {"layer": layer, "bidirectional": False, **MODELS[layer]},
        "training": {
            **record.TRAINING,
            "seed": seed,
            "epochs": EPOCHS,
            "batch_size": BATCH_SIZE,
            "optimizer": "adam",
            "learning_rate": 2e-3,
            "warmup_steps": 801,
        },
        "out": out,
    }


class Peer(nn.Module):
    """The Elman network of the notebook: 26 letters, the boundary and the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(28, 96)
        self.layer = nn.RNN(96, 96, batch_first=True)
        self.output = nn.Linear(96, 28)

    def losses(self, names: list[list[int]]) -> torch.Tensor:
        """Return −log P of each character and of the ends, without the padding."""
        longest = max(map(len, names))
        tokens = torch.tensor([name + [27] * (longest - len(name)) for name in names])
        logits, targets = self.output(self.layer(self.embedding(tokens[:, :-1]))[0]), tokens[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")[targets.flatten() != 27]


def train_peer(parts: dict[str, str], seed: int) -> dict[str, Any]:
    """Train the peer with Adam at a constant rate of 0.001, as the notebook does; return its validation losses."""
    texts = {name: Path(parts[name]).read_text(encoding="utf-8").splitlines() for name in ("train", "valid")}
    train, valid = ([[26, *(ord(letter) - 97 for letter in name), 26] for name in part] for part in texts.values())
    torch.manual_seed(seed)
    model, order = Peer(), random.Random(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        order.shuffle(train)
        for start in range(0, len(train), BATCH_SIZE):
            loss = model.losses(train[start : start + BATCH_SIZE]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        batches = [model.losses(valid[start : start + BATCH_SIZE]) for start in range(0, len(valid), BATCH_SIZE)]
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "loss": float(torch.cat(batches).mean()),
        "mean_of_batches": float(torch.stack([batch.mean() for batch in batches]).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peer", action="store_true")
    arguments = parser.parse_args()
    print(machine.describe())
    found, settings = {}, {}
    head = ["layer", "parameters", "validation (95 %)", "test", "published", "difference"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        parts = split(arguments.names, Path(folder))
        for layer in MODELS:
            stated = config(layer, parts, arguments.seed, f"{folder}/{layer}")
            run = seriatim.train(stated)
            settings[layer] = record.settled(run, stated, but=["model.dropout"])
            valid, test = run.summary["valid"], run.evaluate(parts["test"])
            found[layer] = {key: valid[key] for key in ("loss", "loss_low", "loss_high")}
            found[layer] |= {"test": test["loss"], "parameters": run.summary["parameters"]}
            interval = f"{valid['loss']:.4f} ({valid['loss_low']:.3f} to {valid['loss_high']:.3f})"
            published = PUBLISHED.get(layer)
            beside = ["", ""] if published is None else [f"{published:.4f}", f"{valid['loss'] - published:+.4f}"]
            rows.append([f"`{layer}`", f"{run.summary['parameters']:,}", interval, f"{test['loss']:.4f}", *beside])
            print(*rows[-1], sep="   ", flush=True)
        if arguments.peer:
            found["peer"] = peer = train_peer(parts, arguments.seed)
            loss = f"{peer['loss']:.4f}; mean of the batches {peer['mean_of_batches']:.4f}"
            published = PUBLISHED["rnn"]
            difference = f"{peer['mean_of_batches'] - published:+.4f}"
            rows.append(["the notebook's loop", f"{peer['parameters']:,}", loss, "", f"{published:.4f}", difference])
            print(*rows[-1], sep="   ", flush=True)
    claims = []
    for layer, published in PUBLISHED.items():
        one = found[layer]
        claims.append(
            record.Claim(
                text=f"`{layer}` of {PARAMETERS[layer]:,} parameters: at most the published nats per character",
                reached=one["parameters"] == PARAMETERS[layer] and one["loss"] <= published,
                peer="the published notebook",
                ours=f"{one['loss']:.4f}",
                theirs=f"{published:.4f}",
                ratio=published / one["loss"],
            )
        )
    is_less = max(found["lstm"]["loss"], found["gru"]["loss"]) < found["rnn"]["loss"]
    claims.append(record.Claim(text="`lstm` and `gru` of the same width: less than `rnn`", reached=is_less))
    record.save(
        "names",
        claims=claims,
        settings=settings,
        figures=found,
        tables=[[head, *rows]],
        notes="""
            An Elman network and a Transformer with the sizes of a published notebook, and two gated networks of the
            same width, learn 32,033 first names. Losses are nats per character, of which the end of a name is one. The
            notebook divides the sum of 201 means of batches by 200, so that its 2.0660 and 2.0616 are 2.0557 and
            2.0513.
        """,
    )


if __name__ == "__main__":
    main()
