"""Measure how exactly models come in from transformers and torch.nn and go out again.

    python benchmarks/interchange.py [--text FILE] [--only NAME,NAME]

For a small checkpoint with random weights of each family, the script prints the largest deviation of our logits from
those of transformers, over whole sequences and step by step (BERT, which reads from both sides, has no steps); the
largest deviation after the checkpoint was exported again and opened by transformers; that of the ONNX export of the
imported run in onnxruntime, whole and step by step; and on how many lines of a text the tokens and the decoded text are
equal. The rows RNN, LSTM and GRU are the same for state dictionaries of torch.nn with a list of words; the tokens of a
line are there those of ``line.split()``, and the text is that of ``" ".join``. Where minicons is installed, it also
prints the largest deviation of the surprisal of tokens, in bits.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent.parent))  # the checkpoints are those of the tests

import numpy as np
import onnxruntime
import record
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

import seriatim
from seriatim.data.tokenizers import END
from seriatim.interchange.formats import export_run, import_run
from seriatim.models.masked_language_model import Frame
from tests.interchange import torch_modules
from tests.interchange.checkpoints import CHECKPOINTS, GAPPED, write

LINES, ROWS, TIME = 10_000, 4, 48
ASKED = 1e-4
RECURRENT: dict[str, type[nn.RNNBase]] = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}


def deviations(model: transformers.PreTrainedModel, run: seriatim.Run, exported: Path) -> list[float]:
    """Return the largest deviations of logits: whole sequences, steps, the exported checkpoint, and ONNX."""
    ids = torch.randint(run.tokenizer.vocabulary_size, (ROWS, TIME), generator=torch.Generator().manual_seed(0))
    ours = torch.from_numpy(run.tokenizer.exchanged(ids.numpy()))
    with torch.no_grad():
        expected = model(ids).logits
        order = torch.from_numpy(run.tokenizer.exchanged(torch.arange(expected.shape[2]).numpy()))
        steps, state = [], run.model.initial_state(ROWS)
        for tokens in ours.unbind(1):
            logits, state = run.model.step(tokens, state)
            steps.append(logits)
        again = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()(ids).logits
    whole: Tensor = run.model(ours)[0].detach()[..., order]
    stepped = torch.stack(steps, dim=1)[..., order]
    found = [(value - expected).abs().max().item() for value in (whole, stepped, again)]
    return [*found, onnx_deviation(run, exported.with_name("onnx"), ids, expected)]


def gap_deviations(model: transformers.PreTrainedModel, run: seriatim.Run, exported: Path) -> list[float | None]:
    """Return the same, without steps, for a model that reads both sides, over texts of several lengths."""
    tokenizer, longest = run.tokenizer, min(TIME, model.config.max_position_embeddings - 2)
    lengths = torch.tensor([longest, longest // 2, 1, longest - 1])
    ids = torch.randint(tokenizer.vocabulary_size, (len(lengths), longest), generator=torch.Generator().manual_seed(0))
    gaps = torch.arange(ids.shape[1]) % 5 == 2
    framed = Frame(*tokenizer.exchanged([tokenizer.begin, END]).tolist()).around
    read = framed(ids.masked_fill(gaps, tokenizer.mask), lengths)[0]
    valid = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
    attended = torch.arange(read.shape[1]) < lengths.unsqueeze(1) + 2
    ours = torch.from_numpy(tokenizer.exchanged(ids.numpy())).masked_fill(gaps, run.model.mask)
    order = torch.from_numpy(tokenizer.exchanged(range(tokenizer.vocabulary_size)))
    with torch.no_grad():
        expected = model(read, attention_mask=attended).logits
        whole = run.model(ours, torch.arange(ours.numel()), lengths=lengths).unflatten(0, ours.shape)[..., order]
        loaded = transformers.AutoModelForMaskedLM.from_pretrained(exported).eval()
        again = loaded(read, attention_mask=attended).logits
    export_run(run, "onnx", str(exported.with_name("onnx")))
    session = onnxruntime.InferenceSession(str(exported.with_name("onnx") / "sequence.onnx"))
    tokens = read.masked_fill(read == tokenizer.mask, run.model.mask).numpy()
    (onnx,) = session.run(None, {"tokens": tokens, "lengths": (lengths + 2).numpy()})
    values = (whole, again[:, 1:-1], torch.from_numpy(onnx)[:, 1:-1])
    first, *others = ((value - expected[:, 1:-1])[valid].abs().max().item() for value in values)
    return [first, None, *others]


def equal_lines(run: seriatim.Run, folder: Path, lines: Iterable[str]) -> tuple[int, int]:
    """Return on how many lines both tokenizers agree, in tokens and in the text they decode to, and the lines."""
    there = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    equal = total = 0
    for line in lines:
        ids, here = there.encode(line, add_special_tokens=False), run.tokenizer.encode(line)
        same = run.tokenizer.exchanged(here).tolist() == ids
        equal += same and run.tokenizer.decode(here) == there.decode(ids, clean_up_tokenization_spaces=False)
        total += 1
    return equal, total


def onnx_deviation(run: seriatim.Run, folder: Path, ids: Tensor, expected: Tensor) -> float:
    """Return the largest deviation of the exported model, whose ids are ``ids``, from logits in their order."""
    export_run(run, "onnx", str(folder))
    state = json.loads((folder / "model.json").read_text(encoding="utf-8"))["state"]
    start = {
        leaf["input"]: np.full(leaf["shape"], leaf["value"], leaf["type"]).repeat(len(ids), axis=0) for leaf in state
    }
    sequence, step = (onnxruntime.InferenceSession(str(folder / f"{form}.onnx")) for form in ("sequence", "step"))
    largest = float(np.abs(sequence.run(None, {"tokens": ids.numpy(), **start})[0] - expected.numpy()).max())
    for time, tokens in enumerate(ids.numpy().T):
        logits, *after = step.run(None, {"tokens": tokens, **start})
        start = dict(zip(start, after, strict=True))
        largest = max(largest, float(np.abs(logits - expected[:, time].numpy()).max()))
    return largest


@torch.no_grad()
def recurrent_row(kind: type[nn.RNNBase], temporary: Path, lines: list[str]) -> tuple[list[float], int, int]:
    """Return the deviations of a module of torch.nn, the number of equal lines, and that of all lines."""
    words = sorted({"<eos>", "<unk>", *(word for line in lines[::2] for word in line.split())})  # others are unknown
    sizes = {"size": 32, "hidden": 32, "num_layers": 2}
    module = torch_modules.Module(kind, len(words), **sizes)
    folder = torch_modules.write(temporary / "there", module, words)
    run, exported = import_run(str(folder), str(temporary / "run")), temporary / "again.safetensors"
    export_run(run, "torch", str(exported))
    special = [words.index("<eos>"), words.index("<unk>")]
    order = torch.tensor([*special, *(row for row in range(len(words)) if row not in special)])
    ours = torch.randint(len(words), (ROWS, TIME), generator=torch.Generator().manual_seed(0))
    expected = module(order[ours])[..., order]
    again = torch_modules.Module(kind, len(words), names=("embedding", "layer", "output"), **sizes)
    again.load_state_dict(load_file(exported))
    steps, state = [], run.model.initial_state(ROWS)
    for tokens in ours.unbind(1):
        logits, state = run.model.step(tokens, state)
        steps.append(logits)
    values = (run.model(ours)[0], torch.stack(steps, dim=1), again(ours))
    ids, equal = {word: i for i, word in enumerate(words)}, 0
    for line in lines:
        there, here = [ids.get(word, special[1]) for word in line.split()], run.tokenizer.encode(line)
        same = order[torch.from_numpy(here).long()].tolist() == there
        equal += same and run.tokenizer.decode(here) == " ".join(words[i] for i in there)
    found = [(value - expected).abs().max().item() for value in values]
    return [*found, onnx_deviation(run, temporary / "onnx", ours, expected)], equal, len(lines)


def surprisal_deviation(run: seriatim.Run, folder: Path) -> float:
    """Return the largest deviation from minicons of the surprisal of tokens, in bits."""
    from minicons import scorer

    names = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>")
    transformers.AutoTokenizer.from_pretrained(folder, **names).save_pretrained(folder)
    model, largest = scorer.IncrementalLMScorer(str(folder), "cpu"), 0.0
    for line in ("the cat sat on the mat", "she likes it , and a dog barked"):
        (theirs,) = model.token_score([line], surprisal=True, base_two=True, bos_token=True)
        ours = [unit.bits for unit in next(run.surprisal([line], by="token"))]
        scores = [bits for _, bits in theirs][-len(ours) :]
        largest = max(largest, *(abs(a - b) for a, b in zip(ours, scores, strict=True)))
    return largest


def every_script(text: Path | None) -> list[str]:
    """Return lines of a text, or lines of characters of all scripts."""
    if text is not None:
        return text.read_text(encoding="utf-8").splitlines()[:LINES]
    blocks = [range(start, start + 24) for start in range(0x20, 0x20000, 24)]
    texts = ("".join(map(chr, block)) for block in blocks if not 0xD7FF - 24 < block.start < 0xE000)
    return [f"the {part} cat" for part in texts if "\0" not in part][:LINES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--only", default=",".join([*CHECKPOINTS, *GAPPED, *RECURRENT]), help="the rows to measure")
    given = parser.parse_args()
    lines, rows, figures, bits = every_script(given.text), [], {}, None
    for name in given.only.split(","):
        with tempfile.TemporaryDirectory() as temporary:
            if name in RECURRENT:
                found, equal, total = recurrent_row(RECURRENT[name], Path(temporary), lines)
            else:
                folder, run_folder, exported = (Path(temporary) / part for part in ("there", "run", "exported"))
                model = write(name, folder)
                run = import_run(str(folder), str(run_folder))
                export_run(run, "transformers", str(exported))
                found = (deviations if name in CHECKPOINTS else gap_deviations)(model, run, exported)
                equal, total = equal_lines(run, folder, lines)
                if name == "gpt2" and importlib.util.find_spec("minicons") is not None:
                    bits = surprisal_deviation(run, folder)
        shown = ["–" if value is None else f"{value:.1e}" for value in found]
        rows.append([name, *shown, f"{equal:,} of {total:,}"])
        print(*rows[-1], sep=" | ", flush=True)
        figures[name] = max(value for value in found if value is not None)
    worst = max(figures.values())
    claims = [
        record.Claim(
            text="imported models have the logits of their library, step by step, exported again and in ONNX",
            reached=worst <= ASKED,
            peer="transformers, torch.nn, onnxruntime",
            ours=f"differ by at most {worst:.1e}",
            limit=f"{ASKED:g} asked",
        )
    ]
    if bits is not None:
        claims.append(
            record.Claim(
                text="the surprisal of tokens is that of minicons",
                reached=bits <= ASKED,
                peer="minicons",
                ours=f"differs by at most {bits:.1e} bits",
                limit=f"{ASKED:g} asked",
            )
        )
    record.save(
        "interchange",
        claims=claims,
        settings=vars(given),
        figures={name: record.Figure(value, 0.0, ASKED) for name, value in figures.items()},
        tables=[[["checkpoint", "whole", "steps", "exported again", "ONNX", "equal lines"], *rows]],
        peers=["transformers", "onnxruntime", *(["minicons"] if bits is not None else [])],
        notes="""
            The largest deviation of logits of small checkpoints with random weights: 48 tokens, 4 rows, float32. The
            last column says on how many lines, of characters of all scripts, tokens and decoded text are equal. BERT
            has random weights 8 times as large as usual, and no steps.
        """,
    )


if __name__ == "__main__":
    main()
