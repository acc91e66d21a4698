"""The declared options: complete, and the one source of the documentation, of `seriatim layers` and of errors."""

import importlib.util
import json
from pathlib import Path

import pytest

import seriatim
from seriatim.config import Section
from seriatim.layers.option_types import task_options
from seriatim.layers.registry import BUILT_IN, check_options, options_of, resolve_options
from seriatim.tasks import FITTED, TASKS

from ..refusals import refused

ROOT = Path(__file__).parents[2]
EVERYTHING = {"block": True, "position": "learned", "num_experts": 2, "memory_size": 4}


def test_the_page_of_options_is_made_from_the_declarations() -> None:
    """If this fails: python scripts/write_options_page.py."""
    spec = importlib.util.spec_from_file_location("write_options_page", ROOT / "scripts" / "write_options_page.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (ROOT / "docs" / "options.md").read_text(encoding="utf-8") == script.page()


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_option_of_a_layer_says_its_type_and_what_it_means(name: str) -> None:
    for options in ({}, EVERYTHING):
        for option in options_of(name, options).values():
            facts = option.describe()
            assert len(option.help) > 5, option.name
            assert "\n" not in option.help
            assert facts["type"] != "any value", option.name
    told = seriatim.layers.describe(name)
    assert json.loads(json.dumps(told["option_details"])).keys() == told["options"].keys()
    for key, facts in told["option_details"].items():
        assert facts["default"] == told["options"][key]


@pytest.mark.parametrize("task", [*TASKS.values(), *FITTED.values()])
def test_every_option_of_a_task_says_its_type_and_what_it_means(task) -> None:
    for option in task_options(task.options).values():
        assert len(option.help) > 5, option.name
        assert option.describe()["type"] != "any value"


def test_ranges_and_choices_are_those_that_are_checked() -> None:
    zoneout = options_of("mgu")["zoneout"]
    score = options_of("attention")["score"].describe()
    heads = options_of("attention")["num_heads"].describe()
    assert heads["type"] == "a whole number or null"
    assert heads["range"] == "1 or more"
    assert zoneout.describe()["type"] == "a number"
    for choice in score["choices"]:
        check_options("attention", {"score": choice})
    with refused("unknown", "model.options.score"):
        check_options("attention", {"score": "dots"})
    with refused("range"):
        check_options("attention", {"num_heads": 0})
    with refused("unknown"):
        check_options("attention", {"windw": 3})


def test_a_layer_of_a_stack_has_options_of_its_own() -> None:
    options = {"num_heads": 2, "gated-deltanet.num_heads": 4, "transformer.block": False}
    first, second = seriatim.layer("gated-deltanet,transformer", 16, 16, **options).layers
    assert (first.layers[0].layer.num_heads, second.num_heads) == (4, 2)
    for wrong, kind in (({"gru.num_heads": 4}, "unknown"), ({"transformer.num_heads": 0}, "range")):
        with refused(kind, "num_heads" if kind == "range" else ""):
            seriatim.layer("gated-deltanet,transformer", 16, 16, **wrong)


def test_options_are_shared_out_between_a_task_and_its_layers() -> None:
    class Options(Section):
        rate: float = 0.5
        """A rate."""

    options, rest = resolve_options(Options, ["attention"], {"rate": 0.25, "window": 3})
    assert options.rate == 0.25
    assert rest == {"window": 3}
    with refused("unknown", "model.options.ratte"):
        resolve_options(Options, ["attention"], {"ratte": 0.25})
    with refused("range", "model.options.rate"):
        resolve_options(Options, ["attention"], {"rate": "x"})


class Own(seriatim.RecurrentCell):
    """A cell.

    Args:
        input_size: width of the inputs.
        hidden_size: width of the outputs.
        scale: the factor of
            the inputs
    """

    def __init__(
        self, input_size: int, hidden_size: int, *, scale: float = 1.0, bare=None, plain=2, quoted: "bool" = True
    ) -> None:
        super().__init__()


def test_a_cell_of_a_user_declares_its_options_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(seriatim.layers.REGISTRY, "own", Own)
    options = options_of("own")
    assert options["scale"].describe() == {
        "type": "a number",
        "default": 1.0,
        "range": None,
        "choices": None,
        "help": "The factor of the inputs.",
    }
    assert options["bare"].describe()["type"] == "any value"
    assert options["plain"].describe()["type"] == "a number", "as its default"
    assert options["quoted"].describe()["type"] == "true or false"
    assert options["zoneout"].help
