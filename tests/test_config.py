"""What a configuration object passes on, and how its problems are named."""

import pytest
from pydantic import ValidationError

from seriatim.config import Config, Count, Model, Section, SettledError, explain, resolve, resolve_leniently

from .refusals import refused


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


@pytest.mark.parametrize(("value", "shown"), [(1.5, "1.5"), (-1, "-1"), ("foo", "'foo'"), ([0.5], "a list")])
def test_a_field_of_several_types_is_one_problem_without_names_of_types(value: object, shown: str) -> None:
    config = {"training": {"baseline_weight": value, "steps": 0}}
    _, problems = resolve_leniently(config)
    assert len(problems) == 2
    assert all("constrained" not in problem and "literal" not in problem for problem in problems)
    name, reason = f"training.baseline_weight: {shown} does not fit; input should be ", ", or 'auto'"
    assert any(problem.startswith(name) and problem.endswith(reason) for problem in problems)
    with refused("range", "training.steps"):
        resolve(config)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"sizes": ["x"]}, "sizes.0"),
        ({"sizes": "x"}, "sizes"),
        ({"counts": [1, 0]}, "counts.1"),
        ({"by_name": {"a+b": {"size": "x"}}}, "by_name.a+b.size"),
        ({"list[int]": 1}, "unknown key list[int]"),
    ],
)
def test_a_problem_names_the_field_and_nothing_else(fields: dict, name: str) -> None:
    class Inner(Section):
        size: int = 1

    class Outer(Section):
        sizes: int | list[int] = 1
        counts: list[Count] = []  # noqa: RUF012
        by_name: dict[str, Inner] = {}  # noqa: RUF012

    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(fields)
    assert explain(caught.value, fields).split(": ")[0].split(";")[0] == name


def test_a_misspelt_key_is_unknown_and_is_the_place() -> None:
    with refused("unknown", "training.stesp", "training.steps"):
        resolve({"training": {"stesp": 1}})


@pytest.mark.parametrize(
    ("values", "kind", "place"),
    [
        ({"training.stps": 7}, "unknown", "training.stps"),
        ({"nope.x": 1}, "unknown", "nope.x"),
        ({"training.steps": -1}, "range", "training.steps"),
        ({"task": 3}, "range", "task"),
    ],
)
def test_a_copy_with_other_values_refuses_what_does_not_fit(values: dict, kind: str, place: str) -> None:
    with refused(kind, place):
        Config().settled().replaced(values)


def test_a_list_of_settled_options_cannot_change() -> None:
    config = Config(model=Model(options={"word_features": ["shape"]})).settled()
    features = config.model.options["word_features"]
    with pytest.raises(SettledError):
        config.model.options["word_features"] *= 2
    assert features == ["shape"]


@pytest.mark.parametrize("text", ["1_0.5", "\u0661", " ", "nan", "inf", "0x1"])
def test_a_text_that_is_no_ascii_number_is_no_number(text: str) -> None:
    assert resolve({"training": {"learning_rate": "0.1"}}).training.learning_rate == 0.1
    with refused("range", "training.learning_rate"):
        resolve({"training": {"learning_rate": text}})
