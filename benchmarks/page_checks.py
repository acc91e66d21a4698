"""What must hold of a page in a browser, at two widths, in light and dark, and on paper."""

import json
import re
import statistics
import xml.etree.ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Error, Page, Request

SCRIPT = Path(__file__).with_suffix(".js")
WIDTHS, HEIGHT = (360, 1400), 900
PAPER = 718  # the width of A4 paper between its margins, in CSS pixels
LOADS = 5
SAVING = 20_000  # milliseconds until a file comes
MAX_BYTES, MAX_SECONDS = 3_000_000, 1.0
FAILING = ("serious", "critical")
PNG = b"\x89PNG\r\n"


@dataclass
class Verdict:
    """What was measured of a page, and what is wrong with it. Remarks do not fail it."""

    size: int
    load: float = 0.0
    paint: float = 0.0
    work: float = 0.0
    violations: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the figures of the page in one line."""
        axe = ", ".join(f"{count} {impact}" for impact, count in sorted(self.violations.items())) or "none"
        times = f"load {self.load * 1000:.0f} ms (processor {self.work * 1000:.0f}), paint {self.paint * 1000:.0f} ms"
        result = f"{len(self.problems)} problems" if self.problems else "ok"
        return f"{self.size / 1e6:.2f} MB, {times}, axe: {axe}; {result}"


def check_page(browser: Browser, file: Path, *, axe: str, pictures: Path | None, name: str) -> Verdict:
    """Check a page. ``axe`` is the text of axe-core, empty to leave it out; pictures are saved in a folder."""
    verdict = Verdict(file.stat().st_size)
    if verdict.size > MAX_BYTES:
        verdict.problems.append(f"{verdict.size / 1e6:.1f} MB, more than {MAX_BYTES / 1e6:.0f}")
    address = file.resolve().as_uri()
    with browser.new_page() as page:
        events = _events(page, address)
        page.add_init_script(path=SCRIPT)
        _time(page, address, verdict)
        for width in WIDTHS:
            for theme in ("light", "dark"):
                _open(page, address, width, theme)
                where = f"at {width} px, {theme}"
                verdict.problems += [f"{where}: {each}" for each in page.evaluate("checks.overflow()")]
                if theme == "light":
                    verdict.remarks += [f"{where}: {each}" for each in page.evaluate("checks.labels()")]
                if pictures:
                    page.screenshot(path=pictures / f"{name}-{width}-{theme}.png", full_page=True)
                if axe and (width, theme) in ((WIDTHS[0], "dark"), (WIDTHS[1], "light")):  # in half of the time
                    _axe(page, axe, where, verdict)
        _open(page, address, PAPER, media="print")
        verdict.problems += [f"on paper: {each}" for each in page.evaluate("checks.overflow()")]
        if pictures:
            page.screenshot(path=pictures / f"{name}-paper.png", full_page=True)
        _open(page, address, WIDTHS[1])
        verdict.problems += [*_use(page), *events]
    return verdict


def _open(page: Page, address: str, width: int, theme: str = "light", media: str = "screen") -> None:
    """Open the page, and wait until it is loaded."""
    page.set_viewport_size({"width": width, "height": HEIGHT})
    page.emulate_media(color_scheme=theme, media=media)
    page.goto(address)


def _events(page: Page, address: str) -> list[str]:
    """Return a list to which console messages, exceptions, and requests for anything but the page will be added."""
    events: list[str] = []

    def note_request(request: Request) -> None:
        if request.url != address and not request.url.startswith(("data:", "blob:")):
            events.append(f"requests {request.url[:200]}")

    page.on("console", lambda message: events.append(f"console: {message.type}: {message.text[:300]}"))
    page.on("pageerror", lambda error: events.append(f"exception: {error.stack or error}"))
    page.on("request", note_request)
    return events


def _time(page: Page, address: str, verdict: Verdict) -> None:
    """Measure from the start of the navigation to the load event and to the first paint: medians of some loads.

    The time of the processor is that of the main thread, which other programs do not lengthen.
    """
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    times = []
    for _ in range(LOADS):
        _open(page, address, WIDTHS[1])
        while not page.evaluate("performance.getEntriesByName('first-contentful-paint').length"):
            page.wait_for_timeout(20)  # the policy of the page forbids what `wait_for_function` evaluates
        metrics = devtools.send("Performance.getMetrics")["metrics"]  # they begin anew with each load
        work = next(each["value"] for each in metrics if each["name"] == "TaskDuration")
        times.append([*page.evaluate("checks.times()"), 1000 * work])
    verdict.load, verdict.paint, verdict.work = (statistics.median(each) / 1000 for each in zip(*times, strict=True))
    if max(verdict.load, verdict.paint) > MAX_SECONDS:
        verdict.problems.append(f"loads in {max(verdict.load, verdict.paint):.1f} s, more than {MAX_SECONDS:.0f} s")


def _axe(page: Page, axe: str, where: str, verdict: Verdict) -> None:
    page.locator("details").evaluate_all("(all) => all.forEach((each) => { each.open = true; })")
    page.evaluate(axe)
    for found in page.evaluate("checks.axe()"):
        impact, count = found["impact"], found["count"]
        verdict.violations[impact] = max(verdict.violations.get(impact, 0), count)
        what = f"{where}: axe: {impact} {found['id']} × {count}: {found['where']}"
        (verdict.problems if impact in FAILING else verdict.remarks).append(what)


def _use(page: Page) -> Iterator[str]:
    """Use one part of each kind, and yield what does not answer."""
    for use in (_dim, _sort, _zoom, _choose, _explain, _browse, _step, _fold, _save):
        try:
            yield from use(page)
        except Error as error:  # a part that cannot be clicked, or a file that does not come
            yield f"{use.__name__.strip('_')}: {error.message.splitlines()[0]}"


def _dim(page: Page) -> Iterator[str]:
    label = page.locator(
        ".drawing [data-label][role=button]:visible"
    ).first  # one in a folded section cannot be clicked
    if label.count():
        label.click()
        if not page.locator(".dim").count():
            yield "a click on a legend dims nothing"
        label.click()
        if page.locator(".dim").count():
            yield "a second click on a legend leaves parts dimmed"


def _sort(page: Page) -> Iterator[str]:
    table = page.locator(".table > table:has(.sort):has(tbody tr:nth-child(3)):visible").first
    if table.count():
        numbers = table.locator("thead .number:not(:first-child)")
        heading = (numbers if numbers.count() else table.locator("thead th")).first
        directions, orders = [], []
        for click in range(4):
            if click:
                heading.locator(".sort").click()
            directions.append(heading.get_attribute("aria-sort") or "")
            orders.append(table.locator("tbody tr > :first-child").all_text_contents())
        best_first = ["descending", "ascending"] if heading.get_attribute("data-best") == "max" else None
        if directions != ["", *(best_first or ["ascending", "descending"]), ""]:
            yield f"a heading sorts as {directions}"
        elif orders[0] != orders[3] or orders[1] == orders[2]:
            yield "a heading does not change the order of the rows and restore it"


def _zoom(page: Page) -> Iterator[str]:
    """Draw a rectangle in the first plot, from a quarter to three quarters of it."""
    figure = page.locator(".chart .drawing:has(script.data):visible").first
    if figure.count():
        drawing = figure.locator("svg")
        whole = drawing.get_attribute("viewBox")
        left, top, right, bottom = json.loads(figure.locator("script.data").text_content())["plots"][0]["box"]
        scale = drawing.bounding_box()["width"] / float(whole.split()[2])
        start, end = (
            {"x": scale * (left + part * (right - left)), "y": scale * (top + part * (bottom - top))}
            for part in (0.25, 0.75)
        )
        drawing.drag_to(drawing, source_position=start, target_position=end)
        if drawing.get_attribute("viewBox") == whole:
            yield "a rectangle in a figure does not zoom"
        page.keyboard.press("Escape")
        if drawing.get_attribute("viewBox") != whole:
            yield "Escape does not restore a figure"


def _choose(page: Page) -> Iterator[str]:
    """Choose the last figure of a switch, and the last lens of a strip."""
    for kind in (".chart.switch", ".strip"):
        holder = page.locator(f"{kind}:visible:has(select)").first
        if holder.count():
            before = holder.inner_text()
            holder.locator("select").first.select_option(
                index=holder.locator("select").first.locator("option").count() - 1
            )
            if holder.inner_text() == before:
                yield f"{kind}: another choice changes nothing"


def _explain(page: Page) -> Iterator[str]:
    strip = page.locator(".strip:visible").first
    if strip.count():
        tokens = strip.locator(".token[role=button]")
        tokens.nth(tokens.count() // 2).click()
        if not strip.locator(".told").inner_text().strip() and not page.locator(".details:not([hidden])").count():
            yield "a click on a token tells nothing"


def _browse(page: Page) -> Iterator[str]:
    """Search in the items for what cannot be found."""
    search = page.locator(".items input[type=search]:visible").first
    if search.count():
        items = page.locator(".items:visible").first
        before = items.inner_text()
        search.fill("\u2603 no such text")
        page.wait_for_timeout(300)
        if items.inner_text() == before:
            yield "a search among the items changes nothing"
        search.fill("")


def _step(page: Page) -> Iterator[str]:
    stepper = page.locator(".stepper:visible").first
    if stepper.count():
        before = stepper.inner_text()
        stepper.locator("button:enabled").last.click()
        if stepper.inner_text() == before:
            yield "a step changes nothing"


def _fold(page: Page) -> Iterator[str]:
    for fold in page.locator("details").all():
        summary, before = fold.locator("summary").first, fold.get_attribute("open")
        summary.dispatch_event("click")  # the mouse does not reach one within a folded part
        if fold.get_attribute("open") == before:
            yield f"“{summary.text_content()}” does not unfold"


def _save(page: Page) -> Iterator[str]:
    """Save every figure and table, and check the files."""
    for button in page.locator(".menu button, button.tool").filter(has_text=re.compile("SVG|PNG|CSV")).all():
        with page.expect_download(timeout=SAVING) as saving:
            button.dispatch_event("click")
            page.wait_for_timeout(150)  # Chromium drops files beyond 10 in a second, which nobody reaches by hand
        name = saving.value.suggested_filename
        if problem := _file_problem(name, saving.value.path().read_bytes()):
            yield f"{name}: {problem}"


def _file_problem(name: str, content: bytes) -> str:
    if name.endswith(".svg"):
        try:
            xml.etree.ElementTree.fromstring(content)
        except xml.etree.ElementTree.ParseError as error:
            return f"is not SVG: {error}"
        return "keeps a colour of the page as a variable" if b"var(--" in content else ""
    if name.endswith(".png"):
        return "" if content.startswith(PNG) and len(content) > 1000 else "is not a picture"
    return "" if content.count(b"\n") > 1 else "has no rows"
