"""The layers that the laws are checked on, and inputs and states for them."""

import torch
from torch import Tensor

import seriatim
from seriatim.core.contract import MemoryLayer, SequenceLayer
from seriatim.core.state import State, join_states, map_state, select_state, state_to_dict

INPUT_SIZE, HIDDEN_SIZE, MEMORY_SIZE, BATCH = 5, 6, 7, 4

VARIANTS = {
    "rnn-relu": ("rnn", {"activation": "relu"}),
    "rnn-softsign": ("rnn", {"activation": "softsign"}),
    "lstm-without-bias": ("lstm", {"bias": False}),
    "stack": ("lstm", {"num_layers": 3}),
    "residual-stack": ("gru", {"num_layers": 2, "residual": True, "dropout": 0.5}),
    "variational-stack": ("rnn", {"num_layers": 2, "variational_dropout": True, "dropout": 0.5}),
    "lstm-projected": ("lstm", {"projection_size": 3}),
    "lstm-projected-zoneout": ("lstm", {"projection_size": 3, "zoneout": 0.3, "bias": False}),
    "projected-stack": ("lstm", {"projection_size": 3, "num_layers": 2}),
    "gru-zoneout": ("gru", {"zoneout": 0.3, "weight_dropout": 0.5}),
    "rnn-zoneout": ("rnn", {"zoneout": 0.3, "activation": "softsign"}),
    "cell-zoneout": ("lstm-peephole", {"zoneout": 0.3, "weight_dropout": 0.5}),
    "window-of-one": ("window", {"context": 1}),
    "convolution-wide": ("convolution", {"kernel_size": 4, "depth": 2}),
    "rg-lru-wide": ("rg-lru", {"inner_size": 8, "num_heads": 2, "kernel_size": 1, "bias": False}),
    "short-convolution-with-bias": ("short-convolution", {"kernel_size": 4, "bias": True}),
    "attention-window": ("attention", {"window": 4}),
    "attention-window-of-one": ("attention", {"window": 1}),
    "attention-alibi": ("attention", {"position": "alibi", "num_heads": 3}),
    "attention-alibi-window": ("attention", {"position": "alibi", "num_heads": 2, "window": 9}),
    "attention-grouped": ("attention", {"num_heads": 6, "num_kv_heads": 2}),
    "attention-bilinear": ("attention", {"score": "bilinear", "num_heads": 6, "num_kv_heads": 3}),
    "attention-additive": ("attention", {"score": "additive", "num_heads": 2, "position": "none"}),
    "attention-sinks": ("attention", {"sinks": True, "num_heads": 3, "window": 4}),
    "attention-forgetting": ("attention", {"forget_gate": True, "num_heads": 6, "num_kv_heads": 2, "position": "none"}),
    "attention-forgetting-window": ("attention", {"forget_gate": True, "sinks": True, "num_heads": 3, "window": 5}),
    "attention-gated": ("attention", {"output_gate": True, "num_heads": 3, "bias": True}),
    "attention-partly-rotated": ("attention", {"num_heads": 1, "rotary_size": 4}),
    "latent-attention-window": ("latent-attention", {"window": 4, "num_heads": 3, "query_latent_size": 5}),
    "self-attention-window": ("self-attention", {"window": 5, "scaled": True}),
    "self-attention-rotary": ("self-attention", {"position": "rotary", "window": 5}),
    "self-attention-alibi": ("self-attention", {"position": "alibi"}),
    "self-attention-sinusoidal": ("self-attention", {"position": "sinusoidal"}),
    "peephole-full": ("lstm-peephole", {"peephole": "full", "zoneout": 0.3}),
    "mamba-without-bias": ("mamba", {"bias": False}),
    "linear-attention-heads": ("linear-attention", {"num_heads": 3, "bias": True}),
    "retnet-heads": ("retnet", {"num_heads": 2, "expansion": 1, "bias": True}),
    "mamba2-groups": ("mamba2", {"num_heads": 4, "num_groups": 2, "state_size": 5, "kernel_size": 1, "bias": False}),
    "gated-deltanet-heads": ("gated-deltanet", {"num_heads": 2, "num_key_heads": 1, "head_size": 4, "expansion": 2}),
    "kda-negative": ("kda", {"num_heads": 2, "negative_eigenvalues": True}),
    "deltaproduct-of-three": ("deltaproduct", {"num_heads": 2, "num_products": 3, "negative_eigenvalues": True}),
    "slstm-heads": ("slstm", {"num_heads": 3, "kernel_size": 1, "bias": False}),
    "m2rnn-heads": ("m2rnn", {"num_heads": 3, "head_size": 4}),
    "mlstm-heads": ("mlstm", {"num_heads": 3, "kernel_size": 1, "bias": False}),
    "rwkv7-heads": ("rwkv7", {"num_heads": 2, "rank": 3, "bias": False}),
    "transformer-sinusoidal": ("transformer", {"position": "sinusoidal", "norm": "layer", "norm_first": False}),
    "transformer-learned": ("transformer", {"position": "learned", "max_length": 80, "bias": True}),
    "transformer-position-norm": ("transformer", {"position": "learned", "position_norm": True, "norm_first": False}),
    "transformer-no-final-norm": ("transformer", {"final_norm": False, "num_layers": 2}),
    "transformer-experts": ("transformer", {"num_experts": 4, "feed_forward": "gelu"}),
    "transformer-shared-expert": ("transformer", {"num_experts": 3, "shared_expert_size": 5}),
    "transformer-memory": ("transformer", {"memory_size": MEMORY_SIZE, "num_layers": 2}),
    "lstm-memory": ("lstm", {"block": True, "memory_size": MEMORY_SIZE, "norm": "layer", "norm_first": False}),
    "mixed": ("gru, transformer,mamba,window", {"num_layers": 2, "window": 3, "context": 2}),
    **{f"block-{name}": (name, {"block": True}) for name in seriatim.layers.names()},
    **{f"bare-{name}": (name, {"block": False}) for name in seriatim.layers.names()},
}
CAUSAL = [*seriatim.layers.names(), *VARIANTS, "cell"]
DEAF = ("prior", "bare-prior")  # no output depends on any input
WHOLE = {
    **{f"bidirectional-{name}": (name, {"bidirectional": True, "num_layers": 2}) for name in seriatim.layers.names()},
    "encoder": ("transformer", {"causal": False, "num_layers": 2}),
    "encoder-like-bert": (
        "transformer",
        {"causal": False, "position": "learned", "position_norm": True, "norm": "layer", "norm_first": False},
    ),
    "encoder-window": ("transformer", {"causal": False, "window": 3, "position": "alibi", "num_heads": 3}),
    "bidirectional-memory": ("transformer", {"bidirectional": True, "memory_size": MEMORY_SIZE}),
}


