"""All messages of errors stand in one file, `tests/messages.txt`, which is reviewed as a whole."""

import functools
import importlib.util
from pathlib import Path

from seriatim.core import errors
from seriatim.core.errors import InputError

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("list_messages", HERE.parent / "scripts" / "list_messages.py")
assert spec is not None
assert spec.loader is not None
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
messages = functools.cache(lambda: list(script.messages()))


def test_the_reviewed_messages_are_those_of_the_source() -> None:
    assert (HERE / "messages.txt").read_text(encoding="utf-8") == script.listed(
        messages()
    )  # scripts/list_messages.py makes it


def test_every_message_has_a_kind() -> None:
    assert [(file, text) for file, kind, text in messages() if kind == "any"] == []


def test_an_error_knows_its_place_and_its_remedy() -> None:
    error = errors.MalformedError("data.tsv:3: two fields, and not three; add one")
    assert (error.kind, error.place, error.remedy) == ("malformed", "data.tsv:3", "add one")
    assert (InputError("nothing: to; do").place, InputError("nothing; do: this").place) == ("nothing", "")


def test_another_process_reports_an_error_of_the_same_kind() -> None:
    for kind in InputError.__subclasses__():
        if kind.__init__ is InputError.__init__:
            error = errors.input_error("a.txt: no; do", kind.kind)
            assert type(error.with_message("b.txt: no; do")) is type(error)
            assert error.kind == kind.kind


PUT_TOGETHER = (
    "{section}{'.' * bool(section)}{explain(error, {key: value})}",
    "model.options.{explain(error, given)}",
    "{self.name}:{self.number}: {reason}",
)
"""Messages whose remedy is in a value; another expression than a text begins with <."""


def test_every_message_has_a_remedy() -> None:
    # A section of a page shows why it is left out, as its own sentence.
    texts = [text for file, _, text in messages() if not (text.startswith("<") or file.startswith("inspection/"))]
    assert {text for text in texts if "; " not in text} == set(PUT_TOGETHER)
