"""State dictionaries that plain PyTorch loads."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import seriatim
from seriatim.cli.main import main


class Plain(nn.Module):
    """A language model of torch.nn."""

    def __init__(self, kind: type[nn.RNNBase], tokens: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, 12)
        self.layer = kind(12, 12, layers, batch_first=True)
        self.output = nn.Linear(12, tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.layer(self.embedding(tokens))[0])


def trained(texts, out, task: str = "lm", **model: object) -> seriatim.Run:
    sizes = {"embedding_size": 12, "hidden_size": 12, **model}
    return seriatim.train(
        {"task": task, "data": {"train": texts["train"], "unit": "line"}, "model": sizes,
         "training": {"baseline": "none", "steps": 3, "batch_size": 8}, "out": str(out)}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "kind", "layers", "tied"),
    [("lstm", nn.LSTM, 2, True), ("gru", nn.GRU, 1, False), ("rnn", nn.RNN, 3, False)],
)
def test_a_module_of_torch_nn_gives_the_same_logits(texts, tmp_path, layer, kind, layers, tied) -> None:
    run = trained(texts, tmp_path / "run", layer=layer, num_layers=layers, tie_weights=tied)
    out = tmp_path / "state.safetensors"
    for _ in range(2):  # its own file is replaced
        assert main(["export", str(run.path), "--format", "torch", "--out", str(out)]) == 0
    plain = Plain(kind, run.tokenizer.vocabulary_size, layers)
    plain.load_state_dict(load_file(out))
    tokens = torch.randint(run.tokenizer.vocabulary_size, (3, 7))
    with torch.no_grad():
        torch.testing.assert_close(plain(tokens), run.model(tokens)[0])


def test_other_layers_keep_their_names(texts, tmp_path) -> None:
    run = trained(texts, tmp_path / "run", layer="lstm-peephole")
    out = tmp_path / "state.safetensors"
    assert main(["export", str(run.path), "--format", "torch", "--out", str(out)]) == 0
    state = load_file(out)
    assert state.keys() == dict(run.model.named_parameters()).keys()
    run.model.load_state_dict(state, strict=False)


@pytest.mark.filterwarnings("ignore:too few n-grams")
def test_what_has_no_state_is_refused(texts, tmp_path, capsys) -> None:
    grams = trained(texts, tmp_path / "grams", layer="ngram")
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    run = trained(texts, tmp_path / "run", layer="gru")
    for path, out, message in (
        (grams.path, tmp_path / "a", "has no parameters of a single network"),
        (run.path, other, "exists and is not a state dictionary that Seriatim exported"),
        (run.path, tmp_path / "no" / "a", "does not exist; create it"),
        (run.path, run.path / "model.safetensors", "lies inside the run"),
    ):
        assert main(["export", str(path), "--format", "torch", "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert other.read_text() == "mine"
