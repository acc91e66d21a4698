"""Regularization of language models: dropout of words and penalties on activations."""

import pytest
import torch

import seriatim
from seriatim.core.auxiliary_losses import collect
from seriatim.models import LanguageModel
from seriatim.models.language_model import Regularization

from ..conftest import small_config
from ..refusals import refused

ALPHA, BETA = 2.0, 3.0
PENALTIES = Regularization(activation_regularization=ALPHA, temporal_activation_regularization=BETA)


def test_the_penalties_are_those_of_their_definition_and_ignore_padding() -> None:
    lengths = torch.tensor([4, 0, 2])
    outputs, dropped = torch.randn(3, 4, 5), torch.randn(3, 4, 5)
    activations = torch.cat([dropped[0], dropped[2, :2]])
    differences = torch.cat([outputs[0, 1:] - outputs[0, :3], outputs[2, 1:2] - outputs[2, :1]])
    outputs[1:, 2:], dropped[1:, 2:], outputs[1], dropped[1] = (torch.nan,) * 4
    with collect() as contributions:
        PENALTIES.penalize(outputs, dropped, lengths)
    torch.testing.assert_close(contributions[0], ALPHA * activations.square().mean())
    torch.testing.assert_close(contributions[1], BETA * differences.square().mean())
    with collect() as contributions:
        PENALTIES.penalize(outputs[:1], dropped[:1], None)
    torch.testing.assert_close(contributions[0], ALPHA * dropped[0].square().mean())


def test_a_dropped_word_is_dropped_wherever_it_occurs() -> None:
    tokens = torch.randint(6, (4, 50))
    embedded = Regularization(embedding_dropout=0.5).drop_words(torch.ones(4, 50, 3), tokens, 6)
    by_word = [embedded[tokens == word].unique() for word in range(6)]
    assert all(len(values) == 1 for values in by_word)
    assert {float(values[0]) for values in by_word} <= {0.0, 2.0}


def test_only_training_is_regularized() -> None:
    model = LanguageModel(seriatim.layer("lstm", 8, 8, weight_dropout=0.5), 11)
    tokens, targets = torch.randint(11, (2, 7)), torch.randint(11, (2, 7))
    model.eval()
    plain, _ = model.loss(tokens, targets)
    model.regularization = Regularization(
        embedding_dropout=0.5, activation_regularization=ALPHA, temporal_activation_regularization=BETA
    )
    with collect() as contributions:
        torch.testing.assert_close(model.loss(tokens, targets)[0], plain, rtol=0, atol=0)
        assert not contributions
        model.train()
        assert not torch.equal(model.loss(tokens, targets)[0], plain)
        assert len(contributions) == 2


def test_the_loss_that_is_reported_has_no_penalties(texts, tmp_path) -> None:
    options = {"activation_regularization": ALPHA, "temporal_activation_regularization": BETA}
    run = seriatim.train(small_config(texts, tmp_path / "run", model={"options": options}))
    assert run.evaluate(texts["valid"])["loss"] == pytest.approx(run.summary["best_valid"], abs=1e-4)
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert any('"auxiliary"' in line for line in lines)


def test_penalties_need_whole_windows(texts, tmp_path) -> None:
    options = {"activation_regularization": ALPHA, "scheduled_sampling": 0.5}
    with refused("range", "model.options.activation_regularization"):
        seriatim.train(small_config(texts, tmp_path / "run", model={"options": options}))
