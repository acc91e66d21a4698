"""The figures of `benchmarks/RESULTS.md`, and those that the guide shows of them, are what scripts have recorded."""

import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch):
    """The module that writes records and the sections of the page."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import record

    return record


def test_the_pages_show_what_the_records_hold(record) -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in record.PAGES}
    for page, text in texts.items():
        assert record.with_sections(text) == text, f"python benchmarks/record.py writes {page.name} from the records"
        assert len(record.SECTION.findall(text)) == text.count("<!-- record: ")
    shown = {found[1] for found in record.SECTION.finditer(texts[record.RESULTS]) if found[2] is None}
    assert shown == {path.stem for path in record.FOLDER.glob("*.json")}


def test_a_record_says_what_its_figures_depend_on(record) -> None:
    for path in record.FOLDER.glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["claims"].keys(), path.name
        assert {"name", "threads", "torch", "python"} <= content["machine"].keys()
        assert content["commit"]
        assert "changes" not in content["commit"], f"{path.name} was measured with code that is in no commit"
        for settings in content["settings"].values():
            assert {"model", "training", "tokenizer"} <= settings.keys()
            assert None not in (settings["model"]["dropout"], settings["training"]["baseline"])


def test_another_figure_on_the_page_is_found(record) -> None:
    text = record.RESULTS.read_text(encoding="utf-8")
    first = next(record.SECTION.finditer(text))
    digit = next(i for i in range(first.end(), first.start(), -1) if text[i].isdigit())
    wrong = text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :]
    assert record.with_sections(wrong) == text


def test_a_setting_that_is_left_to_a_default_is_refused(record, texts, tmp_path: Path) -> None:
    import seriatim

    from .conftest import small_config

    stated = small_config(texts, tmp_path / "run", training={**record.TRAINING, "steps": 1})
    stated["model"] |= {"dropout": 0.0, "bidirectional": False}
    run = seriatim.train(stated)
    assert record.settled(run, stated)["training"]["learning_rate"] == 0.01
    del stated["model"]["dropout"]
    run.config = run.config.replaced({"model.dropout": 0.3})  # as a default that follows the data may choose it
    with pytest.raises(SystemExit, match=r"model\.dropout must be stated"):
        record.settled(run, stated)
    assert record.settled(run, stated, but=["model.dropout"])["model"]["dropout"] == 0.3
