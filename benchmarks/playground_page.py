"""The playground in a tab of Chromium, and answers that are given in place of its server."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

from chromium import Browser, Json, Tab

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


class Playground:
    """The page in a tab of a browser."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser, self.address = browser, address
        self.tab = Tab(browser)
        self.start = len(browser.events)

    def open(self, width: int = 1200, *, dark: bool = False, tab: str = "") -> None:
        """Open the page again, and wait for its models."""
        self.tab.show(width, dark=dark)
        self.tab.visit("about:blank")
        self.tab.visit(f"{self.address}/#{tab}")
        self.tab.run(SCRIPT)
        self.until("checks.ready()", "the models are not shown")

    def until(self, condition: str, problem: str, seconds: float = 20.0) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.tab.run(condition):
            if time.monotonic() > deadline:
                raise AssertionError(problem)
            self.tab.run("new Promise((done) => setTimeout(done, 20))")

    def ask(self, function: str, *values: object) -> object:
        """Return what a function of the script returns."""
        return self.tab.run(f"checks.{function}({', '.join(json.dumps(value) for value in values)})")

    def choose(self, model: str, tab: str, text: str | None = None) -> None:
        """Choose a model and a tab, and write a text into its first field."""
        self.ask("chooseModel", model)
        self.ask("chooseTab", tab)
        if text is not None:
            self.ask("write", {"prompt" if tab == "write" else "input": text})

    def finish(self) -> None:
        """Start the request of the tab, and wait for its end."""
        self.ask("go")
        assert self.ask("finished"), "the request does not end"

    def answered(self, pattern: str, status: int, content: bytes, headers: dict[str, str]) -> None:
        """Start the request of the tab, and answer it in place of the server."""
        self.tab.send("Fetch.enable", patterns=[{"urlPattern": pattern}])
        start = len(self.browser.events)
        self.ask("go")
        paused = self.browser.wait("Fetch.requestPaused", start, 20.0)
        assert paused is not None, "no request was sent"
        self.tab.send(
            "Fetch.fulfillRequest",
            requestId=paused["params"]["requestId"],
            responseCode=status,
            responseHeaders=[{"name": name, "value": value} for name, value in headers.items()],
            body=base64.b64encode(content).decode(),
        )
        self.tab.send("Fetch.disable")
        assert self.ask("finished"), "the request does not end"

    def events(self, *methods: str) -> Iterator[Json]:
        """Yield the events of some kinds since the page was made."""
        for event in self.browser.events[self.start :]:
            if event.get("method") in methods:
                yield event["params"]


def listed(value: object) -> list[str]:
    """Return the problems that a check of the script has found."""
    return [str(each) for each in value] if isinstance(value, list) else []


def pieces(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield the bytes of a text as tokens, with the text that each of them completes, sometimes two at a time."""
    for character in text:
        parts = [character] if character.isascii() else ["\N{REPLACEMENT CHARACTER}"] * len(character.encode())
        if len(parts) == 3:
            yield parts, character
        else:
            yield from ((["\N{REPLACEMENT CHARACTER}"], "") for _ in parts[1:])
            yield parts[:1], character


def event(tokens: list[str], text: str) -> bytes:
    """Return an event of a stream of completions."""
    logprobs = {
        "tokens": tokens,
        "token_logprobs": [-1.5] * len(tokens),
        "top_logprobs": [{token: -1.5, "<i>": -2.0} for token in tokens],
        "text_offset": [0] * len(tokens),
    }
    choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": None}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()
