"""The kit for pages: the page itself, its theme, charts, axes and number formats."""

from importlib.util import find_spec


def missing_packages() -> list[str]:
    """Return the packages that pages need and that are not installed."""
    return [name for name in ("matplotlib", "jinja2") if find_spec(name) is None]
