"""A bound on logits: the losses and gradients of the logits as they are returned, also where they are estimated."""

import pytest
import torch
from torch.nn import functional as F

import seriatim
from seriatim.models.cross_entropy import capped
from seriatim.models.language_model import LanguageModel
from seriatim.models.sampled_softmax import sampled_loss

CAP, VOCABULARY = 1.5, 11


def model(*, bias: bool) -> LanguageModel:
    torch.manual_seed(0)
    built = LanguageModel(seriatim.layer("gru", 5, 5), VOCABULARY, output_bias=bias).double()
    torch.nn.init.normal_(built.output.weight)
    built.output.cap = CAP
    return built


@pytest.mark.parametrize("bias", [True, False])
def test_losses_and_gradients_are_those_of_bounded_logits(bias: bool) -> None:
    built, (tokens, targets) = model(bias=bias), torch.randint(VOCABULARY, (2, 3, 7))
    logits, _ = built(tokens)
    assert 0.5 * CAP < logits.abs().max() < CAP
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    torch.testing.assert_close(built.token_losses(tokens, targets)[0].flatten(), expected)
    parameters = list(built.parameters())
    found, reference = (
        torch.autograd.grad(total, parameters) for total in (built.loss(tokens, targets)[0], expected.sum())
    )
    torch.testing.assert_close(found, reference, rtol=0, atol=1e-12)
    step, _ = built.step(tokens[:, 0], built.initial_state(3))
    torch.testing.assert_close(step, logits[:, 0])


class EveryToken:
    """Draws each token once."""

    def draw(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(VOCABULARY), torch.zeros(VOCABULARY, dtype=torch.float64)


def test_an_estimate_from_all_tokens_is_the_loss() -> None:
    torch.manual_seed(0)
    hidden, weight, bias = (3 * torch.randn(*size, dtype=torch.float64) for size in ((6, 5), (VOCABULARY, 5), (11,)))
    targets = torch.randint(VOCABULARY, (6,))
    expected = F.cross_entropy(capped(F.linear(hidden, weight, bias), CAP), targets, reduction="sum")
    found = sampled_loss(hidden, weight, bias, targets, EveryToken(), cap=CAP)
    torch.testing.assert_close(found, expected)
