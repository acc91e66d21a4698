"""Options and inputs that cannot be are refused, and the message names the next step."""

from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import seriatim
from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.config import resolve
from seriatim.core.contract import RecurrentCell
from seriatim.data.vocabulary import Vocabulary, fit_tokenizer
from seriatim.tasks import model_size as memory
from seriatim.tasks import new_task
from seriatim.tasks.task import Task

from ..conftest import small_config
from ..refusals import refused


@pytest.mark.parametrize(
    ("name", "options", "kind", "place", "value"),
    [
        (
            "attention",
            {"num_heads": 5},
            "range",
            "model.options.num_heads",
            "",
        ),
        ("attention", {"num_heads": 4, "num_kv_heads": 3}, "range", "model.options.num_kv_heads", ""),
        ("attention", {"num_heads": 0}, "range", "model.options.num_heads", ""),
        ("attention", {"window": 0}, "range", "model.options.window", ""),
        ("self-attention", {"window": -1}, "range", "model.options.window", ""),
        ("window", {"context": 0}, "range", "model.options.context", ""),
        ("attention", {"position": "rotery"}, "unknown", "model.options.position", "rotary"),
        ("attention", {"score": "dto"}, "unknown", "model.options.score", "dot"),
        (
            "transformer",
            {"num_experts": 2, "experts_per_token": 3},
            "range",
            "model.options.experts_per_token",
            "",
        ),
        ("transformer", {"num_experts": 0}, "range", "model.options.num_experts", ""),
        (
            "transformer",
            {"num_experts": 2, "balance": -1.0},
            "range",
            "model.options.balance",
            "",
        ),
        ("transformer", {"feed_forward": "swigul"}, "unknown", "model.options.feed_forward", "swiglu"),
        ("transformer", {"feed_forward_size": 0}, "range", "model.options.feed_forward_size", ""),
        ("transformer", {"norm": "rsm"}, "unknown", "model.options.norm", "rms"),
        ("transformer", {"memory_size": 0}, "range", "model.options.memory_size", ""),
        ("transformer", {"position": "learned", "max_length": 0}, "range", "model.options.max_length", ""),
        ("transformer", {"max_length": 5}, "unknown", "", "max_length"),
        ("transformer", {"num_heads": "two"}, "range", "model.options.num_heads", ""),
        ("attention", {"norm": "rms"}, "unknown", "", "norm"),
        ("convolution", {"kernel_size": 0}, "range", "model.options.kernel_size", ""),
        (
            "lstm",
            {"forget_bias": 1e308},
            "range",
            "model.options.forget_bias",
            "",
        ),
        ("lstm", {"zoneout": 0.9999999}, "range", "model.options.zoneout", ""),
        (
            "lstm-peephole",
            {"weight_dropout": 1.0},
            "range",
            "model.options.weight_dropout",
            "",
        ),
        ("lstm", {"projection_size": 12}, "range", "model.options.projection_size", ""),
        ("lstm-peephole", {"peephole": "ful"}, "unknown", "model.options.peephole", "full"),
        ("s4", {"dt_min": 0.5}, "range", "model.options.dt_min", ""),
        ("s4", {"state_size": 2000}, "range", "model.options.state_size", ""),
        ("s4", {"state_size": 3}, "range", "model.options.state_size", ""),
        ("s4d", {"dt_max": 1e9}, "range", "model.options.dt_max", ""),
        ("mamba", {"dt_min": 0.0}, "range", "model.options.dt_min", ""),
        ("mamba", {"expansion": 0}, "range", "model.options.expansion", ""),
        ("convolution", {"depth": 99}, "range", "model.options.depth", ""),
        (
            "transformer",
            {"num_experts": 2, "balance": 1e9},
            "range",
            "model.options.balance",
            "",
        ),
        ("lstm,window", {"causal": True}, "unknown", "", "causal"),
        ("lstm,windwo", {}, "unknown", "", "window"),
    ],
)
def test_bad_options_are_named(name: str, options: dict, kind: str, place: str, value: str) -> None:
    with refused(kind, place, value):
        seriatim.layer(name, 12, 12, **options)


