"""Hooks of the documentation site: add the pages that lie outside docs/ and rewrite links between them.

README.md, CONTRIBUTING.md, CHANGELOG.md and benchmarks/RESULTS.md are pages of the site. Links to and from these files
are written for the repository. On the site all pages except the API reference lie in one folder.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "results.md",
}
LINK = re.compile(r"(\]\(|^\[.+\]: )(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(\)|$)", re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages and the pictures that lie outside docs/."""
    for source, target in PAGES.items():
        text = rewrite_links((ROOT / source).read_text(encoding="utf-8"), (ROOT / source).parent)
        files.append(File.generated(config, target, content=text))
    for picture in sorted((ROOT / "benchmarks").rglob("*.png")):
        files.append(File.generated(config, str(picture.relative_to(ROOT)), abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, *, page: object, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page of docs/ that lead out of docs/."""
    del page, config, files
    return rewrite_links(markdown, ROOT / "docs") if "](../" in markdown else markdown


def rewrite_links(text: str, folder: Path) -> str:
    """Return the text with its relative links changed from places in the repository to places on the site.

    Args:
        text: a page in Markdown.
        folder: the folder of the repository in which the page lies.
    """

    def rewrite(match: re.Match[str]) -> str:
        before, target, anchor, after = match.groups()
        try:
            place = (folder / target).resolve().relative_to(ROOT).as_posix()
        except ValueError:
            return match[0]
        place = PAGES.get(place, place.removeprefix("docs/"))
        return f"{before}{place}{anchor or ''}{after}"

    return LINK.sub(rewrite, text)
