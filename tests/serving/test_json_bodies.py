"""Bodies of requests: JSON with one meaning, validated strictly, with messages that say what to do."""

import asyncio
import json
import time
import tracemalloc
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.requests import ClientDisconnect, Request

from seriatim.core.errors import InputError
from seriatim.serving.json_bodies import (
    HttpError,
    as_http_error,
    error_body,
    parse_json,
    read_body,
    read_request,
    validate,
)
from seriatim.serving.schemas import FailFast

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)


def attempt(data: bytes) -> tuple[dict[str, object] | None, HttpError | None]:
    try:
        return parse_json(data), None
    except HttpError as error:
        return None, error


@given(st.dictionaries(TEXTS, VALUES), st.booleans(), st.sampled_from([None, 2]))
@settings(max_examples=30, deadline=None)
def test_valid_documents_are_read_as_json_reads_them(
    value: dict[str, object], ascii_: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_, indent=indent)
    assert parse_json(text.encode()) == json.loads(text) == value


@given(st.binary(max_size=50) | st.text(alphabet='{}[]":,0123456789.eE+-\\u truefalsn').map(str.encode))
@settings(deadline=None)
def test_anything_else_is_refused(data: bytes) -> None:
    try:
        expected = json.loads(data.decode())
    except ValueError:
        expected = None
    value, error = attempt(data)
    assert value == expected if error is None else error.status == 400


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the body is empty; send a JSON object"),
        (b" \n", "the body is empty; send a JSON object"),
        (b"[]", "the body must be a JSON object"),
        (b'{"a": NaN}', "the body has NaN, which is not JSON"),
        (b'{"a": -Infinity}', "the body has -Infinity, which is not JSON"),
        (b'{"a": 1, "b": {"c": 1, "d": 2, "c": 3}}', "the body cannot be read: duplicate field 'c'"),
        (b'{"a": %s}' % (b"9" * 5000), "the body cannot be read: Exceeds the limit (4300 digits)"),
        (b'\xef\xbb\xbf{"a": 1}', "the body is not JSON: unexpected UTF-8 BOM"),
        (b'{"a": "\xff"}', "the body is not UTF-8: byte 7 is invalid"),
        ('{"a": 1}'.encode("utf-16"), "the body is not UTF-8: byte 0 is invalid"),
        (b'{"a": 1,}', "the body is not JSON: "),
        (b'{"a": 1}\n{"b": 2}', "the body is not JSON: extra data, at line 2, column 1"),
        (b'{"a": "\x00"}', "the body is not JSON: invalid control character"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "the body cannot be read: maximum recursion depth exceeded"),
    ],
)
def test_refusals(data: bytes, message: str) -> None:
    with pytest.raises(HttpError) as caught:
        parse_json(data)
    assert caught.value.status == 400
    assert caught.value.message.startswith(message)


def test_pairs_of_surrogates_and_deep_documents_are_accepted() -> None:
    assert parse_json(b'{"a": "\\ud83d\\ude00"}') == {"a": "😀"}
    assert parse_json(b'{"a": %s}' % (b"[" * 100 + b"]" * 100))
    assert parse_json(b'{"a": "%s"}' % (b"[" * 1000)) == {"a": "[" * 1000}
    assert parse_json(b'{"a": "\\"%s"}' % (b"[" * 1000)) == {"a": '"' + "[" * 1000}


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 2_000_000,
        b'{"a":' * 400_000,
        b'"' + b'\\"' * 1_000_000,
        b'{"a": "' + b"\\" * 2_000_000,
        b'"' * 2_000_001,
        b'{"a": [' + b"[]," * 300_000 + b"[]]}",
        b'{"a": ' + b"9" * 2_000_000 + b"}",
        b'{"a": "' + b"\\ud800" * 300_000 + b'"}',
    ],
    ids=range(8),
)
def test_megabytes_take_little_time(data: bytes) -> None:
    start = time.process_time()
    _, error = attempt(data)
    assert error is None or len(error.message) < 500
    assert time.process_time() - start < 10  # minutes if it were quadratic


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False


