"""The playground contains everything it needs, its policy allows nothing else, and its parts fit together."""

import base64
import hashlib
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from seriatim.pages.palette import DARK, LIGHT
from seriatim.serving.playground import SCRIPTS, TEMPLATES, playground_html, playground_policy

HTML = playground_html()
(STYLE,) = re.findall(r"<style>(.*?)</style>", HTML, re.DOTALL)
(SCRIPT,) = re.findall(r"<script>(.*?)</script>", HTML, re.DOTALL)
BODY = HTML.replace(STYLE, "").replace(SCRIPT, "")
RULES = dict(rule.split(" ", 1) for rule in playground_policy().split("; "))
VOID = {"meta", "link", "input", "img", "br"}
FIELDS = ("input", "select", "textarea")
NAMESPACE = "http://www.w3.org/2000/svg"  # a name, from which nothing is fetched


class Elements(HTMLParser):
    """The elements of a page; fails where its tags do not balance."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.all: list[tuple[str, dict[str, str]]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def ids(self, *tags: str) -> list[str]:
        return [attributes["id"] for tag, attributes in self.all if "id" in attributes and (not tags or tag in tags)]


ELEMENTS = Elements(BODY)


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_policy_allows_the_one_script_and_the_one_style() -> None:
    assert RULES["script-src"] == digest(SCRIPT)
    assert RULES["style-src"] == digest(STYLE)


def test_the_policy_allows_nothing_of_other_servers() -> None:
    for name in ("default-src", "base-uri", "form-action", "frame-ancestors"):
        assert RULES.pop(name) == "'none'"
    assert RULES.pop("img-src") == "data:"
    assert {name for name, value in RULES.items() if value == "'self'"} == {"connect-src", "frame-src"}


def test_the_page_names_no_other_address() -> None:
    assert re.findall(r"(?:https?:)?//[a-z0-9][^\s\"'`]*", BODY + STYLE) == []
    assert "//" not in re.sub(r"(^|\s)//.*", "", SCRIPT.replace(NAMESPACE, ""))
    assert "url(" not in STYLE
    assert "@import" not in STYLE
    for _, attributes in ELEMENTS.all:
        for name in ("src", "href", "action", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:"))


def test_no_text_becomes_markup_or_code() -> None:
    for name in (
        *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "srcdoc", "setHTML", "DOMParser"),
        *("eval(", "new Function", "createContextualFragment", "javascript:", "import("),
    ):
        assert name not in SCRIPT
    assert not re.search(r"\.on[a-z]+ = ", SCRIPT)


def test_elements_have_no_handlers_and_no_styles() -> None:
    for tag, attributes in ELEMENTS.all:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag


def test_ids_are_unique_and_exist_where_they_are_used() -> None:
    ids = ELEMENTS.ids()
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'getElementById\("([^"]+)"\)', SCRIPT))
    used |= set(re.findall(r'super\("([a-z]+)"', SCRIPT))  # the sections of the panels
    used |= {attributes["for"] for tag, attributes in ELEMENTS.all if tag == "label"}
    assert used <= set(ids)


def test_every_field_has_one_label() -> None:
    labels = [attributes["for"] for tag, attributes in ELEMENTS.all if tag == "label"]
    assert sorted(labels) == sorted(ELEMENTS.ids(*FIELDS))
    assert all("id" in attributes for tag, attributes in ELEMENTS.all if tag in FIELDS)


def test_fields_for_texts_follow_the_direction_of_the_text() -> None:
    assert all(attributes["dir"] == "auto" for tag, attributes in ELEMENTS.all if tag == "textarea")


def test_colours_are_those_of_the_palette_in_both_themes() -> None:
    assert LIGHT.keys() == DARK.keys()
    for name in LIGHT:
        assert f"--{name}: {LIGHT[name]};" in STYLE
        assert STYLE.count(f"--{name}: {DARK[name]};") == 2  # the theme of the system, and the chosen one
    outside = STYLE[: STYLE.index(f"--paper: {LIGHT['paper']}")]
    assert re.findall(r"#[0-9a-f]{3,8}\b(?=[;\s])", outside) == []


def test_variables_are_defined() -> None:
    defined = set(re.findall(r"(--[a-z0-9-]+):", STYLE)) | set(re.findall(r'setProperty\("(--[a-z0-9-]+)"', SCRIPT))
    own = (TEMPLATES / "playground.css").read_text(encoding="utf-8")
    assert set(re.findall(r"var\((--[a-z0-9-]+)", own)) <= defined


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_enough_contrast(theme: dict[str, str]) -> None:
    assert contrast(theme["soft"], theme["paper"]) >= 4.5
    assert contrast(theme["ink"], mixed(theme["c2"], theme["paper"], 0.52)) >= 4.5  # the darkest token
    for name in [name for name in theme if re.fullmatch(r"c\d+", name)]:
        assert contrast(theme["ink"], mixed(theme[name], theme["paper"], 0.16)) >= 4.5  # a tag


def channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def mixed(first: str, second: str, share: float) -> str:
    pairs = zip(channels(first), channels(second), strict=True)
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in pairs)


def contrast(first: str, second: str) -> float:
    """The contrast of two colours (WCAG 2.2)."""
    dark, light = sorted(map(luminance, (first, second)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    values = [value / 255 for value in channels(colour)]
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_template_is_used() -> None:
    assert {path.name for path in TEMPLATES.iterdir()} == {"playground.html", "playground.css", *SCRIPTS}
    assert "{{" not in BODY


def test_the_page_needs_neither_matplotlib_nor_jinja2() -> None:
    code = "import sys, seriatim.serving.playground as page; page.playground_html(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"matplotlib", "jinja2", "torch", "numpy", "starlette"} & set(done.stdout.split())
