"""The runs of a comparison are inspected on one text, and their pages lead to each other."""

import shutil
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.comparison.comparison_page import write_report
from seriatim.comparison.inspected_rows import inspect_rows
from seriatim.inspection.together import Inspection

from ..refusals import refused
from .comparisons import small


def the_cat(run: Path) -> Inspection:
    return seriatim.inspect(run, "the cat")


@pytest.mark.exhaustive
def test_pages_lead_to_each_other(capsys, texts, tmp_path: Path, in_process: None) -> None:
    folder = tmp_path / "out"
    done = seriatim.compare(small(texts, folder), layers=["window", "rnn"], steps=2)
    report = write_report(folder, done.results)
    assert "inspect.html" not in report.read_text()
    assert main(["inspect", str(folder), "--text", "the cat"]) == 0
    pages = {name: folder / "runs" / f"{name}-1" / "inspect.html" for name in ("window", "rnn")}
    together = folder / "inspect.html"
    *first, last = capsys.readouterr().out.splitlines()
    assert (set(first), last) == ({str(page) for page in pages.values()}, str(together))
    html = together.read_text()
    assert all(f'<a href="runs/{name}-1/inspect.html">{name}</a>' in html for name in pages)
    assert 'href="report.html"' in html
    for name, other in (("window", "rnn"), ("rnn", "window")):
        html = pages[name].read_text()
        assert f'href="../{other}-1/inspect.html"' in html
        assert 'href="../../report.html"' in html
        assert 'href="../../inspect.html"' in html
        assert f'<a href="runs/{name}-1/inspect.html">{name}</a>' in report.read_text()
    assert main(["inspect", str(folder / "runs" / "rnn-1"), "--text", "a dog"]) == 0
    html = pages["rnn"].read_text()
    assert 'href="../window-1/inspect.html"' in html, "the page of one run keeps its links"
    assert 'href="../../report.html"' in html
    assert html.count("Related pages") == 1
    results = (folder / "results.json").read_text()
    for damaged in ('{"rows": []}', "[]", '{"metric": {}, "rows": []}'):
        (folder / "results.json").write_text(damaged)
        with refused("damaged", "results.json"):
            inspect_rows(folder, the_cat)
    (folder / "results.json").write_text(results)
    report.unlink()
    assert main(["inspect", str(folder / "runs" / "rnn-1"), "--text", "a dog"]) == 0
    assert "report.html" not in pages["rnn"].read_text(), "as after compare --no-report"
    shutil.rmtree(folder / "runs" / "rnn-1")
    with pytest.warns(UserWarning, match="rnn is left out"):
        left, _ = inspect_rows(folder, the_cat)
    assert left == pages["window"]
    assert "../rnn-1" not in left.read_text(), "a page has no link to a run that is not there"
    assert "rnn-1/inspect.html" not in report.read_text()
    shutil.rmtree(folder / "runs")
    with pytest.warns(UserWarning, match="is left out"), refused("missing", "window-1"):
        inspect_rows(folder, the_cat)
    assert main(["inspect", str(folder), "--text", "the cat", "--out", "page.html"]) == 2
    assert "--out: the pages of a comparison lie in the folders of its runs" in capsys.readouterr().err
