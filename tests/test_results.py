"""The figures of `benchmarks/RESULTS.md`, and those that README and the guide show, are what scripts have recorded."""

import json
import re
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
NUMBER = r"(?<![\w/.,])\d+(?:,\d{3})*(?:\.\d+)?"
UNIT = (
    r"(?:ms|µs|ns|s|seconds?|minutes?|hours?|kB|MB|GB|TB|MB/s|GB/s|GF/s|tokens/s|%|times|nats?|bits?|points?|BLEU"
    r"|(?:tokens|words|characters|lines) a second|of the (?:time|speed|memory))"
)
METRIC = r"(?:perplexity|accuracy|F1|BLEU|loss|error)"
MEASURED = re.compile(
    rf"{NUMBER}(?:(?: to |–){NUMBER})?\*{{0,2}}\s?{UNIT}(?![\w/])|{METRIC}(?:\s\w+){{0,3}}\s{NUMBER}|\d\.\d{{3,}}"
)
"""A number with the unit of a measurement, or behind the name of a metric, or with three decimals."""
GENERATED = re.compile(r"```.*?```|`[^`\n]*`|<!-- (record|table): .*?<!-- end of \1 -->|\]\([^)]*\)|95 %", re.DOTALL)
"""Examples, code, tables that are made from figures, addresses, and the level of intervals."""
NOT_MEASURED = {
    "comparing.md": "3 %, 10 %, 2 %, 2 minutes, 1.2 MB",  # limits and defaults, as on all pages below
    "configuration.md": "5 %",
    "defaults.md": "1 %, 15 %, 0.4 times, 1 MB, 50 kB, 20 minutes, 0.998, 0.003, 0.006, 90 minutes",
    "factorisations.md": "80 %, 10 %, loss 0",
    "generating.md": "16 bits, 4.5 bits",
    "importing.md": "20 nats",
    "inspecting.md": "5 %, 0.02 bits, 2 bits",
    "linear-models.md": "64 MB",
    "ngrams.md": "0.4 times, 80 %, 63 bits",
    "options.md": "5 times",
    "reliability.md": "5 seconds, 256 MB",
    "scaling.md": "30 seconds, 70 %, 20 µs, 2 GB/s, 50,000 hours, 256 GB, 64 bits",  # and assumptions
    "serving.md": "10 ms, 256 MB, 30 s, 10 seconds, 30 seconds",
    "tasks.md": "0.1 seconds, 1 second, 16 MB, 80 %, 10 %, 1 %, 5 %, 5 times",
    "training.md": "32 MB, 25 times, 256 MB, 1 MB",
}
"""What is no measurement on a page: limits, defaults, definitions and assumptions."""


COUNTED = ("ngram", "bag", "features", "rules")


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch):
    """The module that writes records and pages."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import record

    return record


@pytest.fixture
def written(record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Return the text of a record that a script has written, with a ranged figure, a plain one and repeated ones."""

    def write(name: str = "mine", *arguments: str, **changed: object) -> Path:
        monkeypatch.setattr(record, "FOLDER", tmp_path)
        monkeypatch.setattr(sys, "argv", [f"benchmarks/{name}.py", *arguments])
        monkeypatch.setattr(record.machine, "product_rate", lambda dtype: 1.0)
        found = {
            "claims": [record.Claim(text="as fast", reached=True, peer="torch", ours="2 s", theirs="3 s", ratio=1.5)],
            "settings": {"turns": 3},
            "figures": {"loss": 2.0, "loss_low": 1.5, "loss_high": 2.5, "size": 7, "seconds": [3.0, 1.0, 2.0]},
            "tables": [[["layer", "seconds"], ["gru", 2.0]]],
        }
        record.save(name, **{**found, **changed})
        return tmp_path / f"{name}.json"

    return write


# The records and pages of the project


def test_the_pages_show_what_the_records_hold(record) -> None:
    for page, text in record.pages().items():
        written = page.read_text(encoding="utf-8")
        assert written == text, f"`python benchmarks/record.py` writes {page.name} from the records"
        assert len(record.TABLE.findall(text)) == text.count("<!-- record: ")


