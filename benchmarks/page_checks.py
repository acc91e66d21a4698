"""What must hold of a page in a browser, at two widths, in light and dark, and on paper."""

import statistics
import time
import xml.etree.ElementTree
from dataclasses import dataclass, field
from pathlib import Path

from chromium import Browser, Tab

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
WIDTHS = (360, 1400)
PAPER = 718  # the width of A4 paper between its margins, in CSS pixels
LOADS = 5
SAVING = 20.0  # seconds for all files of a page
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


def check_page(browser: Browser, page: Path, *, axe: str, pictures: Path | None, name: str) -> Verdict:
    """Check a page. ``axe`` is the text of axe-core, empty to leave it out; pictures are saved in a folder."""
    verdict = Verdict(page.stat().st_size)
    if verdict.size > MAX_BYTES:
        verdict.problems.append(f"{verdict.size / 1e6:.1f} MB, more than {MAX_BYTES / 1e6:.0f}")
    tab, start = Tab(browser), len(browser.events)
    _time(tab, page, verdict)
    for width in WIDTHS:
        for dark in (False, True):
            tab.show(width, dark=dark)
            tab.open(page)
            tab.run(SCRIPT)
            where = f"at {width} px, {'dark' if dark else 'light'}"
            verdict.problems += [f"{where}: {each}" for each in tab.run("checks.overflow()")]
            if not dark:
                verdict.remarks += [f"{where}: {each}" for each in tab.run("checks.labels()")]
            if pictures:
                tab.picture(pictures / f"{name}-{width}-{'dark' if dark else 'light'}.png", whole=True)
            if axe and dark == (width == WIDTHS[0]):  # both widths and both themes, in half of the time
                _axe(tab, axe, where, verdict)
    tab.show(PAPER, paper=True)
    tab.open(page)
    tab.run(SCRIPT)
    verdict.problems += [f"on paper: {each}" for each in tab.run("checks.overflow()")]
    if pictures:
        tab.picture(pictures / f"{name}-paper.png", whole=True)
    tab.show(WIDTHS[1])
    tab.open(page)
    tab.run(SCRIPT)
    _use(tab, verdict)
    _report_events(browser.events[start:], page, verdict)
    return verdict


def _time(tab: Tab, page: Path, verdict: Verdict) -> None:
    """Measure from the start of the navigation to the load event and to the first paint: medians of some loads.

    The time of the processor is that of the main thread, which other programs do not lengthen.
    """
    tab.show(WIDTHS[1])
    tab.send("Performance.enable", timeDomain="threadTicks")
    times = []
    for _ in range(LOADS):
        before = _busy(tab)
        tab.open(page)
        work = _busy(tab)
        tab.run(SCRIPT)
        times.append((*tab.run("checks.times()"), work - before if work > before else work))
    loads, paints, works = ([value or 0.0 for value in each] for each in zip(*times, strict=True))
    verdict.load, verdict.paint = statistics.median(loads) / 1000, statistics.median(paints) / 1000
    verdict.work = statistics.median(works)
    if max(verdict.load, verdict.paint) > MAX_SECONDS:
        verdict.problems.append(f"loads in {max(verdict.load, verdict.paint):.1f} s, more than {MAX_SECONDS:.0f} s")


def _busy(tab: Tab) -> float:
    """Return the seconds that the main thread of a tab has worked."""
    return next(
        each["value"] for each in tab.send("Performance.getMetrics")["metrics"] if each["name"] == "TaskDuration"
    )


def _axe(tab: Tab, axe: str, where: str, verdict: Verdict) -> None:
    tab.run("for (const each of document.querySelectorAll('details')) each.open = true")
    tab.run(f"{axe};0")
    for found in tab.run("checks.axe()"):
        impact, count = found["impact"], found["count"]
        verdict.violations[impact] = max(verdict.violations.get(impact, 0), count)
        what = f"{where}: axe: {impact} {found['id']} × {count}: {found['where']}"
        (verdict.problems if impact in FAILING else verdict.remarks).append(what)