def test_what_cannot_be_is_refused() -> None:
    x = torch.randn(2, 6, 12)
    encoder = seriatim.layer("transformer", 12, 12, causal=False)
    assert not encoder.causal
    with refused("unsupported"):
        encoder.step(x[:, 0], encoder.initial_state(2))
    decoder = seriatim.layer("transformer", 12, 12, memory_size=7)
    with refused("required"):
        decoder(x)
    with refused("mismatch", "memory"):
        decoder.initial_state(2, memory=x)
    with refused("range", "lengths"):
        decoder.initial_state(2, memory=torch.randn(2, 6, 7), memory_lengths=torch.tensor([7, 1]))
    learned = seriatim.layer("transformer", 12, 12, position="learned", max_length=5)
    with refused("size", value="6"):
        learned(x)
    assert learned(x, lengths=torch.tensor([5, 2]))[0].shape == (2, 6, 12)


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ({"layer": "convolution", "options": {"kernel_size": 100_000}}, "options.kernel_size"),
        ({"layer": "mamba", "options": {"kernel_size": 20_000}}, "options.kernel_size"),
        ({"layer": "mamba", "options": {"state_size": 50_000}}, "options.state_size"),
        ({"layer": "window", "options": {"context": 50_000}}, "options.context"),
        ({"layer": "lstm", "hidden_size": 50_000}, "hidden_size"),
        ({"layer": "gru", "num_layers": 900, "hidden_size": 200}, "num_layers"),
        ({"layer": "transformer", "embedding_size": 10_000_000}, "embedding_size"),
    ],
)
def test_a_model_larger_than_memory_is_refused_by_its_field(
    texts, tmp_path: Path, model, field: str, monkeypatch
) -> None:
    """Before it is built: a machine that runs out of memory kills the process."""
    monkeypatch.setattr(memory, "machine_memory", lambda: 400_000_000)
    job = small_config(texts, tmp_path / "run", training={"steps": 1})
    with refused("size", f"model.{field}"):
        seriatim.train({**job, "model": {"embedding_size": 16, "hidden_size": 64, **model}})
    assert not (tmp_path / "run").exists()


def test_a_batch_whose_states_do_not_fit_is_refused_by_its_field(texts, tmp_path: Path) -> None:
    job = small_config(texts, tmp_path / "run", training={"batch_size": 2 * 10**9, "steps": 1})
    job["data"]["unit"] = "line"  # a stream is not cut into more rows than it has tokens
    with refused("size", "training.batch_size"):
        seriatim.train(job)
    assert not (tmp_path / "run").exists()


class Allocations(TorchDispatchMode):
    """Records the largest tensor that is computed outside of the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else [result]:
            if isinstance(part, torch.Tensor) and part.device.type != "meta":
                self.largest = max(self.largest, part.numel())
        return result


class Inspecting(RecurrentCell):
    """A cell that looks at a value while it is built, which the meta device does not have."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.weight = torch.nn.Parameter(torch.randn(hidden_size, input_size))
        self.largest = self.weight.max().item()

    def initial_state(self, batch_size: int) -> torch.Tensor:
        return self.zeros(batch_size, self.output_size)

    def forward(self, inputs, state):
        state = torch.tanh(inputs @ self.weight.T + state)
        return state, state


def task_of(**model) -> Task:
    return new_task(resolve({"task": "lm", "model": model}))


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary({"tokenizer": fit_tokenizer(TokenizerConfig(kind="char"), ["ab"])})


@pytest.mark.parametrize("name", [*seriatim.layers.names(), "inspecting"])
def test_parameters_are_counted_without_random_numbers(name: str, vocabulary: Vocabulary, monkeypatch) -> None:
    """Else the same seed would give other first values."""
    monkeypatch.setitem(seriatim.layers.REGISTRY, "inspecting", Inspecting)
    task = task_of(layer=name, num_layers=2, hidden_size=8, embedding_size=8)
    before = torch.get_rng_state()
    found = memory.count_parameters(task.builder, vocabulary)
    assert torch.equal(torch.get_rng_state(), before)
    assert found == sum(parameter.numel() for parameter in task.builder.build(vocabulary).parameters())


@pytest.mark.parametrize("name", seriatim.layers.names())
def test_a_large_model_is_checked_without_building_it(name: str, vocabulary: Vocabulary, monkeypatch) -> None:
    task = task_of(layer=name, num_layers=1000, hidden_size=2000, embedding_size=2000)
    monkeypatch.setattr(memory, "machine_memory", lambda: 1 << 60)
    with Allocations() as allocations:
        memory.check_memory(task.builder, vocabulary)
    assert allocations.largest < 10_000
    monkeypatch.setattr(memory, "machine_memory", lambda: 1_000_000)
    with refused("size", "model.num_layers"):
        memory.check_memory(task.builder, vocabulary)


def test_the_size_of_a_deep_model_is_that_of_its_layers(vocabulary: Vocabulary, monkeypatch) -> None:
    task = task_of(layer="mamba,transformer", num_layers=9, hidden_size=8, embedding_size=8)
    extrapolated = memory._size(task.builder, vocabulary)
    monkeypatch.setattr(memory, "MAX_COUNTED_LAYERS", 9)
    assert memory._size(task.builder, vocabulary) == extrapolated
    assert extrapolated.parameters == memory.count_parameters(task.builder, vocabulary)