def test_no_other_figure_is_measured(record) -> None:
    """What is neither a figure of a record nor a limit, a default, a definition or an assumption must go."""
    for page in record.PAGES:
        text = GENERATED.sub("", record.FIGURE.sub("", record.SOURCE.sub("", page.read_text(encoding="utf-8"))))
        known = set(filter(None, NOT_MEASURED.get(page.name, "").split(", ")))
        found = {" ".join(one[0].replace("*", "").split()) for one in MEASURED.finditer(text)}
        assert found <= known, f"{page.name}: {sorted(found - known)} is in no record"
        assert known <= found, f"{page.name}: {sorted(known - found)} is no longer there"


def test_a_record_says_what_its_figures_depend_on(record) -> None:
    for one in record.read_all():
        assert one.claims, one.name
        assert not re.search(r'"/\w', one.model_dump_json()), f"{one.name} holds a path of one machine"
        assert "changes" not in one.commit, f"{one.name} was measured with code that is in no commit"
        assert re.fullmatch(r"[\w ,-]+", one.title), "the address of a section follows from its title"
        for settings in one.settings.values():
            if "task" in settings:
                assert {"model", "training", "tokenizer"} <= settings.keys()
                if settings["model"]["layer"] not in COUNTED:
                    assert None not in (settings["model"]["dropout"], settings["training"]["baseline"])


def test_every_record_can_be_measured_again(record) -> None:
    missing = {one.name for one in record.read_all()} - record.RUNS.keys()
    assert not missing, f"benchmarks/runs.py lacks the command of {missing}"
    assert all((BENCHMARKS / run.script).exists() for run in record.RUNS.values())
    scripts = {run.title: run.script for run in record.RUNS.values()}
    assert all(scripts[run.title] == run.script for run in record.RUNS.values()), "a section is that of one script"


# What the module does


def test_a_record_holds_what_was_saved(record, written) -> None:
    written(peers=["torch"], notes="  two\n lines ")
    one = record.read("mine")
    assert one.figures == {"loss": (2.0, 1.5, 2.5), "size": (7, 7, 7), "seconds": (2.0, 1.0, 3.0)}
    assert one.settings == {"arguments": {"turns": 3}}
    assert (one.notes, one.tables[0][1]) == ("two lines", ["gru", "2.0"])
    assert one.peers["torch"] == one.machine.torch
    assert record.as_text(one) == (record.FOLDER / "mine.json").read_text(encoding="utf-8")


def test_a_script_that_is_run_by_itself_writes_no_record(record, written, capsys, monkeypatch) -> None:
    assert not written("names").exists()
    assert "not written" in capsys.readouterr().out
    monkeypatch.setenv("SERIATIM_RECORD", "names")
    monkeypatch.setitem(record.RUNS, "names", record.RUNS["names"]._replace(command="names.py --names DATA/names.txt"))
    assert written("names", "--names", "/data/names.txt", "--seeds", "1").exists()
    assert record.read("names").command == "names.py --names DATA/names.txt --seeds 1"


def test_a_figure_has_moved_if_the_ranges_do_not_overlap(record, written) -> None:
    import figures

    written()
    before = record.read("mine")
    written(figures={"loss": record.Figure(2.7, 2.4, 3.0), "size": 7.05, "seconds": [3.5, 4.0], "more": 1})
    said = list(figures.moved(before, record.read("mine")))
    assert [line.split()[0] for line in said] == ["seconds", "more"]
    assert "moved" in said[0]
    assert "new" in said[1]


def test_what_cannot_be_measured_is_one_line(record, monkeypatch, tmp_path: Path) -> None:
    import figures

    run = record.RUNS["names"]
    assert list(figures.measure("names", None)) == ["names: left out; name the folder of corpora with --data"]
    (said,) = figures.measure("names", tmp_path)
    assert said.endswith("names.txt is missing")
    (tmp_path / "failing.py").write_text("raise SystemExit('no peer here')")
    monkeypatch.setitem(figures.RUNS, "names", run._replace(command=str(tmp_path / "failing.py")))
    assert list(figures.measure("names", None)) == ["names: failed: no peer here"]
    (tmp_path / "failing.py").write_text("")
    (said,) = figures.measure("names", None)
    assert said.startswith("names: has written no")