def _use(tab: Tab, verdict: Verdict) -> None:
    """Click on one part of each kind, and state what does not answer."""
    if place := tab.run("checks.legend()"):
        tab.click(*place)
        if not tab.run("checks.dimmed()"):
            verdict.problems.append("a click on a legend dims nothing")
        tab.click(*place)
        if tab.run("checks.dimmed()"):
            verdict.problems.append("a second click on a legend leaves parts dimmed")
    if place := tab.run("checks.sort()"):
        _sort(tab, place, verdict)
    if places := tab.run("checks.zoom()"):
        whole = tab.run("checks.view()")
        for kind, at in (("mouseMoved", 0), ("mousePressed", 0), ("mouseMoved", 1), ("mouseReleased", 1)):
            tab.mouse(kind, *places[at])
        if tab.run("checks.view()") == whole:
            verdict.problems.append("a rectangle in a figure does not zoom")
        tab.run("document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }))")
        if tab.run("checks.view()") != whole:
            verdict.problems.append("Escape does not restore a figure")
    if place := tab.run("checks.token()"):
        tab.click(*place)
        if not tab.run("checks.box()"):
            verdict.problems.append("a click on a token shows no box")
    verdict.problems += tab.run("checks.folded()")
    _save(tab, verdict)


def _sort(tab: Tab, place: list[float], verdict: Verdict) -> None:
    orders = [tab.run("checks.order()")]
    for _ in range(3):
        tab.click(*place)
        orders.append(tab.run("checks.order()"))
    if [order[0] for order in orders] != ["", "ascending", "descending", ""]:
        verdict.problems.append(f"a heading sorts as {[order[0] for order in orders]}")
    elif orders[0] != orders[3] or orders[1][1:] == orders[2][1:]:
        verdict.problems.append("a heading does not change the order of the rows and restore it")


def _save(tab: Tab, verdict: Verdict) -> None:
    """Save every figure and table, and check the files."""
    browser = tab.browser
    start = len(browser.events)
    count = tab.run("checks.save()")
    begun: list[dict[str, str]] = []
    deadline = time.monotonic() + SAVING
    while time.monotonic() < deadline:
        tab.run("new Promise((done) => setTimeout(done, 100))")
        events = browser.events[start:]
        begun = [each["params"] for each in events if each["method"] == "Browser.downloadWillBegin"]
        states = [each["params"] for each in events if each["method"] == "Browser.downloadProgress"]
        if len(begun) == count and len({each["guid"] for each in states if each["state"] == "completed"}) == count:
            break
    else:
        verdict.problems.append(f"{count} buttons saved {len(begun)} files")
    for file in browser.downloads.glob("*"):
        if problem := _file_problem(file):
            verdict.problems.append(f"{file.name}: {problem}")
        file.unlink()


def _file_problem(file: Path) -> str:
    content = file.read_bytes()
    if file.suffix == ".svg":
        try:
            xml.etree.ElementTree.fromstring(content)
        except xml.etree.ElementTree.ParseError as error:
            return f"is not SVG: {error}"
        return "keeps a colour of the page as a variable" if b"var(--" in content else ""
    if file.suffix == ".png":
        return "" if content.startswith(PNG) and len(content) > 1000 else "is not a picture"
    return "" if content.count(b"\n") > 1 else "has no rows"


def _report_events(events: list[dict], page: Path, verdict: Verdict) -> None:
    """Add console messages, exceptions, and requests for anything but the page itself."""
    for event in events:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled":
                texts = [str(each.get("value", each.get("description"))) for each in parameters["args"]]
                verdict.problems.append(f"console: {parameters['type']}: {' '.join(texts)[:300]}")
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                verdict.problems.append(
                    f"exception: {details.get('exception', {}).get('description', details['text'])}"
                )
            case "Log.entryAdded":
                verdict.problems.append(f"console: {parameters['entry']['level']}: {parameters['entry']['text'][:300]}")
            case "Network.requestWillBeSent":
                address = parameters["request"]["url"]
                if address != page.resolve().as_uri() and not address.startswith(("data:", "blob:")):
                    verdict.problems.append(f"requests {address[:200]}")
