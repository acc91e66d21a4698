"""A sparse mixture of experts: a router sends each input to the few networks with the highest scores.

N. Shazeer et al., "Outrageously large neural networks: the sparsely-gated mixture-of-experts layer", ICLR 2017; the
balance of W. Fedus, B. Zoph and N. Shazeer, "Switch transformers", JMLR 2022; the gate of A. Jiang et al., "Mixtral of
experts", 2024.

    p = softmax(R x);  K = the k largest of p;  y = Σ_{e ∈ K} g_e Expert_e(x) + σ(wᵀx) Shared(x)
    g_e = p_e / Σ_K p; or p_e where k = 1, so that the router also learns from a single expert
    balance loss = E Σ_e f_e P_e,  f_e the fraction of inputs that chose e, P_e the mean of p_e

R ``router.weight`` · E the number of experts · Shared ``shared``, a network for every input, where there is one (D. Dai
et al., "DeepSeekMoE", 2024; the gate is that of Qwen2-MoE) · w ``shared_gate.weight``. Simplified: the number of inputs
of an expert has no limit, so that no input is dropped.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.auxiliary_losses import contribute
from ..core.errors import RangeError
from ..core.exporting import exporting
from .scan import at_least_float32


class Routing(NamedTuple):
    """The choice of experts: gates and experts ``(inputs, chosen)``, and probabilities ``(inputs, experts)``."""

    gates: Tensor
    experts: Tensor
    probabilities: Tensor


class Router(nn.Module):
    """Chooses ``per_token`` of ``num_experts`` for every input ``(inputs, size)``."""

    def __init__(self, size: int, num_experts: int, *, per_token: int) -> None:
        super().__init__()
        self.weight = nn.Linear(size, num_experts, bias=False).weight
        self.per_token = per_token

    def forward(self, inputs: Tensor) -> Routing:
        """Route inputs ``(inputs, size)``; the gates of several chosen experts sum to one."""
        probabilities = torch.softmax(at_least_float32(F.linear(inputs, self.weight)), -1)
        gates, experts = probabilities.topk(self.per_token, dim=-1)
        if self.per_token > 1:
            gates = gates / gates.sum(-1, keepdim=True)
        return Routing(gates, experts, probabilities)


class Experts(nn.Module):
    """A mixture: ``(..., size)`` to the same shape.

    Args:
        size: width of an input.
        experts: the networks.
        per_token: the number of networks that process each input.
        balance: weight of the load-balancing loss, which is added to the loss in training.
        shared: a network that processes every input, or None.
    """

    def __init__(
        self,
        size: int,
        experts: Sequence[nn.Module],
        *,
        per_token: int = 2,
        balance: float = 0.01,
        shared: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= per_token <= len(experts):
            raise RangeError(f"model.options.experts_per_token: {per_token} is out of range; give 1 to {len(experts)}")
        self.router = Router(size, len(experts), per_token=per_token)
        self.experts = nn.ModuleList(experts)
        self.shared, self.shared_gate = shared, None if shared is None else nn.Linear(size, 1, bias=False)
        self.balance = balance

    def forward(self, inputs: Tensor) -> Tensor:
        """Run every expert once, over the inputs sent to it."""
        rows = inputs.flatten(0, -2)  # (R, size)
        routing = self.router(rows)
        if self.training and self.balance:
            contribute(self.balance * balance_loss(routing))
        outputs = torch.zeros_like(rows)
        if self.shared is not None and self.shared_gate is not None:
            outputs = (torch.sigmoid(self.shared_gate(rows)) * self.shared(rows)).to(rows.dtype)
        if exporting():  # a graph of fixed shapes: every expert computes all inputs, those of others with a gate of 0
            for e, expert in enumerate(self.experts):
                gate = (routing.gates * (routing.experts == e)).sum(1, keepdim=True)
                outputs = outputs + (gate * expert(rows)).to(outputs.dtype)
            return outputs.view(inputs.shape)

        # One expert after another, because their shares of the inputs differ: a grouped product would need an equal
        # number of rows for each, that is padding, and experts need not be networks of one shape.
        for e, expert in enumerate(self.experts):
            row, choice = torch.where(routing.experts == e)
            if len(row):
                gate = routing.gates[row, choice].unsqueeze(1)
                outputs = outputs.index_add(0, row, (gate * expert(rows[row])).to(outputs.dtype))
        return outputs.view(inputs.shape)


def balance_loss(routing: Routing) -> Tensor:
    """Return E Σ_e f_e P_e of one batch; it is k, the number of chosen experts, where all have the same load."""
    if not len(routing.experts):
        return routing.probabilities.sum()
    num_experts = routing.probabilities.shape[1]
    fractions = counts(routing) / len(routing.experts)
    return num_experts * (fractions * routing.probabilities.mean(0)).sum()


def counts(routing: Routing) -> Tensor:
    """Return the number of inputs of each expert ``(experts,)``."""
    return torch.bincount(routing.experts.flatten(), minlength=routing.probabilities.shape[1])


@contextmanager
def count_experts(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Count, inside the ``with`` block, the inputs of each expert ``(experts,)``, by the names of the mixtures."""
    totals: dict[str, Tensor] = {}
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, Experts):
                totals[name] = torch.zeros(len(module.experts), dtype=torch.long)

                def add(_router: nn.Module, _inputs: object, routing: Routing, name: str = name) -> None:
                    totals[name] += counts(routing).cpu()

                hooks.enter_context(module.router.register_forward_hook(add))
        yield totals