def test_a_script_that_finds_a_fault_has_still_measured(record, written, monkeypatch, tmp_path: Path) -> None:
    import figures

    text = written("other").read_text(encoding="utf-8").replace('"name": "other"', '"name": "names"')
    script = tmp_path / "faulty.py"
    text = text.replace('"command": "other.py"', f'"command": "{script}"')
    (tmp_path / "other.json").write_text(text, encoding="utf-8")
    script.write_text("import shutil\nshutil.copy('other.json', 'names.json')\nraise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(record.RUNS, "names", record.RUNS["names"]._replace(command=str(script)))
    said = list(figures.measure("names", None))
    assert said
    assert all("is new" in line for line in said)


@pytest.mark.parametrize("word", ["DATA", "DATA/names.txt"])
def test_every_command_names_what_it_lacks(record, monkeypatch, tmp_path: Path, word: str) -> None:
    import figures

    monkeypatch.setitem(record.RUNS, "names", record.RUNS["names"]._replace(command=f"names.py --names {word}"))
    (said,) = figures.measure("names", tmp_path / "nowhere")
    assert said == f"names: left out; {word.replace('DATA', str(tmp_path / 'nowhere'))} is missing"


DAMAGED = {
    "of another claim": {"name": "other"},
    "without a command": {"command": ""},
    "reached is no boolean": {"claims": [{"text": "fast", "reached": "yes"}]},
    "a figure is NaN": {"figures": {"loss": [1.0, float("nan"), 2.0]}},
    "an empty table": {"tables": [[]]},
    "rows of other lengths": {"tables": [[["a", "b"], ["1"]]]},
    "defaults of no task": {"settings": {"a": {"defaults": "x"}}},
    "defaults of an unknown task": {"settings": {"a": {"defaults": "x", "task": "dance"}}},
    "negative minutes": {"minutes": -1.0},
}
"""What a record may hold instead of what it should."""


@pytest.mark.parametrize("fault", ["missing", "a folder", "no JSON", "without claims", "of another script", *DAMAGED])
def test_a_bad_record_is_one_line(record, written, monkeypatch, fault: str) -> None:
    path = written()
    content = json.loads(path.read_text(encoding="utf-8"))
    if fault == "missing":
        path.unlink()
    elif fault == "a folder":
        path.unlink()
        path.mkdir()
    elif fault == "no JSON":
        path.write_text("{", encoding="utf-8")
    elif fault == "without claims":
        path.write_text(json.dumps({key: value for key, value in content.items() if key != "claims"}))
    elif fault == "of another script":
        monkeypatch.setitem(record.RUNS, "mine", record.RUNS["names"])
    else:
        path.write_text(json.dumps({**content, **DAMAGED[fault]}))
    with pytest.raises(record.RecordError, match=r"mine\.json: .*; .*figures\.py mine") as raised:
        record.read("mine")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("shown", ["[1][mine: missing]", "<!-- record: mine, table 9 -->\n\n<!-- end of record -->"])
def test_a_page_that_shows_what_a_record_lacks_is_refused(record, written, shown: str) -> None:
    written()
    with pytest.raises(record.RecordError, match="mine has no"):
        record.with_figures(shown, BENCHMARKS.parent / "docs" / "page.md")


def test_figures_and_tables_of_a_page_are_those_of_the_record(record, written) -> None:
    written()
    page = BENCHMARKS.parent / "docs" / "page.md"
    text = "A loss of [9][mine: loss .2f].\n\n<!-- record: mine, table 1 -->\n\n| old |\n\n<!-- end of record -->\n"
    shown = record.with_figures(text, page)
    assert "A loss of [2.00][mine: loss .2f]." in shown
    assert "| gru | 2.0 |" in shown
    assert "old" not in shown
    assert shown.endswith("\n\n[mine: loss .2f]: ../benchmarks/RESULTS.md#mine\n")
    assert record.with_figures(shown, page) == shown


def test_the_page_of_results_has_at_most_600_lines_and_25_claims(record, written) -> None:
    claims = {f"claim {i}": True for i in range(3)}
    for i in range(20):
        written(f"mine-{i}", claims=claims, tables=[[["number"], *([j] for j in range(50))]])
    text = record.results(record.read_all())
    assert text.count("\n") <= record.MAX_LINES
    assert text.count("](#mine-") == record.MAX_CLAIMS
    assert "more rows in the record" in text
    assert "more rows in the record" not in text.split("\n## ")[1]  # the tables of papers come first, and are whole


def test_the_page_has_room_for_every_record(record, written) -> None:
    """Tables give way first; what every section says of its claims stays."""
    one = written(
        "mine", claims={f"claim {i}": True for i in range(3)}, tables=[[["number"], *([j] for j in range(9))]]
    )
    found = record.Record.model_validate_json(one.read_bytes())
    records = [
        found.model_copy(update={"name": name, "title": run.title, "command": run.command})
        for name, run in record.RUNS.items()
    ]
    text = record.results(records)
    assert text.count("\n") <= record.MAX_LINES
    assert all(f"## {run.title}\n" in text for run in record.RUNS.values())
    assert text.count("\n- claim 0") >= len(records)
    assert "| number |" in text.partition(f"## {records[0].title}\n")[2].partition("\n## ")[0]
    assert len(record.claims_page(records)) == 2 + record.MAX_CLAIMS


def test_a_claim_follows_from_the_ratios_of_the_turns(record) -> None:
    claim = record.compared("as fast", [2.0, 1.0, 4.0], [3.0, 3.0, 4.0], peer="torch", unit="s", least=1.5)
    assert (claim.ratio, claim.reached) == (1.5, True)
    rates = record.compared("as fast", [200.0], [300.0], peer="torch", unit="tokens/s", are_rates=True)
    assert (round(rates.ratio, 3), rates.reached, rates.ours) == (0.667, False, "200 tokens/s")


def test_a_claim_without_its_peer_says_so(record, written) -> None:
    claim = record.compared("as fast", [2.0], None, peer="kenlm", unit="s")
    assert (claim.reached, claim.ratio, claim.theirs) == (None, None, "not installed")
    written(claims=[claim], peers=["torch", "no-such-package"])
    one = record.read("mine")
    assert one.peers.keys() == {"torch"}
    assert "- as fast (2 s; kenlm: not installed): not measured." in record.results([one])


def test_what_was_measured_stays_where_nothing_can_be(record, written) -> None:
    before = written().read_text(encoding="utf-8")
    claim = record.compared("as fast", [], None, peer="cuDNN", unit="ms", absent="no GPU here")
    assert written(claims=[claim]).read_text(encoding="utf-8") == before
    assert not record.read(written("other", claims=[claim]).stem).claims[0].theirs.startswith("not installed")


def test_records_with_one_title_share_a_section(record, written) -> None:
    for name in ("mine", "other"):
        written(name)
    records = [record.read(name).model_copy(update={"title": "Both"}) for name in ("mine", "other")]
    head, *rows = records[1].tables[0]
    records[1] = records[1].model_copy(update={"tables": [[head, *rows, ["lstm", "3.0"]]]})
    text = record.results(records)
    assert text.count("## Both") == 1
    assert "| layer | seconds |\n|---|---|\n| gru | 2.0 |\n| lstm | 3.0 |" in text  # an equal row is shown once
    assert text.count("(#both)") == 2


def test_older_defaults_are_marked(record, written) -> None:
    now = {"task": "lm", "model": {"layer": "lstm"}, "defaults": record.fingerprint("lm", "lstm")}
    written(settings={"one": now})
    assert not record.read("mine").has_old_defaults
    written(settings={"one": {**now, "defaults": "other"}})
    assert "older defaults" in record.results([record.read("mine")])


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
    assert record.plain(run)["defaults"] == record.fingerprint("lm", "gru")