class Example(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    prompt: str | FailFast[str] | FailFast[int] | FailFast[FailFast[int]] = ""
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 16
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, lt=1)] = 0.5
    stop: (
        Annotated[str, Field(max_length=256)]
        | Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=2)]
    ) = ""
    stream: bool = False
    stream_options: Options | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    task: Literal["a", "b"] = "a"
    suffix: None = None
    session: Annotated[str, Field(pattern="^[a-z]+$")] | None = None
    pair: tuple[int, int] = (0, 0)
    even: int = 0

    @field_validator("even")
    @classmethod
    def _is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("must be even; add one")
        return value


class Needed(BaseModel):
    input: str


LONG = "x" * 1_048_576
MESSAGES = [
    ({"max_tokens": 9999}, "max_tokens: 9999 does not fit; "),
    ({"max_tokens": "5"}, "max_tokens: '5' does not fit; "),
    ({"max_tokens": True}, "max_tokens: true does not fit; "),
    ({"max_tokens": 1.5}, "max_tokens: 1.5 does not fit; "),
    ({"max_tokens": None}, "max_tokens: null does not fit; "),
    ({"max_tokens": 10**30}, f"max_tokens: {10**30} does not fit; "),
    ({"temperature": "hot"}, "temperature: 'hot' does not fit; "),
    ({"temperature": [1] * 1000}, "temperature: a list does not fit; "),
    ({"temperature": -1}, "temperature: -1 does not fit; "),
    ({"top_p": 0}, "top_p: 0 does not fit; "),
    ({"top_p": 1}, "top_p: 1 does not fit; "),
    ({"stop": ["a", LONG]}, f"stop.1: '{'x' * 60}…' does not fit; "),
    ({"stop": LONG}, f"stop: '{'x' * 60}…' does not fit; "),
    ({"stop": ["a", "b", "c"]}, "stop: a list does not fit; "),
    ({"stop": 5}, "stop: 5 does not fit; "),
    ({"stop": ["a", 5]}, "stop.1: 5 does not fit; "),
    ({"prompt": [1, "a"]}, "prompt.1: 'a' does not fit; "),
    ({"prompt": [[1, 2], [1, "a"]]}, "prompt.1.1: 'a' does not fit; "),
    ({"prompt": ["a", 1]}, "prompt.1: 1 does not fit; "),
    ({"prompt": {"a": 1}}, "prompt: an object does not fit; "),
    ({"stream": "yes"}, "stream: 'yes' does not fit; "),
    ({"stream": 1}, "stream: 1 does not fit; "),
    (
        {"stream_options": {"include_usages": True}},
        "stream_options.include_usages: unknown field; did you mean 'include_usage'?",
    ),
    ({"stream_options": 1}, "stream_options: 1 does not fit; "),
    ({"logit_bias": {"5": 101}}, "logit_bias.5: 101 does not fit; "),
    ({"logit_bias": {LONG: 101}}, f"logit_bias.'{'x' * 60}…': 101 does not fit; "),
    ({"task": "c"}, "task: 'c' does not fit; "),
    ({"suffix": "x"}, "suffix: 'x' does not fit; "),
    ({"session": "A B"}, "session: 'A B' does not fit; "),
    ({"pair": [1, "a"]}, "pair.1: 'a' does not fit; "),
    ({"even": 3}, "even: 3 does not fit; must be even; add one"),
    ({"max_token": 5}, "max_token: unknown field; did you mean 'max_tokens'?"),
    ({LONG: 5}, f"'{'x' * 60}…': unknown field; choose from model, prompt"),
    ({"\x1b[31m": 5}, "\\x1b[31m: unknown field; choose from"),
]


@pytest.mark.parametrize(("body", "message"), MESSAGES, ids=range(len(MESSAGES)))
def test_messages(body: dict[str, object], message: str) -> None:
    with pytest.raises(HttpError) as caught:
        validate(json.dumps(body).encode(), Example)
    error = caught.value
    assert error.status == 400
    assert error.message.startswith(message)
    assert len(error_body(error)) < 1000
    assert error.param is not None
    assert error.message.startswith(error.param) or "\x1b" in error.param


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"prompt": "\\ud800"}', "invalid JSON: unexpected end of hex escape"),
        (b'{"prompt": [{"\\uDFFF": 1}]}', "invalid JSON: "),
        (b'{"prompt": %s}' % (b"[" * 500 + b"]" * 500), "invalid JSON: recursion limit exceeded"),
        (b'{"temperature": 1e999}', "temperature: inf does not fit; "),
    ],
)
def test_what_only_pydantic_refuses(data: bytes, message: str) -> None:
    with pytest.raises(HttpError) as caught:
        validate(data, Example)
    assert caught.value.status == 400
    assert caught.value.message.startswith(message)


