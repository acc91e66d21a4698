"""Reads a page as a tree, finds the numbers in its text, and keeps what was compared with what was recomputed."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "link", "input", "br", "img", "hr", "wbr"}
UNSEEN = {"svg", "script", "style", "select", "head", "nav"}
APART = {"small", "td", "th", "p", "div", "dt", "dd"}
UNITS = {"μs": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6, "%": 0.01}
UNITS |= {f"{prefix}{unit}": 1e3**i for i, prefix in enumerate(("", "k", "M", "G", "T")) for unit in ("", "B")}
NUMBER = re.compile(
    r"(?<![\w.,'#&])([−-]?)\+?(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(e[+-]\d+)?"
    r"(?:\s?(%|μs|ms|min|[kMGT]?B|[sh]|[kMGT])(?![\w′'-]))?(?![\w]|\.\d)"
)
RANGE = re.compile(r"([\d.,]+) to ([\d.,]+) (%|μs|ms|s|min|h|[kMGT]?B)(?!\w)")


class Node:
    """An element of a page."""

    def __init__(self, tag: str, attributes: dict[str, str], parent: "Node | None") -> None:
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.children: list[Node | str] = []

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def text(self) -> str:
        """The text of it and of what it contains."""
        found = "".join(
            each if isinstance(each, str) else f" {each.text}" if each.tag in APART else each.text
            for each in self.children
        )
        return found.replace("\N{NO-BREAK SPACE}", " ").replace("\N{ZERO WIDTH SPACE}", "")

    def all(self, tag: str = "", kind: str = "") -> list["Node"]:
        """Return the elements within it, in their order, by tag and class."""
        return [
            each
            for each in self.walk()
            if each is not self and (not tag or each.tag == tag) and (not kind or kind in each.classes)
        ]

    def walk(self, *, but: set[str] = frozenset()) -> Iterator["Node"]:  # type: ignore[assignment]
        yield self
        for each in self.children:
            if isinstance(each, Node) and each.tag not in but:
                yield from each.walk(but=but)

    def data(self, kind: str = "data") -> list[Any]:
        """Return what the scripts within it read."""
        return [json.loads(each.text) for each in self.all("script", kind)]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = self.at = Node("", {}, None)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs}, self.at)
        self.at.children.append(node)
        if tag not in VOID:
            self.at = node

    def handle_endtag(self, tag: str) -> None:
        at = self.at
        while at.parent is not None and at.tag != tag:
            at = at.parent
        self.at = at.parent or self.at

    def handle_data(self, data: str) -> None:
        self.at.children.append(data)


def read_page(path: Path) -> Node:
    """Return the body of a page."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.root.all("body")[0]


def words_unfolded(body: Node) -> int:
    """Return how many words, not numbers, a reader sees before anything is unfolded, figures apart."""

    def seen(node: Node) -> str:
        if node.tag in UNSEEN or {"aside", "narrow", "skip", "static"} & set(node.classes):
            return ""
        if "option" in node.classes and node is not node.parent.all(kind="option")[0]:
            return ""
        if node.tag == "tbody" and any("items" in each.classes for each in parents(node)):
            first = 3 if node.all("span", "word") else 10  # what the script shows first
            return " ".join(map(seen, node.all("tr")[:first]))
        inner = node.all("summary")[:1] if node.tag == "details" else node.children
        between = "" if "bits" in node.classes or "tokens" in node.classes else " "
        return between.join(each if isinstance(each, str) else seen(each) for each in inner)

    return sum(any(map(str.isalpha, word)) for word in seen(body).split())


def parents(node: Node) -> Iterator[Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def numbers(text: str) -> list[tuple[float, float, str]]:
    """Return each number of a text in the smallest unit (ms, bytes, or the whole), with that of its last digit."""
    found = []
    for sign, whole, fraction, power, unit in NUMBER.findall(RANGE.sub(r"\1 \3 to \2 \3", text)):
        scale = UNITS[unit] * float(f"1{power}" if power else 1)
        value = float(f"{whole.replace(',', '')}{fraction}") * scale
        if not fraction and not power and unit == "" and whole.endswith("0") and len(whole) > 2:
            digits = len(whole.replace(",", "")) - len(whole.replace(",", "").rstrip("0"))
            step = 10.0**digits
        else:
            step = scale * 10.0 ** -max(0, len(fraction) - 1)
        found.append((-value if sign else value, step, f"{sign}{whole}{fraction}{power}{unit}"))
    return found


class Checked:
    """What was compared on one page."""

    def __init__(self, name: str, body: Node) -> None:
        self.name, self.body, self.count, self.found = name, body, 0, 0
        self.wrong: list[tuple[str, object, object]] = []
        self.unknown: Counter[str] = Counter()
        self.done: set[int] = set()

    def same(self, where: str, shown: object, recomputed: object) -> None:
        """Compare what must be the same."""
        self.count += 1
        if shown != recomputed:
            self.wrong.append((where, shown, recomputed))

    def close(self, where: str, shown: float | None, recomputed: float | None, error: float = 2e-6) -> None:
        """Compare a number that the page has with many digits."""
        self.count += 1
        known = [None if value is None or not math.isfinite(value) else value for value in (shown, recomputed)]
        if (known[0] is None) != (known[1] is None) or (
            known[0] is not None and abs(known[0] - known[1]) > error * max(1e-9, abs(known[1])) + 1e-9
        ):
            self.wrong.append((where, shown, recomputed))

    def text(self, where: str, node: Node | str, recomputed: Sequence[float | None]) -> None:
        """Compare all numbers of a text, in their order; each may differ by half of its last digit."""
        text = node if isinstance(node, str) else node.text
        shown, known = numbers(text), [value for value in recomputed if value is not None]
        if isinstance(node, Node):
            self.done |= {id(each) for each in node.walk()}
        if len(shown) != len(known):
            self.wrong.append((where, text.strip()[:160], [float(f"{value:.5g}") for value in known]))
        for (value, step, raw), right in zip(shown, known, strict=False):
            self.count += 1
            if f"<{raw}" in text and right < value:  # a value that has no digit among those of its column
                continue
            if abs(value - right) > 0.501 * step + 1e-9 * abs(right):
                self.wrong.append((where, f"{raw} in {text.strip()[:80]!r}", right))

    def rest(self, pool: Sequence[float]) -> None:
        """Look up every number that was not compared yet among those of the results; name those that are not there."""
        known = sorted(value for value in pool if math.isfinite(value))
        for node in self.body.walk(but=UNSEEN):
            if id(node) in self.done or node.tag in ("code", "pre"):
                continue
            for text in (each for each in node.children if isinstance(each, str)):
                for value, step, raw in numbers(text.replace("\N{NO-BREAK SPACE}", " ")):
                    if any(abs(value - each) <= 0.501 * step + 1e-9 for each in known):
                        self.found += 1
                    else:
                        self.unknown[f"{raw} in {' '.join(text.split())[:90]!r}"] += 1
