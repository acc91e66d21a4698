"""State dictionaries of torch.nn become runs: the same logits, and clear errors."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import seriatim
from seriatim.cli.main import main
from seriatim.interchange.formats import import_run
from seriatim.interchange.torch_states import TorchOptions

from ..quick_compiler import quickly
from .checkpoints import byte_level, sentence_pieces
from .torch_modules import EXAMPLE, ROWS, WORDS, Module, write

_quickly = pytest.fixture(autouse=True, scope="module")(quickly)


CHARACTERS = ["\n", " ", "a", "b", "c", "."]
LINES = "the cat sat .\nthe mat sat on the cat .\n\na dog sat .\n"


@torch.no_grad()
def check_logits(run: seriatim.Run, module: nn.Module, rows: list[int]) -> None:
    """Compare logits over whole sequences and step by step; ``rows`` are the ids there of the tokens here."""
    here = torch.tensor([token for token, row in enumerate(rows) if row >= 0])
    ours = here[torch.randint(len(here), (3, 9))]
    expected = module(torch.tensor(rows)[ours])[..., torch.tensor(rows)[here]]
    torch.testing.assert_close(run.model(ours)[0][..., here], expected, rtol=0, atol=1e-5)
    state = run.model.initial_state(3)
    for time in range(ours.shape[1]):
        logits, state = run.model.step(ours[:, time], state)
        torch.testing.assert_close(logits[..., here], expected[:, time], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_logits_are_those_of_torch(tmp_path: Path, kind: type[nn.RNNBase], layers: int, bias: bool) -> None:
    module = Module(kind, len(WORDS), num_layers=layers, bias=bias, output_bias=bias)
    run = import_run(str(write(tmp_path / "in", module)), str(tmp_path / "run"))
    assert run.config.model.layer == kind.__name__.lower()
    assert run.config.data.unit == "stream"
    assert run.tokenizer.decode(run.tokenizer.encode(LINES)) == LINES.replace("a dog", "<unk> <unk>")
    check_logits(run, module, ROWS)


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (("embedding", "lstm", "fc"), {"size": 7}),
        (("module.emb", "module.gru", "module.out"), {"size": 7, "output_bias": False}),
        (EXAMPLE, {"size": 7, "tied": True}),
        (EXAMPLE, {"size": 7, "tied": True, "output_bias": False}),
        (EXAMPLE, {"proj_size": 3}),
        (EXAMPLE, {"size": 3, "proj_size": 3, "num_layers": 2, "tied": True}),
    ],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_other_names_tied_weights_and_projections(tmp_path: Path, names, options) -> None:
    plain = tuple(name.rpartition(".")[2] for name in names)
    module = Module(nn.LSTM, len(WORDS), names=plain, **options)
    prefix = names[0].removesuffix(plain[0])
    state = {prefix + name: value.clone() for name, value in module.state_dict().items()}
    run = import_run(str(write(tmp_path / "in", state)), str(tmp_path / "run"))
    assert run.config.model.tie_weights == options.get("tied", False)
    check_logits(run, module, ROWS)
    if options.get("tied"):  # with one of the names left out
        other = import_run(str(write(tmp_path / "one", module)), str(tmp_path / "other"))
        check_logits(other, module, ROWS)


def test_the_nonlinearity_and_the_unit_are_options(tmp_path: Path) -> None:
    module = Module(nn.RNN, len(WORDS), nonlinearity="relu")
    folder = write(tmp_path / "in", module)
    options = TorchOptions(nonlinearity="relu", unit="line")
    run = import_run(str(folder), str(tmp_path / "run"), torch_options=options)
    assert run.config.data.unit == "line"
    check_logits(run, module, ROWS)


def test_half_precision_becomes_float32(tmp_path: Path) -> None:
    module = Module(nn.GRU, len(WORDS)).half()
    folder = write(tmp_path / "in", module)
    check_logits(import_run(str(folder), str(tmp_path / "run")), module.float(), ROWS)


@torch.no_grad()
def test_the_loss_of_a_text_is_that_of_torch(tmp_path: Path, capsys) -> None:
    module = Module(nn.LSTM, len(WORDS), num_layers=2)
    folder, data = write(tmp_path / "in", module), tmp_path / "text.txt"
    data.write_text(LINES)
    tokens = [word if word in WORDS else "<unk>" for line in LINES.splitlines() for word in [*line.split(), "<eos>"]]
    ids = torch.tensor([WORDS.index(word) for word in ["<eos>", *tokens]])
    expected = nn.functional.cross_entropy(module(ids[None, :-1])[0], ids[1:])
    out = str(tmp_path / "run")
    assert main(["import", str(folder), "--out", out]) == 0
    assert main(["evaluate", out, "--data", str(data), "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert metrics["loss"] == pytest.approx(expected.item(), abs=1e-5)
    assert metrics["tokens"] == len(tokens)
    assert metrics["unknown_tokens"] == 2


def test_an_imported_run_is_a_run(tmp_path: Path, texts, capsys) -> None:
    module, out, tuned = Module(nn.GRU, len(WORDS)), str(tmp_path / "run"), str(tmp_path / "tuned")
    weights = write(tmp_path / "in", module) / "model.safetensors"
    assert main(["import", str(weights), "--out", out]) == 0
    assert "wrote the run" in capsys.readouterr().out
    assert main(["import", str(weights), "--out", out]) == 2
    assert main(["import", str(weights), "--out", out, "--overwrite"]) == 0
    assert main(["generate", out, "--prompt", "the cat", "--max-tokens", "5", "--seed", "1"]) == 0
    assert main(["surprisal", out, texts["test"]]) == 0
    given = ["--data", texts["train"], "--init", out, "--training.steps", "2", "--out", tuned]
    assert main(["train", "lm", *given]) == 0
    assert seriatim.load(tuned).tokenizer.fingerprint() == seriatim.load(out).tokenizer.fingerprint()


@pytest.mark.parametrize("layer", ["rnn", "lstm", "gru"])
def test_an_export_comes_back(tmp_path: Path, texts, layer: str) -> None:
    options = {"activation": "relu"} if layer == "rnn" else {}
    run = seriatim.train(
        {"task": "lm", "data": {"train": texts["train"], "unit": "line"}, "tokenizer": {"kind": "bpe"},
         "model": {"layer": layer, "embedding_size": 6, "hidden_size": 6, "num_layers": 2, "options": options},
         "training": {"baseline": "none", "steps": 2, "batch_size": 8}, "out": str(tmp_path / "run")}
    )  # fmt: skip
    state = str(tmp_path / "state.safetensors")
    assert main(["export", str(run.path), "--format", "torch", "--out", state]) == 0
    vocabulary = ["--vocabulary", str(run.path / "tokenizer.json")]
    assert main(["import", state, *vocabulary, "--out", str(tmp_path / "again")]) == 0
    again = seriatim.load(tmp_path / "again")
    assert again.config.data.unit == "line"
    tokens = torch.randint(run.tokenizer.vocabulary_size, (3, 9))
    assert torch.equal(again.model(tokens)[0], run.model(tokens)[0])
    again_state = str(tmp_path / "again.safetensors")
    assert main(["export", str(again.path), "--format", "torch", "--out", again_state]) == 0
    first, second = load_file(state), load_file(again_state)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_characters(tmp_path: Path) -> None:
    """The line end is a character; the boundary and the unknown character, which are added, are improbable."""
    module = Module(nn.LSTM, len(CHARACTERS), output_bias=False)
    folder = write(tmp_path / "in", module, None)
    (folder / "vocab.txt").write_text("\\n\n \na\nb\nc\n.\n")
    run = import_run(str(folder), str(tmp_path / "run"))
    assert run.config.data.unit == "stream"
    assert run.tokenizer.decode(run.tokenizer.encode("a b.\nc")) == "a b.\nc"
    assert run.tokenizer.encode("\na").tolist() == [2, 4]
    check_logits(run, module, [-1, -1, 0, 1, 2, 3, 4, 5])
    with torch.no_grad():
        logits, _ = run.model(torch.tensor([[0, 2, 3, 4]]))
        assert torch.softmax(logits, 2)[..., :2].max() < 3e-9
        after_boundary, after_line_end = run.model(torch.tensor([[0], [2]]))[0]
    torch.testing.assert_close(after_boundary, after_line_end)
    assert "\n" in "".join(run.generate(max_tokens=300, seed=1))


def test_characters_with_special_tokens(tmp_path: Path) -> None:
    """A text begins with its own token; without a character for the line end, a line is a text."""
    tokens = ["<pad>", "<sos>", "<eos>", "<unk>", "a", "b", " "]
    module = Module(nn.GRU, len(tokens))
    run = import_run(str(write(tmp_path / "in", module, tokens)), str(tmp_path / "run"))
    run = seriatim.load(run.path)
    assert run.config.data.unit == "line"
    assert run.tokenizer.begin == run.model.begin == 3
    assert run.tokenizer.encode("ab x").tolist() == [4, 5, 6, 1]
    check_logits(run, module, [2, 3, 0, 1, 4, 5, 6])
    ids = torch.tensor([[1, 4, 5, 2]])
    with torch.no_grad():
        nats = torch.log_softmax(module(ids).double(), 2)[0, :-1].gather(1, ids[0, 1:, None]).sum().item()
    assert run.score(["ab"])[0].log_probability == pytest.approx(nats, abs=1e-5)


@pytest.mark.parametrize(
    ("content", "end", "rows"),
    [
        ({"the": 1, "cat": 0, "</s>": 2}, None, [2, -1, 0, 1]),
        (["the", "<EOS>", "[UNK]", "\ue000"], None, [1, 2, 0, 3]),
        (["a", "b", "STOP", "</s>", "word"], "STOP", [2, -1, 0, 1, 3, 4]),
        (["\n", "the", "<unk>"], None, [0, 2, 1]),
        (["<s>", "the", "</s>", "<unk>"], None, [2, 3, 0, 1]),
        (["a", "\n", "b"], r"\n", [1, -1, 0, 2]),
    ],
)
def test_vocabularies(tmp_path: Path, content: object, end: str | None, rows: list[int]) -> None:
    module = Module(nn.GRU, len(content))
    folder = write(tmp_path / "in", module, None)
    vocabulary = tmp_path / "any.json"
    vocabulary.write_text(json.dumps(content))
    options = TorchOptions(vocabulary=str(vocabulary), end=end)
    run = import_run(str(folder), str(tmp_path / "run"), torch_options=options)
    assert run.tokenizer.vocabulary_size == len(rows)
    check_logits(run, module, rows)
    names = list(content)
    names = sorted(content, key=content.get) if isinstance(content, dict) else names
    for token, row in enumerate(rows[2:], 2):
        assert run.tokenizer.token_bytes(token).decode() == names[row]


@pytest.mark.parametrize("make", [lambda: byte_level("<pad>", "<|endoftext|>"), sentence_pieces])
def test_a_tokenizer_of_the_tokenizers_library(tmp_path: Path, make) -> None:
    tokenizer = make()
    module = Module(nn.LSTM, tokenizer.get_vocab_size() + 3)
    folder = write(tmp_path / "in", module, None)
    tokenizer.save(str(folder / "tokenizer.json"))
    run = import_run(str(folder), str(tmp_path / "run"))
    ids = tokenizer.encode("the cat sat", add_special_tokens=False).ids
    assert run.tokenizer.exchanged(run.tokenizer.encode("the cat sat")).tolist() == ids
    size = module.state_dict()["encoder.weight"].shape[0]
    check_logits(run, module, run.tokenizer.exchanged(range(size)).tolist())


@pytest.mark.parametrize("kind", ["word", "char"])
def test_words_and_characters_of_the_tokenizers_library(tmp_path: Path, kind: str) -> None:
    from seriatim.data.library_tokenizers import library_fields
    from seriatim.data.tokenizers import CharTokenizer, Spelling, WordTokenizer

    if kind == "word":
        tokenizer = WordTokenizer(["the", "cat"], Spelling(), lowercase=True)
    else:
        tokenizer = CharTokenizer("the c\n", Spelling(), lowercase=True)
    module = Module(nn.GRU, tokenizer.vocabulary_size)
    folder = write(tmp_path / "in", module, None)
    (folder / "tokenizer.json").write_text(json.dumps(library_fields(tokenizer)))
    run = import_run(str(folder), str(tmp_path / "run"))
    assert run.tokenizer.to_json() == tokenizer.to_json()
    assert seriatim.load(run.path).tokenizer.encode("The").tolist() == tokenizer.encode("The").tolist()
    check_logits(run, module, list(range(tokenizer.vocabulary_size)))


def state(**changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return a state dictionary with other tensors, or without some; ``__`` stands for a dot."""
    tensors = Module(nn.LSTM, len(WORDS)).state_dict()
    for name, value in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if value is not None:
            tensors[name.replace("__", ".")] = value
    return tensors