def test_missing_fields() -> None:
    with pytest.raises(HttpError, match="input: is required; add it"):
        validate(b"{}", Needed)


def test_valid_values() -> None:
    body = validate(b'{"temperature": 1, "prompt": [[1, 2], []], "pair": [1, 2], "stop": ["a"]}', Example)
    assert body.temperature == 1.0
    assert isinstance(body.temperature, float)
    assert body.pair == (1, 2)
    assert body.prompt == [[1, 2], []]


def test_very_many_problems_take_little_memory() -> None:
    body = json.dumps({"prompt": [None] * 200_000}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(HttpError, match="prompt"):
            validate(body, Example)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(HttpError, match="has 300 wrong values or unknown fields"):
        validate(json.dumps(dict.fromkeys(map(str, range(300)))).encode(), Example)


def request(pieces: list[bytes | float | None], **headers: str) -> Request:
    """A request whose body arrives in pieces; a number is a pause in seconds, and None a client that goes away."""
    waiting = iter(pieces)

    async def receive() -> dict[str, object]:
        for piece in waiting:
            if isinstance(piece, bytes):
                return {"type": "http.request", "body": piece, "more_body": True}
            if piece is None:
                return {"type": "http.disconnect"}
            await asyncio.sleep(piece)
        return {"type": "http.request", "body": b"", "more_body": False}

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": raw}, receive)


@given(st.lists(st.binary(max_size=10), max_size=10))
@settings(max_examples=30, deadline=None)
def test_bodies_are_the_pieces(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert asyncio.run(read_body(request([*pieces]), len(whole), 5)) == whole
    if whole:
        with pytest.raises(HttpError) as caught:
            asyncio.run(read_body(request([*pieces]), len(whole) - 1, 5))
        assert (caught.value.status, caught.value.headers) == (413, {"Connection": "close"})


@pytest.mark.parametrize(
    ("pieces", "headers", "status"),
    [
        ([], {"content_length": "11"}, 413),
        ([], {"content_length": "9" * 10_000}, 413),
        ([], {"content_length": "-1"}, 400),
        ([b"a", 5.0, b"b"], {}, 408),
        ([0.02] * 100, {}, 408),
        ([b"a"], {"content_encoding": "gzip"}, 415),
    ],
)
def test_refused_bodies(pieces: list[bytes | float | None], headers: dict[str, str], status: int) -> None:
    with pytest.raises(HttpError) as caught:
        asyncio.run(read_body(request(pieces, **headers), 10, 0.1))
    assert caught.value.status == status


def test_a_client_that_goes_away() -> None:
    with pytest.raises(ClientDisconnect):
        asyncio.run(read_body(request([b"a", None]), 10, 1))


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ('Application/JSON;charset="UTF-8"', 200),
        ("application/json; charset=latin-1", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/jsonp", 415),
        ("", 415),
    ],
)
def test_content_types(content_type: str, status: int) -> None:
    ask = read_request(request([b"{}"], content_type=content_type), Example, 1000)
    if status == 200:
        assert asyncio.run(ask) == Example()
    else:
        with pytest.raises(HttpError) as caught:
            asyncio.run(ask)
        assert caught.value.status == status


def test_errors_of_the_input_name_their_field() -> None:
    error = as_http_error(InputError("stop.0: must not be empty"))
    assert (error.status, error.param) == (400, "stop.0")
    assert as_http_error(InputError("a file.txt: is missing")).param is None
    assert as_http_error(InputError("something is wrong")).param is None
    hidden = as_http_error(RuntimeError("/a/secret/path"))
    assert (hidden.status, hidden.message) == (500, "internal error; see the log of the server")
    assert json.loads(error_body(HttpError(400, "a\nb\x1b\ud800")))["error"]["message"] == "a b\\x1b\\ud800"
