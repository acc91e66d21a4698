"""What must hold of the playground in a browser: each check raises AssertionError with what is wrong."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from playground_page import Playground, event, pieces
from playwright.sync_api import Browser, Error, expect

WIDTHS = (320, 1200)
TEXT = "The dog [MASK] the cat, and مرحبا 🙂 <b>it</b> " + "long" * 40
INPUT = 'It\'s "$HOME" `id` \\ ! & <b>\nand a second line'
HOSTILE = "<script>window.attacked = true</script><img src=x onerror='window.attacked = true'>"
ODD_TEXT = f"{HOSTILE} 🙂 مرحبا بالعالم {'x' * 300} \x07 &amp; é"
ENDED = b"data: [DONE]\n\n"
STREAM, JSON = "text/event-stream", "application/json"
MANY, MANY_SECONDS = 5000, 5.0

Check = Callable[[Playground, dict[str, list[str]]], None]


def check(browser: Browser, address: str, *, pictures: Path | None = None, axe: str = "") -> Iterator[tuple[str, str]]:
    """Yield what each check checks, and what is wrong, or an empty text."""
    ui = Playground(browser, address)
    ui.open()
    models = ui.page.request.get(f"{address}/v1/models").json()["data"]
    tabs: dict[str, list[str]] = {}
    for model in sorted(models, key=lambda each: bool(each.get("context"))):  # some checks ask for long texts
        ui.model.select_option(model["id"])
        tabs[model["id"]] = [tab.get_attribute("id").removeprefix("tab-") for tab in ui.tabs.all()]
    checks: list[Check] = [tabs_by_keyboard, remembers, commands_are_exact, asks_for_a_text]
    if any("classify" in names for names in tabs.values()):
        checks.append(answers_each_line)
    if any("write" in names for names in tabs.values()):
        checks += [streams, stops, shows_odd_text, shows_many_tokens, shows_errors, asks_for_a_key, tokens_by_keyboard]
    if sum("write" in names for names in tabs.values()) > 1:
        checks.append(two_models_write)
    checks += [lambda ui, tabs: fits(ui, tabs, pictures, axe), is_quiet]
    for each in checks:
        name = (each.__doc__ or fits.__doc__ or "").partition("\n")[0]
        try:
            ui.open()
            each(ui, tabs)
        except AssertionError as error:
            yield name, str(error).partition("\nCall log")[0] or type(error).__name__
        except Error as error:  # a part that is not there or cannot be used
            yield name, error.message.splitlines()[0]
        else:
            yield name, ""


def streams(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """Text streams in."""
    ui.choose(writer(tabs), "write", "The ")
    ui.panel.get_by_label("Max tokens").fill("600")
    ui.output.evaluate("checks.watch")
    ui.finish()
    expect(ui.error).to_be_empty()
    steps = ui.page.evaluate("steps")
    assert len(steps) > 1, f"all tokens were shown in {steps} steps"
    expect(ui.state).to_contain_text("tokens/s")


def stops(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """Stop, and Escape, end the request."""
    ui.choose(writer(tabs), "write", "The ")
    for name, stop in (("Stop", ui.go.click), ("Escape", lambda: ui.page.keyboard.press("Escape"))):
        ui.panel.get_by_label("Max tokens").fill("4000")
        ui.go.click()
        ui.tokens.first.wait_for()
        expect(ui.go, "the text was finished too soon to be stopped").to_have_text("Stop")
        with ui.page.expect_event("requestfailed", timeout=5000) as failed:
            stop()
            expect(ui.state, name).to_contain_text("Stopped")
        assert failed.value.failure == "net::ERR_ABORTED", f"the request failed otherwise: {failed.value.failure}"
        ui.wait_for_end()


def shows_odd_text(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """Whatever a model writes stays text, also parts of characters."""
    ui.choose(writer(tabs), "write", HOSTILE)
    ui.answered(200, b"".join(event(names, text) for names, text in pieces(ODD_TEXT)) + ENDED, STREAM)
    assert not ui.page.evaluate("window.attacked"), "the page ran a script of the model"
    assert not ui.output.locator("script, img, b, i").count(), "the page has elements of the model"
    shown, expected = ui.output.text_content(), ODD_TEXT.replace("\x07", "␇")
    assert HOSTILE in shown, "the prompt is not shown as it is"
    assert expected in shown, f"shows {shown[-500:]!r}"
    ui.page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    assert not (wide := ui.page.evaluate("checks.overflow()")), wide


def shows_many_tokens(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """Thousands of tokens are shown quickly, with one stop of the tab key."""
    ui.choose(writer(tabs), "write", "")
    content = b"".join(event([word], word) for word in ("word ", "and ") * (MANY // 2))
    started = time.monotonic()
    ui.answered(200, content + ENDED, STREAM)
    seconds = time.monotonic() - started
    expect(ui.tokens).to_have_count(MANY)
    expect(ui.output.locator("[tabindex='0']"), "stops of the tab key").to_have_count(1)
    assert seconds < MANY_SECONDS, f"took {seconds:.1f} s"


def shows_errors(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """Errors are shown in one line; after 429 it says when to try again."""
    ui.choose(writer(tabs), "write", "The ")
    for status, message in ((400, "max_tokens: too large"), (429, "the queue is full"), (503, "shutting down")):
        ui.answered(status, refusal(message), JSON)
        for part in (str(status), message, "7\N{NO-BREAK SPACE}s"):
            expect(ui.error).to_contain_text(part)
    ui.answered(500, b"<b>no JSON</b>", "text/html")
    expect(ui.error).to_contain_text("500")
    broken = event(["The"], "The")
    ui.answered(200, broken, STREAM)
    expect(ui.error).to_contain_text("broke off")
    expect(ui.tokens, "the text before the break").to_have_count(1)
    ui.answered(200, broken + b'data: {"error": {"message": "the engine stopped"}}\n\n', STREAM)
    expect(ui.error).to_contain_text("the engine stopped")


def asks_for_a_key(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """After 401 the page asks for a key, sends it, and does not show it."""
    ui.choose(writer(tabs), "write", "The ")
    ui.answered(401, refusal("the key is missing"), JSON)
    key = ui.page.locator("#key")
    expect(key, "the field of the key").to_be_visible()
    expect(key, "the field of the key").to_be_focused()
    key.fill("secret")
    with ui.page.expect_response(f"{ui.address}/v1/models") as answer:
        key.press("Enter")
    assert answer.value.request.headers.get("authorization") == "Bearer secret", "the key is not sent"
    expect(ui.model, "the models are not shown").to_be_enabled()
    command = ui.command()
    assert "$SERIATIM_API_KEY" in command, "the command has no key"
    assert "secret" not in command, "the command shows the key"
    ui.page.evaluate("sessionStorage.clear()")


def tabs_by_keyboard(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """Arrow keys, Home and End choose tabs; the address names the tab."""
    model = max(tabs, key=lambda each: len(tabs[each]))
    names = tabs[model]
    ui.choose(model, names[0])
    moves = [("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowLeft", -1), ("Home", 0), ("End", -1), ("ArrowRight", 0)]
    for key, place in moves:
        ui.page.keyboard.press(key)
        tab = ui.page.locator(f"#tab-{names[place]}")
        expect(tab, key).to_have_attribute("aria-selected", "true")
        expect(tab, key).to_be_focused()
        expect(ui.panel, key).to_have_attribute("aria-labelledby", f"tab-{names[place]}")
        expect(ui.page, key).to_have_url(f"{ui.address}/#{names[place]}")


def tokens_by_keyboard(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """Arrow keys move from token to token, a box shows alternatives, and Control+Enter starts."""
    ui.choose(writer(tabs), "score", "The dog barks.")
    ui.text.press("Control+Enter")
    ui.tokens.first.wait_for()
    ui.wait_for_end()
    ui.output.locator(".token[tabindex='0']").focus()
    for key, place in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("Home", 0)):
        ui.page.keyboard.press(key)
        expect(ui.tokens.nth(place), key).to_be_focused()
    box = ui.page.locator(".details:visible")
    expect(box, "no box is shown").to_contain_text("bits")
    ui.page.keyboard.press("Escape")
    expect(box, "Escape does not close the box").to_have_count(0)


def remembers(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """A reload keeps the model, the tab and the fields."""
    model = list(tabs)[-1]
    tab = tabs[model][0]
    ui.choose(model, tab, "remember this")
    ui.page.reload()
    ui.tabs.first.wait_for()
    expect(ui.model).to_have_value(model)
    expect(ui.page).to_have_url(f"{ui.address}/#{tab}")
    expect(ui.text).to_have_value("remember this")


def asks_for_a_text(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """Without a text nothing is sent; an example is one, and other tabs of the model keep it."""
    model, name = next((model, name) for model, name in every_tab(tabs) if name not in ("write", "inspect"))
    ui.choose(model, name, "")
    start = len(ui.requests)
    ui.finish()
    expect(ui.state).to_contain_text("Type a text")
    assert len(ui.requests) == start, "an empty text was sent"
    ui.panel.get_by_role("button", name="Example").click()
    example = ui.text.input_value()
    assert example.strip(), "the example is empty"
    ui.finish()
    expect(ui.output).not_to_be_empty()
    ui.choose(model, next(each for each in tabs[model] if each != name))
    expect(ui.text, "the text is not kept").to_have_value(example)


def answers_each_line(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """Each line that is not empty is one input."""
    model = next(model for model, names in tabs.items() if "classify" in names)
    for text, count in (("one line", 1), ("the first\n\nthe second\n", 2)):
        ui.choose(model, "classify", text)
        ui.finish()
        expect(ui.output.locator("> article")).to_have_count(count)


def two_models_write(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """Two models continue one prompt, each in its column."""
    first, second = [model for model, names in tabs.items() if "write" in names][:2]
    ui.choose(first, "write", "The ")
    ui.panel.get_by_label("Max tokens").fill("20")
    ui.panel.get_by_label("Second model").select_option(second)
    ui.finish()
    expect(ui.error).to_be_empty()
    for model in (first, second):
        assert ui.output.locator("article", has_text=model).locator(".token").count(), f"{model} wrote nothing"
        expect(ui.state).to_contain_text(model)


def commands_are_exact(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """The command sends the same bytes as the page."""
    for model, tab in every_tab(tabs):
        ui.choose(model, tab, INPUT)
        command = ui.command()
        start = len(ui.requests)
        ui.finish()
        sent = [each for each in ui.requests[start:] if each.method == "POST"]
        shell = f"curl() {{ printf '%s\\0' \"$@\"; printf '\\n\\0'; }}\n{command}"
        output = subprocess.run(["sh", "-c", shell], capture_output=True, check=True).stdout.decode()
        called = [each.split("\0")[:-1] for each in output.split("\n\0")[:-1]]
        assert len(called) == len(sent), f"{model}, {tab}: {len(called)} commands for {len(sent)} requests"
        for words, request in zip(called, sent, strict=True):
            assert words[-1] == request.post_data, f"{model}, {tab}: {words[-1]} is not {request.post_data}"
            assert request.url in words, f"{model}, {tab}: the command has another address"
            assert ("-N" in words) == bool(json.loads(words[-1]).get("stream")), f"{model}, {tab}: -N"


def fits(ui: Playground, tabs: dict[str, list[str]], pictures: Path | None = None, axe: str = "") -> None:
    """In each tab the page fits into the window, has names for its fields, and a contrast of at least 4.5."""
    problems = []
    for width in WIDTHS:
        for theme in ("light", "dark"):
            ui.open(width, theme)
            ui.page.evaluate(axe)  # which defines what checks.axe() calls
            for model, tab in every_tab(tabs):
                ui.choose(model, tab, TEXT)
                ui.finish()
                if (
                    "never seen in training" in ui.error.text_content()
                ):  # the model knows the characters of its data only
                    ui.text.fill(INPUT)
                    ui.finish()
                ui.command()
                checks = ["overflow", "contrast", "names", *(["axe"] if axe else [])]
                found = [each for name in checks for each in ui.page.evaluate(f"checks.{name}()")]
                if error := ui.error.text_content():
                    found.append(error)
                problems += [f"{model}, {tab}, {width} px, {theme}: {each}" for each in found]
                if pictures:
                    ui.page.screenshot(path=pictures / f"{model}-{tab}-{width}-{theme}.png", full_page=True)
    assert not problems, "\n    ".join(["", *problems])


def is_quiet(ui: Playground, tabs: dict[str, list[str]]) -> None:
    """Nothing was written to the console, and no other host was asked for anything."""
    # Chromium itself reports answers with an error status, which this script provokes.
    problems = [message[:400] for message in ui.messages if not message.startswith("error: Failed to load resource")]
    for request in ui.requests:
        address = urlsplit(request.url)
        if address.scheme in ("http", "https", "ws", "wss") and address.netloc != urlsplit(ui.address).netloc:
            problems.append(f"requests {request.url[:200]}")
    assert not problems, "\n    ".join(["", *problems])


def writer(tabs: dict[str, list[str]]) -> str:
    """Return a language model."""
    return next(model for model, names in tabs.items() if "write" in names)


def every_tab(tabs: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield every model with each of its tabs."""
    for model, names in tabs.items():
        for name in names:
            yield model, name


def refusal(message: str) -> bytes:
    """Return an error as the server sends it."""
    return json.dumps({"error": {"message": message, "type": "t", "param": None, "code": None}}).encode()