SAME = {"encoder__weight": None, "decoder__weight": None, "decoder__bias": None, "rnn__weight_ih_l0": torch.ones(28, 7)}
HERE: dict[str, list[str]] = {"vocab.json": WORDS}
BAD: list[tuple[dict[str, torch.Tensor], object, list[str], str]] = [
    (
        state(rnn__weight_ih_l0=None),
        HERE,
        [],
        "no tensor weight_ih_l0; give a file with an embedding, one torch.nn.RNN",
    ),
    (state(other__weight_ih_l0=torch.ones(28, 5)), HERE, [], "2 recurrent modules"),
    (state(rnn__weight_ih_l0_reverse=torch.ones(28, 5)), HERE, [], "rnn.weight_ih_l0_reverse reads backwards"),
    (state(rnn__weight_hh_l0=None), HERE, [], "rnn.weight_hh_l0 is missing or not a matrix"),
    (state(rnn__weight_hh_l0=torch.ones(28)), HERE, [], "rnn.weight_hh_l0 is missing or not a matrix"),
    (state(rnn__weight_ih_l0=torch.ones(14, 5)), HERE, [], "an RNN has as many rows as units, a GRU 3 times"),
    (state(rnn__bias_hh_l0=None), HERE, [], "the tensor rnn.bias_hh_l0 is missing"),
    (state(rnn__bias_hh_l0=torch.ones(27)), HERE, [], "rnn.bias_hh_l0 has the shape (27,) instead of (28,)"),
    (state(rnn__weight_ih_l2=torch.ones(28, 7)), HERE, [], "the tensor rnn.bias_hh_l1 is missing"),
    (state(rnn__weight_hr_l1=torch.ones(3, 7)), HERE, [], "the tensor rnn.bias_hh_l1 is missing"),
    (state(rnn__weight_ih_l0=torch.full((28, 5), torch.nan)), HERE, [], "rnn.weight_ih_l0 holds NaN or infinity"),
    (state(norm__weight=torch.ones(7)), HERE, [], "the tensor norm.weight (7,) has no place in such a model"),
    (state(fc__weight=torch.ones(3, 7)), HERE, [], "the tensor fc.weight (3, 7) has no place"),
    (state(decoder__weight=None, decoder__bias=None), HERE, [], "and one of them is missing"),
    (state(encoder__weight=None), HERE, [], "the embedding has 5 columns and the output layer 7, and one"),
    (state(encoder__weight=torch.ones(9, 5)), HERE, [], "has no place in such a model"),
    (state(**SAME, a__weight=torch.ones(8, 7), b__weight=torch.zeros(8, 7)), HERE, [], "a.weight and b.weight have"),
    (state(encoder__weight=torch.ones(8, 5, dtype=torch.int32)), HERE, [], "encoder.weight is torch.int32"),
    (state(), {}, [], "no vocabulary beside it; name the vocabulary with --vocabulary FILE"),
    (state(), {"vocab.json": [], "vocab.txt": []}, [], "vocab.json and vocab.txt are beside it"),
    (state(), {"vocab.json": WORDS[:-1]}, [], "vocab.json: 7 tokens, but the tables have 8 rows"),
    (state(), {"vocab.json": [*WORDS[:-1], "cat"]}, [], "vocab.json:8: 'cat' is a duplicate"),
    (state(), {"vocab.json": [*WORDS[:-1], 5]}, [], "vocab.json:8: 5 is not a text"),
    (state(), {"vocab.json": [*WORDS[:-1], ""]}, [], "vocab.json:8: an empty token is not a text"),
    (state(), {"vocab.json": [*WORDS[:-1], "\ud800"]}, [], "is not a text"),
    (state(), {"vocab.json": [*WORDS[:-1], "two words"]}, [], "vocab.json:8: 'two words' has white space"),
    (state(), {"vocab.json": [*WORDS[:-1], "</s>"]}, [], "'<eos>' and '</s>'"),
    (state(), {"vocab.json": [*WORDS[:-1], "[UNK]"]}, [], "'<unk>' and '[UNK]'"),
    (state(), {"vocab.json": [*"abcdefg", "hi"]}, [], "no token ends a line, such as <eos>; name it with --end"),
    (state(), {"vocab.json": "the"}, [], "not a list of tokens"),
    (state(), {"vocab.json": {"a": 0, "b": 2}}, [], "the ids must be 0 to 1, each of one token"),
    (state(), {"tokenizer.json": {"model": {}}}, [], "tokenizer.json: "),
    (state(), {"tokenizer.json": {"model": {}, "normalizer": [1]}}, [], "tokenizer.json: "),
    (state(), {"tokenizer.json": {"kind": "word"}}, [], "tokenizer.json: damaged, or not a tokenizer of Seriatim"),
    (state(), HERE, ["--end", "<EOS>"], "--end: '<EOS>' is not in"),
    (state(), HERE, ["--end", "<unk>"], "--end: '<unk>' is the unknown token of"),
    (state(), HERE, ["--unit", "word"], "the unit of the data is 'word'; set it with --unit to stream or line"),
    (state(), HERE, ["--vocabulary", "none.txt"], "none.txt: cannot be read"),
    (state(), HERE, ["--nonlinearity", "relu"], "is a layer lstm and not an RNN"),
    (Module(nn.RNN, len(WORDS)).state_dict(), HERE, ["--nonlinearity", "x"], "'x' is unknown; use tanh or relu"),
]


