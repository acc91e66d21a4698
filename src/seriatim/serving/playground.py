"""The playground of the server: one page that calls the HTTP API, and the policy that a browser applies to it.

The page is built from the files in ``templates`` and the style and the first script of `pages`, whose look it has.
It contains everything it needs, and connects to the server that it came from and to nothing else.
"""

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..pages.palette import DARK, LIGHT

TEMPLATES = Path(__file__).parent / "templates"
PAGE_TEMPLATES = Path(__file__).parents[1] / "pages" / "templates"
SCRIPTS = ("requests.js", "tokens.js", "answers.js", "panels.js", "start.js")
"""The parts of the script, in their order; they come after the first script of the kit for pages."""


@functools.cache
def playground_html() -> str:
    """Return the page, which is the same for all servers: it asks for the models when it is opened."""
    html = (TEMPLATES / "playground.html").read_text(encoding="utf-8")
    return html.replace("{{ style }}", _style()).replace("{{ script }}", _script())


@functools.cache
def playground_policy() -> str:
    """Return the value of the header ``Content-Security-Policy`` with which the page must be sent.

    It allows the one script and the one style of the page, requests and frames of the same server, and nothing else.
    """
    rules = (
        "default-src 'none'",
        f"script-src '{_digest(_script())}'",
        f"style-src '{_digest(_style())}'",
        "connect-src 'self'",
        "frame-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    return "; ".join(rules)


@functools.cache
def _style() -> str:
    dark = f"color-scheme: dark; {_variables(DARK)}"
    themes = (
        f":root {{ {_variables(LIGHT)} }}",
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}',
        f':root[data-theme="dark"] {{ {dark} }}',
    )
    files = (PAGE_TEMPLATES / "page.css", PAGE_TEMPLATES / "strip.css", TEMPLATES / "playground.css")
    return "\n".join((*_texts(files), *themes))


@functools.cache
def _script() -> str:
    files = (PAGE_TEMPLATES / "page.js", *(TEMPLATES / name for name in SCRIPTS))
    return "\n".join(_texts(files))


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def _texts(files: Sequence[Path]) -> list[str]:
    return [file.read_text(encoding="utf-8") for file in files]


def _digest(text: str) -> str:
    """Return the hash of an inline script or style as a source of the policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