class Decay(seriatim.RecurrentCell):
    """A cell of a user's own, with a state of two parts."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.w = torch.nn.Linear(input_size, output_size)
        self.u = torch.nn.Linear(output_size, output_size)

    def initial_state(self, batch_size: int) -> State:
        return (torch.zeros(batch_size, self.output_size).to(self.w.weight),) * 2

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        fast, slow = state
        fast = torch.tanh(self.w(inputs) + self.u(slow))
        slow = 0.9 * slow + 0.1 * fast
        return fast * slow, (fast, slow)


def build(name: str) -> SequenceLayer:
    torch.manual_seed(1)
    if name == "cell":
        made: SequenceLayer = seriatim.Recurrent(Decay(INPUT_SIZE, HIDDEN_SIZE))
    else:
        kind, options = {**VARIANTS, **WHOLE}.get(name, (name, {}))
        made = seriatim.layer(kind, INPUT_SIZE, HIDDEN_SIZE, **options)
    for parameter in made.parameters():
        if parameter.dim() > 1 and not parameter.any():  # which would hide what it is multiplied by
            torch.nn.init.normal_(parameter, std=0.3)
    return made.double().eval()


def example(layer: SequenceLayer, time: int) -> tuple[Tensor, State]:
    """Inputs and a state that is not the initial one, of rows that have read different numbers of inputs."""
    torch.manual_seed(2)
    inputs = torch.randn(BATCH, time, INPUT_SIZE, dtype=torch.float64)
    before = torch.randn(BATCH, 6, INPUT_SIZE, dtype=torch.float64)
    with torch.no_grad():
        _, state = layer(before[:, :3], initial(layer))
        _, state = layer(before[:, 3:], state, lengths=torch.tensor([3, 0, 1, 2]))
    return inputs, state


def initial(layer: SequenceLayer, batch_size: int = BATCH) -> State:
    if not isinstance(layer, MemoryLayer):
        return layer.initial_state(batch_size)
    memory = torch.randn(BATCH, 9, MEMORY_SIZE, dtype=layer.zeros(0).dtype)
    return layer.initial_state(batch_size, memory, torch.tensor([9, 0, 4, 1]))


def leaves(state: State) -> list[Tensor]:
    return list(state_to_dict(state).values())


def level(first: State, second: State) -> tuple[State, State]:
    """The same states in leaves of one size, whatever the longest row of their batch has kept."""
    rows = next((len(leaf) for leaf in leaves(first)), 0)
    joined = join_states([first, second])
    return select_state(joined, torch.arange(rows)), select_state(joined, torch.arange(rows) + rows)


def assert_states_close(first: State, second: State, **tolerance: float) -> None:
    """Rows that keep the same of the past."""
    ours, theirs = level(first, second)
    map_state(lambda a, b: torch.testing.assert_close(a, b, **tolerance) or a, ours, theirs)
