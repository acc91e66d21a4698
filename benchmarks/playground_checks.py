"""What must hold of the playground in a browser: each check raises AssertionError with what is wrong."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from chromium import Browser, Json
from playground_page import SCRIPT, Playground, event, listed, pieces

WIDTHS = (320, 1200)
TEXT = "The dog [MASK] the cat, and مرحبا 🙂 <b>it</b> " + "long" * 40
INPUT = 'It\'s "$HOME" `id` \\ ! & <b>\nand a second line'
HOSTILE = "<script>window.attacked = true</script><img src=x onerror='window.attacked = true'>"
ODD_TEXT = f"{HOSTILE} 🙂 مرحبا بالعالم {'x' * 300} \x07 &amp; é"
ENDED = b"data: [DONE]\n\n"
MANY, MANY_SECONDS = 5000, 5.0
ARROW_LEFT, ARROW_RIGHT, HOME, END, ENTER, ESCAPE = (
    ("ArrowLeft", 37), ("ArrowRight", 39), ("Home", 36), ("End", 35), ("Enter", 13), ("Escape", 27)
)  # fmt: skip

Check = Callable[[Playground, dict[str, list[str]]], None]


def check(browser: Browser, address: str, *, pictures: Path | None = None, axe: str = "") -> Iterator[tuple[str, str]]:
    """Yield what each check checks, and what is wrong, or an empty text."""
    page = Playground(browser, address)
    page.open()
    tabs: dict[str, list[str]] = {}
    for model in listed(page.ask("models")):
        page.ask("chooseModel", model)
        tabs[model] = listed(page.ask("tabs"))
    checks: list[Check] = [tabs_by_keyboard, remembers, commands_are_exact]
    if any("write" in names for names in tabs.values()):
        checks += [streams, stops, shows_odd_text, shows_many_tokens, shows_errors, asks_for_a_key, tokens_by_keyboard]
    checks += [lambda page, tabs: fits(page, tabs, pictures, axe), is_quiet]
    for each in checks:
        try:
            page.open()
            each(page, tabs)
        except (AssertionError, RuntimeError) as error:
            yield (each.__doc__ or fits.__doc__ or "").split("\n")[0], str(error) or type(error).__name__
        else:
            yield (each.__doc__ or fits.__doc__ or "").split("\n")[0], ""


def streams(page: Playground, tabs: dict[str, list[str]]) -> None:
    """Text streams in."""
    page.choose(writer(tabs), "write", "The ")
    page.ask("write", {"max_tokens": "600"})
    page.ask("watch")
    page.finish()
    steps = page.ask("steps")
    assert not page.ask("error"), page.ask("error")
    assert len(listed(steps)) > 1, f"all tokens were shown in {steps} steps"
    assert "tokens/s" in str(page.ask("state")), page.ask("state")


def stops(page: Playground, tabs: dict[str, list[str]]) -> None:
    """Stop, and Escape, end the request."""
    page.choose(writer(tabs), "write", "The ")
    for name, stop in (("Stop", lambda: page.ask("go")), ("Escape", lambda: page.tab.press(*ESCAPE))):
        page.ask("write", {"max_tokens": "4000"})
        start = len(page.browser.events)
        page.ask("go")
        page.until("checks.tokens() > 0", "no tokens are shown")
        assert page.ask("running"), "the text was finished too soon to be stopped"
        stop()
        failed = page.browser.wait("Network.loadingFailed", start, 5.0)
        assert failed, f"{name} does not end the request"
        assert failed["params"].get("canceled"), f"the request failed otherwise: {failed['params']}"
        page.until("!checks.running()", f"after {name} the page still waits")
        assert "Stopped" in str(page.ask("state")), page.ask("state")


def shows_odd_text(page: Playground, tabs: dict[str, list[str]]) -> None:
    """Whatever a model writes stays text, also parts of characters."""
    page.choose(writer(tabs), "write", HOSTILE)
    content = b"".join(event(names, text) for names, text in pieces(ODD_TEXT))
    page.answered("*/v1/completions", 200, content + ENDED, {"Content-Type": "text/event-stream"})
    assert not page.ask("attacked"), "the page ran a script of the model, or has elements of it"
    shown, expected = str(page.ask("output")), ODD_TEXT.replace("\x07", "␇")
    assert HOSTILE in shown, "the prompt is not shown as it is"
    assert expected in shown, f"shows {shown[-500:]!r}"
    page.tab.show(WIDTHS[0])
    assert not page.ask("overflow"), page.ask("overflow")
    page.tab.show(WIDTHS[1])


def shows_many_tokens(page: Playground, tabs: dict[str, list[str]]) -> None:
    """Thousands of tokens are shown quickly, with one stop of the tab key."""
    page.choose(writer(tabs), "write", "")
    content = b"".join(event([word], word) for word in ("word ", "and ") * (MANY // 2))
    started = time.monotonic()
    page.answered("*/v1/completions", 200, content + ENDED, {"Content-Type": "text/event-stream"})
    seconds = time.monotonic() - started
    assert page.ask("tokens") == MANY, f"shows {page.ask('tokens')} of {MANY} tokens"
    assert page.ask("tabStops") == 1, f"{page.ask('tabStops')} stops of the tab key"
    assert seconds < MANY_SECONDS, f"took {seconds:.1f} s"


def shows_errors(page: Playground, tabs: dict[str, list[str]]) -> None:
    """Errors are shown in one line; after 429 it says when to try again."""
    page.choose(writer(tabs), "write", "The ")
    for status, message in ((400, "max_tokens: too large"), (429, "the queue is full"), (503, "shutting down")):
        body = json.dumps({"error": {"message": message, "type": "t", "param": None, "code": None}}).encode()
        page.answered("*/v1/completions", status, body, {"Content-Type": "application/json", "Retry-After": "7"})
        shown = str(page.ask("error"))
        assert str(status) in shown, f"{status} is shown as {shown!r}"
        assert message in shown, f"{status} is shown as {shown!r}"
        assert "7\N{NO-BREAK SPACE}s" in shown, f"does not say when to try again: {shown!r}"
    page.answered("*/v1/completions", 500, b"<b>no JSON</b>", {"Content-Type": "text/html"})
    assert "500" in str(page.ask("error")), f"500 is shown as {page.ask('error')!r}"
    broken = event(["The"], "The")
    page.answered("*/v1/completions", 200, broken, {"Content-Type": "text/event-stream"})
    assert "broke off" in str(page.ask("error")), f"a broken stream is shown as {page.ask('error')!r}"
    assert page.ask("tokens") == 1, "the text before the break is not shown"
    failed = broken + b'data: {"error": {"message": "the engine stopped"}}\n\n'
    page.answered("*/v1/completions", 200, failed, {"Content-Type": "text/event-stream"})
    assert "the engine stopped" in str(page.ask("error")), f"an error is shown as {page.ask('error')!r}"


def asks_for_a_key(page: Playground, tabs: dict[str, list[str]]) -> None:
    """After 401 the page asks for a key, sends it, and forgets one that is refused."""
    page.choose(writer(tabs), "write", "The ")
    body = json.dumps({"error": {"message": "the key is missing", "type": "t", "param": None, "code": None}}).encode()
    page.answered("*/v1/completions", 401, body, {"Content-Type": "application/json"})
    assert page.tab.run("!document.getElementById('key-form').hidden"), "the field of the key is not shown"
    assert page.tab.run("document.activeElement.id") == "key", "the field of the key has no focus"
    start = len(page.browser.events)
    page.tab.run("key.value = 'secret'; key.form.requestSubmit(); 0")
    sent = page.browser.wait("Network.requestWillBeSent", start, 10.0)
    assert sent, "the models are not asked for"
    assert sent["params"]["request"]["headers"].get("Authorization") == "Bearer secret", "the key is not sent"
    page.until("checks.ready() && !document.getElementById('model').disabled", "the models are not shown")
    assert "$SERIATIM_API_KEY" in str(page.ask("command")), "the command has no key"
    assert "secret" not in str(page.ask("command")), "the command shows the key"
    page.tab.run("sessionStorage.clear()")


def tabs_by_keyboard(page: Playground, tabs: dict[str, list[str]]) -> None:
    """Arrow keys, Home and End choose tabs; the address names the tab."""
    model = max(tabs, key=lambda each: len(tabs[each]))
    names = tabs[model]
    page.choose(model, names[0])
    page.ask("focusTab")
    moves = [(ARROW_RIGHT, 1), (ARROW_LEFT, 0), (ARROW_LEFT, -1), (HOME, 0), (END, -1), (ARROW_RIGHT, 0)]
    for key, place in moves:
        page.tab.press(*key)
        button = f"tab-{names[place]}"
        assert page.ask("selectedTab") == [button, button, f"#{names[place]}", button], (
            f"{key[0]} leads to {page.ask('selectedTab')}"
        )


def tokens_by_keyboard(page: Playground, tabs: dict[str, list[str]]) -> None:
    """Arrow keys move from token to token, a box shows alternatives, and Control+Enter starts."""
    page.choose(writer(tabs), "score", "The dog barks.")
    page.tab.run("document.querySelector('section:not([hidden]) textarea').focus()")
    page.tab.press(*ENTER, control=True)
    page.until("checks.tokens() > 0", "Control+Enter does not start")
    assert page.ask("finished"), "the request does not end"
    page.ask("focusToken")
    for key, place in ((ARROW_RIGHT, 1), (ARROW_RIGHT, 2), (ARROW_LEFT, 1), (HOME, 0)):
        page.tab.press(*key)
        assert page.ask("focusedToken") == place, f"{key[0]} leads to token {page.ask('focusedToken')}"
    assert "bits" in str(page.ask("box")), "no box is shown"
    page.tab.press(*ESCAPE)
    assert not page.ask("box"), "Escape does not close the box"


def remembers(page: Playground, tabs: dict[str, list[str]]) -> None:
    """A reload keeps the model, the tab and the fields."""
    model = list(tabs)[-1]
    page.choose(model, tabs[model][0], "remember this")
    address = page.tab.run("location.hash")
    page.tab.send("Page.reload")
    page.tab.settle()
    page.until("document.readyState === 'complete' && document.querySelectorAll('[role=tab]').length > 0", "no tabs")
    page.tab.run(SCRIPT)
    assert page.tab.run("document.getElementById('model').value") == model, "another model is chosen"
    assert page.tab.run("location.hash") == address, "another tab is chosen"
    assert page.tab.run("document.querySelector('section:not([hidden]) textarea').value") == "remember this"


def commands_are_exact(page: Playground, tabs: dict[str, list[str]]) -> None:
    """The command sends the same bytes as the page."""
    for model, tab in every_tab(tabs):
        page.choose(model, tab, INPUT)
        command = str(page.ask("command"))
        start = len(page.browser.events)
        page.finish()
        sent = [each["params"]["request"] for each in page.browser.events[start:] if is_post(each)]
        shell = f"curl() {{ printf '%s\\0' \"$@\"; printf '\\n\\0'; }}\n{command}"
        output = subprocess.run(["sh", "-c", shell], capture_output=True, check=True).stdout.decode()
        called = [each.split("\0")[:-1] for each in output.split("\n\0")[:-1]]
        assert len(called) == len(sent), f"{model}, {tab}: {len(called)} commands for {len(sent)} requests"
        for words, request in zip(called, sent, strict=True):
            assert words[-1] == request["postData"], f"{model}, {tab}: {words[-1]} is not {request['postData']}"
            assert request["url"] in words, f"{model}, {tab}: the command has another address"
            assert ("-N" in words) == bool(json.loads(words[-1]).get("stream")), f"{model}, {tab}: -N"


def fits(page: Playground, tabs: dict[str, list[str]], pictures: Path | None = None, axe: str = "") -> None:
    """In each tab the page fits into the window, has names for its fields, and a contrast of at least 4.5."""
    problems = []
    for width in WIDTHS:
        for dark in (False, True):
            page.open(width, dark=dark)
            for model, tab in every_tab(tabs):
                page.choose(model, tab, TEXT)
                page.finish()
                if "never seen in training" in str(
                    page.ask("error")
                ):  # the model knows only the characters of its data
                    page.choose(model, tab, INPUT)
                    page.finish()
                if error := page.ask("error"):
                    problems.append(f"{model}, {tab}: {error}")
                page.ask("command")
                found = [each for check in ("overflow", "contrast", "names") for each in listed(page.ask(check))]
                if axe:
                    page.tab.run(f"{axe};0")
                    found += listed(page.tab.run(AXE))
                where = f"{model}, {tab}, {width} px, {'dark' if dark else 'light'}"
                problems += [f"{where}: {each}" for each in found]
                if pictures:
                    page.tab.settle()
                    page.tab.picture(pictures / f"{model}-{tab}-{width}-{'dark' if dark else 'light'}.png", whole=True)
    assert not problems, "\n    ".join(["", *problems])


AXE = """axe.run(document, { resultTypes: ["violations"], iframes: false }).then(({ violations }) => violations
  .map(({ impact, id, nodes }) => `axe: ${impact} ${id}: ${nodes[0].html.slice(0, 120)}`))"""


def is_quiet(page: Playground, tabs: dict[str, list[str]]) -> None:
    """Nothing was written to the console, and no other host was asked for anything."""
    messages = page.events("Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    problems = [json.dumps(message, ensure_ascii=False)[:400] for message in messages]
    # Chromium itself reports answers with an error status, which this script provokes.
    entries = [each["entry"] for each in page.events("Log.entryAdded")]
    problems += [entry["text"][:400] for entry in entries if entry["source"] != "network"]
    host = urlsplit(page.address).netloc
    for request in (each["request"] for each in page.events("Network.requestWillBeSent")):
        address = urlsplit(request["url"])
        if address.scheme in ("http", "https", "ws", "wss") and address.netloc != host:
            problems.append(f"requests {request['url'][:200]}")
    assert not problems, "\n    ".join(["", *problems])


def writer(tabs: dict[str, list[str]]) -> str:
    """Return a language model."""
    return next(model for model, names in tabs.items() if "write" in names)


def every_tab(tabs: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield every model with each of its tabs."""
    for model, names in tabs.items():
        for name in names:
            yield model, name


def is_post(sent: Json) -> bool:
    """Whether an event is a request of a panel."""
    return sent.get("method") == "Network.requestWillBeSent" and sent["params"]["request"]["method"] == "POST"
