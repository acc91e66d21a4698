"""Small recurrent language models of torch.nn with random weights."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file, save_model
from torch import nn

WORDS = ["the", "cat", "<unk>", "sat", "on", "<eos>", "mat", "."]
ROWS = [5, 2, 0, 1, 3, 4, 6, 7]
"""The ids there of the tokens here: <eos>, <unk>, and the others."""
EXAMPLE = ("encoder", "rnn", "decoder")
"""The names of PyTorch's example of a word language model."""


class Module(nn.Module):
    """A language model of torch.nn with random parameters."""

    def __init__(
        self,
        kind: type[nn.RNNBase],
        tokens: int,
        *,
        size: int = 5,
        hidden: int = 7,
        names: tuple[str, str, str] = EXAMPLE,
        tied: bool = False,
        output_bias: bool = True,
        **options: object,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.names = names
        layer = kind(size, hidden, **options)
        width = layer.proj_size or hidden
        parts = (nn.Embedding(tokens, size), layer, nn.Linear(width, tokens, bias=output_bias))
        for name, part in zip(names, parts, strict=True):
            self.add_module(name, part)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 0.5)
        if tied:
            parts[2].weight = parts[0].weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids (batch, time) to logits (batch, time, tokens)."""
        embedding, layer, output = (getattr(self, name) for name in self.names)
        return output(layer(embedding(tokens.t()))[0]).transpose(0, 1)


def write(folder: Path, state: nn.Module | Mapping[str, torch.Tensor], tokens: list[str] | None = WORDS) -> Path:
    """Write a folder with a state dictionary and a vocabulary."""
    folder.mkdir(exist_ok=True)
    if isinstance(state, nn.Module):
        save_model(state, str(folder / "model.safetensors"))
    else:
        save_file(dict(state), folder / "model.safetensors")
    if tokens is not None:
        (folder / "vocab.json").write_text(json.dumps(tokens))
    return folder
