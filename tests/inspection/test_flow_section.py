"""What the section on gradient flow says of the layers that were measured."""

from collections.abc import Iterator

import pytest

from seriatim.inspection.gradient_flow import flow_facts, flow_section, gradient_flow
from seriatim.inspection.inspected_run import prepare
from seriatim.pages.chart import Chart, Switch
from seriatim.recurrence import uncompiled

from .inspected import SENTENCE, TEXTS


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    """Disable compiled code, which these tests do not need and which takes seconds to build."""
    with uncompiled():
        yield


@pytest.mark.parametrize(
    ("name", "has_steps", "is_whole", "has_inputs"),
    [
        ("lm", True, False, False),
        ("classify", True, True, False),
        ("tag", True, False, False),
        ("mlm", False, False, True),
        ("seq2seq-heads", True, False, True),
    ],
)
def test_what_is_said_is_that_of_the_layers(
    inspected, name: str, has_steps: bool, is_whole: bool, has_inputs: bool
) -> None:
    subject = prepare(inspected[name], TEXTS.get(name, SENTENCE), beam=1, data=None, file_format=None)
    result = gradient_flow(subject.run, [subject.item])
    facts = flow_facts(subject, result, "the text")
    assert (facts.has_steps, facts.is_whole, facts.has_inputs) == (has_steps, is_whole, has_inputs)
    *_, figure, _ = flow_section(subject).blocks
    assert isinstance(figure, Chart if len(result.layers) == 1 else Switch)
