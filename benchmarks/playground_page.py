"""The playground in a browser, and streams of completions that are given in place of its server."""

import json
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Request, expect

SCRIPT = Path(__file__).with_suffix(".js")


class Playground:
    """The page in a browser: the parts of the panel that is shown, and what the page has sent and reported."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.address = address
        self.page = browser.new_page()
        self.page.add_init_script(path=SCRIPT)
        self.requests: list[Request] = []
        self.messages: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(f"exception: {error.stack or error}"))
        self.model, self.tabs = self.page.locator("#model"), self.page.get_by_role("tab")
        self.panel = self.page.locator("main > section:not([hidden])")
        self.text, self.go = self.panel.locator("textarea"), self.panel.locator(".go")
        self.state, self.error = self.panel.locator(".state"), self.panel.locator(".error")
        self.output, self.tokens = self.panel.locator(".output"), self.panel.locator(".output .tokens .token")

    def open(self, width: int = 1200, theme: str = "light") -> None:
        """Open the page again, and wait for its models."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=theme)
        self.page.goto(self.address)
        self.tabs.first.wait_for()

    def choose(self, model: str, tab: str, text: str | None = None) -> None:
        """Choose a model and a tab, and write a text into its first field."""
        self.model.select_option(model)
        self.page.locator(f"#tab-{tab}").click()
        if text is not None:
            self.text.fill(text)

    def finish(self) -> None:
        """Start the request of the tab, and wait for its end."""
        self.go.click()
        self.wait_for_end()

    def wait_for_end(self) -> None:
        """Wait until the page does not wait for an answer any more."""
        expect(self.go, "the request does not end").not_to_have_text("Stop", timeout=110_000)

    def answered(self, status: int, content: bytes, content_type: str) -> None:
        """Ask for a completion, and answer in place of the server."""
        headers = {"Content-Type": content_type, "Retry-After": "7"}
        completions = f"{self.address}/v1/completions"
        self.page.route(completions, lambda route: route.fulfill(status=status, body=content, headers=headers), times=1)
        with self.page.expect_request(completions):
            self.finish()

    def command(self) -> str:
        """Return the request as a command, which is written when its fold is opened."""
        fold = self.panel.locator("details.curl")
        if fold.get_attribute("open") is None:
            fold.locator("summary").click()
        expect(fold.locator("code"), "there is no command").not_to_be_empty()
        return fold.locator("code").text_content()


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
