"""What a configuration object passes on: the fields that were given or changed, and no others."""

import pytest

from seriatim.config import Config, Model, resolve


def test_fields_that_were_changed_in_place_are_passed_on() -> None:
    config = Config()
    config.data.train = "text.txt"
    config.training.steps = 3
    config.model.options["word_dropout"] = 0.1
    resolved = resolve(config)
    assert (resolved.data.train, resolved.training.steps) == ("text.txt", 3)
    assert resolved.model.options == {"word_dropout": 0.1}
    assert resolved == config
    resolved.model.options["word_dropout"] = 0.2
    assert config.model.options == {"word_dropout": 0.1}


@pytest.mark.parametrize("given", [{}, {"layer": "lstm"}, {"hidden_size": 256, "options": {}}])
def test_a_field_counts_as_given_if_it_was_given(given: dict) -> None:
    config = Config(model=Model(**given))
    assert resolve(config).model.model_fields_set == given.keys()
    assert resolve(resolve(config)) == config
    assert "layer" in resolve(config, {"model.layer": "lstm"}).model.model_fields_set
