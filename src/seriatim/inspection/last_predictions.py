"""What the model of each task predicts at the end of a text, as a distribution.

The next token for a language model, the last token for a masked one, the label for a classifier, the tag of the last
word for a tagger, and every token of a given answer for a translator.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data.tokenizers import END
from .leaves import leaves
from .memory import read_on
from .reading import Example, as_tensors, tagged_batch

if TYPE_CHECKING:
    from ..runs.run import Run


def last_predictions(run: "Run", model: Any, batch: Sequence[Example]) -> Tensor:
    """What a model predicts at the end of some examples.

    Args:
        run: of any task but ctc; its vocabulary is used.
        model: the run's model, or a copy of it.
        batch: examples of one length. Those of a language model are without the boundary in front.

    Returns:
        Probabilities ``(batch, predictions, outcomes)`` in float64, on the CPU. There is one prediction for each
        example, or for a translator one for each token of the answer.
    """
    of = {"lm": _next_token, "mlm": _masked, "classify": _label, "tag": _last_tag, "seq2seq": _answer}
    return of[run.config.task](run, model, batch).double().cpu()


def _next_token(run: "Run", model: Any, batch: Sequence[Example]) -> Tensor:
    tokens = torch.tensor([[END, *example.inputs] for example in batch], device=run.device)
    if leaves(model):
        logits = model.output(model.features(tokens, None, None)[0][:, -1])
    else:
        state = read_on(model, tokens[:, :-1], model.initial_state(len(batch)))
        logits = model.step(tokens[:, -1], state)[0]
    return torch.softmax(logits.double(), dim=-1).unsqueeze(1)


def _masked(run: "Run", model: Any, batch: Sequence[Example]) -> Tensor:
    tokens, _ = as_tensors(run, batch)
    tokens[:, -1] = model.mask
    rows = (torch.arange(len(batch), device=tokens.device) + 1) * tokens.shape[1] - 1
    return torch.softmax(model(tokens, rows).double(), dim=-1).unsqueeze(1)


def _label(run: "Run", model: Any, batch: Sequence[Example]) -> Tensor:
    shares: Tensor = model.probabilities(as_tensors(run, batch)[0])
    return shares.unsqueeze(1)


def _last_tag(run: "Run", model: Any, batch: Sequence[Example]) -> Tensor:
    tagged = tagged_batch(run, batch)
    shares: Tensor = model.marginals(model(tagged), tagged.lengths)
    return shares[:, -1:]


def _answer(run: "Run", model: Any, batch: Sequence[Example]) -> Tensor:
    source, targets = as_tensors(run, batch)
    inputs = torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1]], dim=1)
    hidden, _ = model.features(inputs, model.encode(source), None)
    return torch.softmax(model.output(hidden).double(), dim=-1)
