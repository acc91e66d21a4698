"""The parts of the playground's script that need no browser, run with Node.js."""

import json
import shutil
import subprocess

import pytest

from seriatim.serving.playground import TEMPLATES

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node.js")
PURE = ("requests.js", "tokens.js", "answers.js")
"""Parts of the script that can be run without a browser."""


def evaluated(code: str, *arguments: object) -> object:
    """Return what a function of JavaScript returns, with the parts of the script that need no page."""
    files = (TEMPLATES / name for name in PURE)
    program = [
        "globalThis.location = { href: 'http://127.0.0.1:8000/#write' };",
        "globalThis.sessionStorage = { getItem: () => null, setItem: () => {} };",
        *(file.read_text(encoding="utf-8") for file in files),
        f"Promise.resolve(({code})(...{json.dumps(arguments)})).then((value) => console.log(JSON.stringify(value)));",
    ]
    assert NODE is not None
    done = subprocess.run([NODE, "-"], input="\n".join(program), capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


TEXTS = (
    "The dog barks.",
    "é 🙂🙂 مرحبا\n\t<b>&amp;</b>",
    "🙂",
    "a\N{REPLACEMENT CHARACTER}b",
    "",
)


def tokens_of(text: str) -> list[tuple[str, str, int]]:
    """The bytes of a text as tokens, each with the text that it completes and the place of its character."""
    return [
        (character if len(data) == 1 else "\N{REPLACEMENT CHARACTER}", character if i == len(data) - 1 else "", place)
        for place, character in enumerate(text)
        for data in [character.encode()]
        for i in range(len(data))
    ]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("together", [1, 2, 3, 7])
def test_streamed_tokens_give_the_text_and_all_bits(text: str, together: int) -> None:
    tokens = tokens_of(text)
    groups = [tokens[i : i + together] for i in range(0, len(tokens), together)]
    events = [[[name for name, _, _ in group], "".join(piece for _, piece, _ in group)] for group in groups]
    code = """(events) => {
      const joiner = new TokenJoiner();
      const token = (name) => ({ name, bits: 1, alternatives: [] });
      return [...events.flatMap(([names, text]) => joiner.add(names.map(token), text)), ...joiner.rest()];
    }"""
    shown = evaluated(code, events)
    assert isinstance(shown, list)
    assert "".join(token["text"] for token in shown) == text
    assert sum(token["bits"] for token in shown) == len(tokens)


@pytest.mark.parametrize("text", TEXTS)
def test_scored_tokens_give_the_text_and_all_bits(text: str) -> None:
    tokens = [{"text": name, "start": at, "end": at + 1, "logprob": -1, "top": []} for name, _, at in tokens_of(text)]
    end = {"text": "</s>", "start": len(text), "end": len(text), "logprob": -1, "top": []}
    shown = evaluated("scoredTokens", {"text": text, "tokens": [*tokens, end]})
    assert isinstance(shown, list)
    assert "".join(token["text"] for token in shown) == f"{text}</s>"
    assert sum(token["bits"] for token in shown) == pytest.approx((len(tokens) + 1) / 0.6931471805599453)
    assert [token["symbol"] for token in shown] == [False] * (len(shown) - 1) + [True]


def test_a_stop_string_leaves_no_tokens() -> None:
    code = """(names) => {
      const joiner = new TokenJoiner();
      const shown = joiner.add(names.map((name) => ({ name, bits: 1, alternatives: [] })), "ab");
      return [...shown, ...joiner.rest()].map((token) => token.text);
    }"""
    assert evaluated(code, ["a", "b", "S", "T"]) == ["a", "b"]
    assert evaluated(code, ["a", "b", "</s>"]) == ["a", "b", "</s>"]


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_events_are_read_whatever_their_pieces(size: int) -> None:
    stream = ': a comment\ndata: {"text": "é\\n"}\n\ndata: one\r\ndata:two\r\n\r\ndata: [DONE]\n\ndata: not ended'
    data = list(stream.encode())
    code = """async (data, size) => {
      const pieces = [];
      for (let i = 0; i < data.length; i += size) pieces.push(new Uint8Array(data.slice(i, i + size)));
      const body = new ReadableStream({
        start(control) {
          for (const each of pieces) control.enqueue(each);
          control.close();
        },
      });
      const read = [];
      for await (const each of events({ body })) read.push(each);
      return read;
    }"""
    assert evaluated(code, data, size) == ['{"text": "é\\n"}', "one\ntwo", "[DONE]"]


@pytest.mark.parametrize("text", [*TEXTS, "It's \"$HOME\" `id` \\ !x & \n\x07 'quoted'", "@file", "--data"])
def test_commands_send_the_text_as_it_is(text: str) -> None:
    body = {"model": "it's", "prompt": text, "stream": True}
    command = evaluated("(body) => curlCommand('/v1/completions', body)", body)
    assert isinstance(command, str)
    shell = f"curl() {{ printf '%s\\0' \"$@\"; }}\n{command}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, check=True)
    words = done.stdout.decode().split("\0")[:-1]
    assert words[:2] == ["-N", "http://127.0.0.1:8000/v1/completions"]
    assert json.loads(words[-1]) == body


def test_differences_are_the_words_that_are_not_common() -> None:
    code = "(text, other) => markedPieces(text, other).filter(([, differs]) => differs).map(([piece]) => piece)"
    assert evaluated(code, "the dog barks loudly", "the dog barks") == ["loudly"]
    assert evaluated(code, "a b c d", "a x c d") == ["b"]
    assert evaluated(code, "same text", "same text") == []
    assert evaluated(code, "", "text") == []
