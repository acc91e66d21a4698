"""JSON from strangers: one meaning or an error, in time and memory proportional to the length of the text.

And JSON for them, on one line.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from starlette.responses import Response

from ..core.errors import shown
from ..storage.atomic_files import json_line
from ..storage.safe_files import is_text
from .http_errors import HttpError

MAX_DEPTH = 32
"""The number of lists and objects that may lie within one another."""
MAX_DIGITS = 100
"""The number of digits of an integer; converting takes time that is quadratic in it."""
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A string in JSON, or the rest of the text after a quotation mark without an end, so that a scan is linear."""
NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class JsonResponse(Response):
    """A response of JSON."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Return the body."""
        return json_line(content).encode()


def parse_json(data: bytes) -> dict[str, object]:
    """Return the JSON object that a request contains.

    Only texts with one meaning are accepted: UTF-8 without a byte order mark, no duplicate names in an object, no NaN
    or infinity (also not as ``1e999``), and no halves of surrogate pairs, which no UTF-8 text can hold. Lists and
    objects lie at most ``MAX_DEPTH`` deep within one another, which is checked before the parser, whose recursion
    would follow them; integers have at most ``MAX_DIGITS`` digits.

    Raises:
        HttpError: With status 400, if the text is not such an object.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        raise _refusal("begins with a byte order mark; send UTF-8 without one")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refusal(f"is not UTF-8: byte {error.start:,} is invalid; encode the text as UTF-8") from None
    if not text.strip(" \t\r\n"):
        raise _refusal("is empty; send a JSON object")
    if depth(data) > MAX_DEPTH:
        raise _refusal(f"has lists and objects more than {MAX_DEPTH} deep within one another; use fewer levels")
    try:
        value: object = DECODER.decode(text)
    except json.JSONDecodeError as error:
        reason = f"{error.msg[:1].lower()}{error.msg[1:]}"
        raise _refusal(f"is not JSON: {reason}, at line {error.lineno:,}, column {error.colno:,}") from None
    if not isinstance(value, dict):
        raise _refusal('must be a JSON object, like {"model": "name"}')
    if b"\\u" in data:  # only an escape can spell half of a surrogate pair
        _check_surrogates(value)
    return value


def depth(data: bytes) -> int:
    """Return how deep the lists and objects of a JSON text lie within one another, without recursion."""
    brackets = STRING.sub(b"", data).translate(None, NOT_BRACKETS)
    return max(accumulate(map(STEPS.__getitem__, brackets)), default=0)


def _refusal(reason: str) -> HttpError:
    return HttpError(400, f"the body {reason}")


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise _refusal(f"has the duplicate name {shown(name)} in an object; send each name once")
    return value


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise _refusal(f"has an integer of {len(digits):,} digits; use at most {MAX_DIGITS}")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _refusal(f"has the number {shown(digits)}, which is too large; use at most 1e308")
    return value


def _constant(name: str) -> float:
    raise _refusal(f"has {name}, which is not JSON; use a finite number or null")


def _check_surrogates(value: object) -> None:
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += part.keys()
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
        elif isinstance(part, str) and not is_text(part):
            raise _refusal(f"has {shown(part)}, which is not Unicode text; remove its single surrogate characters")


DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant, strict=True
)