@pytest.mark.parametrize(("tensors", "files", "options", "message"), BAD, ids=[case[3][:40] for case in BAD])
def test_bad_input(tmp_path: Path, capsys, tensors, files: dict[str, object], options: list[str], message: str) -> None:
    folder, out = write(tmp_path / "in", tensors, None), tmp_path / "out"
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    assert main(["import", str(folder), *options, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_other_files(tmp_path: Path, capsys) -> None:
    folder, out = write(tmp_path / "in", state()), tmp_path / "out"
    weights = folder / "model.safetensors"
    content = weights.read_bytes()

    def refused(message: str, *sources: Path | str) -> None:
        assert main(["import", *map(str, sources), "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not out.exists()

    refused("no such file", tmp_path / "none.safetensors")
    weights.write_bytes(content[: len(content) // 2])
    refused("model.safetensors: damaged", folder)
    weights.unlink()
    for is_new in (True, False):
        torch.save(state(), folder / "model.pt", _use_new_zipfile_serialization=is_new)
        refused("pickled weights can run code and are not read; convert them", folder)
        refused("save_file(torch.load(F, weights_only=True), G)", folder / "model.pt")
    (folder / "model.pt").unlink()
    refused("no config.json", folder)
    weights.write_bytes(content)
    refused("only ARPA files can be mixed", weights, folder / "vocab.json")
    arpa = tmp_path / "a.arpa"
    arpa.write_text("\\data\\\nngram 1=1\n")
    refused("--end: cannot be used for", arpa, "--end", "x")
    run = import_run(str(folder), str(tmp_path / "run"))
    refused("--end: ", folder, "--end", "x", "--vocabulary", run.path / "tokenizer.json")
    refused("no config.json", run.path)


def test_added_tokens_change_no_probability(tmp_path: Path) -> None:
    tokens = ["the", "cat", "<eos>"]
    module = Module(nn.LSTM, len(tokens))
    run = import_run(str(write(tmp_path / "in", module, tokens)), str(tmp_path / "run"))
    with torch.no_grad():
        expected = torch.log_softmax(module(torch.tensor([[2, 0, 1]])), 2)
        found = torch.log_softmax(run.model(torch.tensor([[0, 2, 3]]))[0], 2)
    torch.testing.assert_close(found[..., [2, 3, 0]], expected, rtol=0, atol=1e-6)
    assert run.score(["the dog"])[0].log_probability > -60
    assert math.isfinite(run.score(["the dog"])[0].log_probability)
