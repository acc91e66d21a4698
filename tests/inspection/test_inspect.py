"""The page of a run: complete for every task, and one line of error if it cannot be written."""

import json
import math
import re
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import seriatim
from seriatim.cli.main import main as command
from seriatim.core.errors import InputError
from seriatim.evaluation.context_use import Excess
from seriatim.inspection import surprisal
from seriatim.inspection.alignment import (
    align,
    aligned_map,
    alignment_section,
)
from seriatim.inspection.context_section import Reach, bits_and_interval
from seriatim.inspection.inspected_run import explainer_of, prepare
from seriatim.inspection.mistakes import mistakes_section
from seriatim.inspection.standing import Standing, below_baseline
from seriatim.inspection.together import page_name
from seriatim.pages.chart_svg import Drawing
from seriatim.recurrence import uncompiled
from seriatim.runs.ensembles import distinct_names
from seriatim.tasks import explainer as capabilities
from seriatim.tasks import text_explainer
from seriatim.tasks.beside_baseline import main_metric
from seriatim.tasks.explainer import NotOfferedError

from ..exhaustive import parameters
from ..refusals import refused
from .inspected import MODELS, SENTENCE, TEXTS, total_bits

SECTIONS = ("word-order", "attention", "gates", "embeddings", "gradient-flow", "memory", "errors", "about")


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Disable compiled code and the conversion of figures to SVG, which takes seconds for a page."""
    if not request.node.name.endswith("[lm]"):
        monkeypatch.setattr(
            "seriatim.pages.page.draw", lambda figure, *_, **__: Drawing(f"<svg>{figure.title}</svg>", {})
        )
    with uncompiled():
        yield


EVERYDAY = ("lm", "ngram", "mlm", "classify", "classify-forwards", "tag", "seq2seq", "ctc")


@pytest.mark.parametrize("name", parameters(MODELS, everyday=EVERYDAY))
def test_a_page_for_every_task(inspected, name: str, tmp_path: Path) -> None:
    found = seriatim.inspect(inspected[name], TEXTS.get(name, SENTENCE), out=tmp_path / "a.html", beam=2, permute=3)
    html = found.path.read_text()
    warned = '<div class="banner"' in html
    missing = sum(f'<section id="{section}"' not in html for section in SECTIONS) if not warned else 0
    left_out = html.partition("Sections that are not shown.")[2].partition("</table>")[0]
    unseen = left_out.split("<tr>")[2:]  # the first one holds the headings
    assert warned or len(unseen) == missing
    assert 0 < len(found.summary) <= 6
    assert len(html.split('<section class="opening"')) == 2
    assert ('<section id="network"' in html) == warned, "what a bad model keeps is not interpreted"
    allowed = (
        "no layer of this model has attention",
        "no gates",
        "n-gram model",
        "ctc run",
        "the decoder has no attention",
        "reads from both sides",
        "has no layers",
        "no layer of this model passes a state",
    )
    assert all(any(reason in line for reason in allowed) for line in unseen), "no section fails silently"
    prose = re.sub(r"<(script|style|svg)\b.*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL)
    assert not re.search(r"\d%|\d\.0.%(?! \(95|\))", prose), "the house style is “3 %”, without an interval"
    before_the_run = html.split('<section id="about"')[0]
    assert str(inspected[name].path.parent) not in before_the_run, "files are named without their folders"
    assert not any("\N{FIRST STRONG ISOLATE}" in line for line in found.summary)


def test_sections_without_meaning_are_replaced_by_a_sentence(inspected, tmp_path: Path) -> None:
    pages = {
        name: seriatim.inspect(inspected[name], text, out=tmp_path / f"{name}.html").path.read_text()
        for name, text in {"ngram": SENTENCE, "lm": "a", "classify": SENTENCE}.items()
    }
    assert "this model has no layers, so that there is no gradient" in pages["ngram"]
    assert "no layer of this model has attention" in pages["ngram"]
    assert "counts treat every word as different" in pages["ngram"]
    assert "The state takes" not in pages["classify"], "it reads from both sides"
    assert re.search(r"Means over \d+ windows of \d+ tokens of the held-out data", pages["lm"])
    assert "What a shorter context costs" in pages["lm"]
    for name, page in pages.items():
        (_, *sections) = page.split("<section ")
        assert all(len(re.findall("<p|<table|<figure|<pre", section)) for section in sections), f"{name}: empty section"
        assert 'href="#attention"' not in page, "nor an entry of the menu"


def test_limits_of_long_texts_are_stated(inspected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_explainer, "MAX_TEXT", 30)
    monkeypatch.setattr(capabilities, "MAX_LINE", 3)
    given = {"beam": 1, "data": None, "file_format": None}
    text = f"{SENTENCE}\n" * 3
    for name in ("lm", "lm-lines", "lm-words"):
        subject = prepare(inspected[name], text * 4, **given)
        assert len(subject.explainer.labelled.text.encode(subject.text).ids) <= 30
        assert "only the first 30 are inspected" in subject.notes[0]
    for name in ("classify", "tag", "seq2seq"):
        subject = prepare(inspected[name], text.replace(" ", "") if name == "seq2seq" else text, **given)
        assert len(inspected[name].tokenizer.encode(subject.text)) == 3
        assert "has 3 lines; only the first" in subject.notes[0]
        assert "only the first 3 are inspected" in subject.notes[1]
    monkeypatch.setattr(surprisal, "MAX_TOKENS", 5)
    (lens,) = surprisal.read_text(prepare(inspected["lm"], SENTENCE, **given)).lenses
    assert len(lens.values) == 5
    assert "Only the first 5 of" in lens.sentence


def test_bad_input_is_one_line(inspected, tmp_path: Path) -> None:
    run, out = inspected["lm"], tmp_path / "a.html"
    wrong = tmp_path / "wrong.tsv"
    wrong.write_text("no table\n")
    for message, of, text, more in (
        ("permute: 1073741824 is out of range; give a number from 0 to 1,000", run, SENTENCE, {"permute": 1 << 30}),
        ("permute: -1 is out of range", run, SENTENCE, {"permute": -1}),
        ("the text is empty", run, " \n", {}),
        ("text: None is of type NoneType; give a string", run, None, {}),
        ("never seen in training", run, "☃", {}),
        ("--beam: 0 is too small", inspected["seq2seq"], "axbx", {"beam": 0}),
        ("is a folder", run, SENTENCE, {"out": tmp_path}),
        ("does not exist", run, SENTENCE, {"out": tmp_path / "none" / "a.html"}),
        ("no such run", tmp_path / "none", SENTENCE, {}),
        ("no column", inspected["classify"], SENTENCE, {"data": str(wrong)}),
        ("no such file", run, SENTENCE, {"data": str(tmp_path / "none.txt")}),
    ):
        with pytest.raises(InputError, match=message):
            seriatim.inspect(of, text, **{"out": out, **more})
    assert not out.exists()


def test_a_page_that_may_not_be_written(inspected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("seriatim.pages.page.write_whole", refuse)
    with refused("unwritable", "a.html"):
        seriatim.inspect(inspected["ngram"], SENTENCE, out=tmp_path / "a.html")
    monkeypatch.setattr("seriatim.inspection.inspection._measured", lambda *_: pytest.fail("work was done first"))
    monkeypatch.setattr("os.access", lambda *_: False)
    with refused("unwritable", "--out"):
        seriatim.inspect(inspected["ngram"], SENTENCE, out=tmp_path / "a.html")


def test_runs_of_other_versions(inspected, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(inspected["ngram"].path, folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary["versions"]["seriatim"] = "99.0"
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.warns(UserWarning, match=r"made by seriatim 99\.0"):
        found = seriatim.inspect(folder, SENTENCE)
    assert found.path == folder / "inspect.html"
    assert "made by seriatim 99.0" in found.path.read_text()
    (folder / "model.safetensors").write_bytes(b"damaged")
    with refused("damaged", "model.safetensors"):
        seriatim.inspect(folder, SENTENCE)


def test_missing_data_of_the_run_is_no_error(inspected, tmp_path: Path) -> None:
    run = inspected["classify"]
    gone = run.config.data.model_copy(update={"test": str(tmp_path / "gone.tsv")})
    subject = prepare(run, SENTENCE, beam=1, data=None, file_format=None)
    config = run.config.model_copy(update={"data": gone})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "config", config)
        with pytest.raises(NotOfferedError, match="cannot be read"):
            mistakes_section(subject)


def test_the_command(inspected, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "page.html"
    text.write_text(f"{SENTENCE}\n")
    run = str(inspected["ngram"].path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert command(["inspect", run, "--text-file", str(text), "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    for arguments in (["--text", "a", "--text-file", "b"], [], ["--text", ""]):
        assert command(["inspect", run, *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_alignments_equal_those_of_the_run(inspected, monkeypatch: pytest.MonkeyPatch) -> None:
    run = inspected["seq2seq"]
    (expected,) = run.predict(["axbxcx"], beam=1, alignments=True, details=True)
    greedy, beam = align(run, "axbxcx", beam=3)
    np.testing.assert_allclose(greedy.weights, expected["alignment"], atol=1e-6)
    assert beam.search == "beam of 3"
    assert beam.text == next(iter(run.predict(["axbxcx"], beam=3)))
    heads = align(inspected["seq2seq-heads"], "axbxcx", beam=1)[0]
    assert heads.heads > 1
    assert len(heads.weights) == len(heads.target_tokens)
    for one in (greedy, beam, heads):
        assert [sum(row) for row in one.weights] == pytest.approx([1] * len(one.target_tokens), abs=1e-5)
        assert len(aligned_map(one).panels[0][1]) == len(aligned_map(one).rows)
    assert not align(inspected["ctc"], "axbxcx", beam=1)[0].weights
    assert not greedy.has_noise
    monkeypatch.setattr(run, "config", run.config.replaced({"data.train": "builtin:reversal"}))
    (noisy,) = align(run, "axbxcx", beam=1)
    assert list(aligned_map(noisy).columns) == ["a", "(x)", "b", "(x)", "c", "(x)"]
    monkeypatch.setattr("seriatim.inspection.alignment.MAX_MAP", 4)
    (cut,) = align(inspected["seq2seq-heads"], "axbxcx", beam=1)
    assert cut.limits.startswith("The first 4 of")
    assert cut.target_tokens[-1] != "</s>", "the end of an answer is not where its map is cut off"
    with refused("unsupported", "", "attention"):
        alignment_section(prepare(inspected["ctc"], "axbxcx", **GIVEN))
    with pytest.raises(InputError, match="offers no translations"):
        align(inspected["lm"], "a")


def test_nothing_is_computed_from_an_infinite_loss(tmp_path: Path) -> None:
    """Maximum likelihood gives probability zero to every unseen pair of words."""
    train = tmp_path / "train.txt"
    train.write_text("the cat sees the dog .\nthe dog sees a cat .\n" * 5)
    options = {"order": 2, "smoothing": "maximum-likelihood"}
    run = seriatim.train(
        {
            "data": {"train": str(train)},
            "tokenizer": {"kind": "word"},
            "model": {"layer": "ngram", "options": options},
            "out": str(tmp_path / "run"),
        }
    )
    text = "the cat sees the dog . dog the cat the sees . " * 4
    result = seriatim.inspect(run, text)
    assert all(word not in " ".join(result.summary).lower() for word in ("nan", "inf ", "within 1 %"))
    html = result.path.read_text()
    assert '"Infinity"' in html
    assert "probability zero for" in html
    assert "What a shorter context costs" not in html, "the loss with the full context is infinite"


GIVEN = {"beam": 2, "data": None, "file_format": None}


def stands(inspected, valid: dict[str, float], baseline: dict[str, object]) -> Standing | None:
    run, summary = inspected["lm"], {"valid": valid, "baseline": baseline}
    of = SimpleNamespace(summary=summary, task=run.task, vocabulary=run.vocabulary, path=run.path)
    return below_baseline(of)


def test_a_model_below_its_baseline_is_known(inspected) -> None:
    """A trivial prediction that is as good counts, and a simple model that is better than the model's interval."""
    valid = {"perplexity": 5.0, "perplexity_low": 4.8, "perplexity_high": 5.2}
    trivial: dict[str, object] = {"name": "a unigram", "perplexity": 9.0}
    assert stands(inspected, valid, trivial) is None
    assert stands(inspected, {}, {}) is None
    found = stands(inspected, valid, {**trivial, "perplexity": 5.0})
    assert (found.other, found.is_trivial) == ("a unigram", True)
    assert (found.value, found.best) == ("5.00", "5.00")
    for value, is_below in ((4.9, False), (4.7, True)):
        simple = {"name": "an n-gram model", "perplexity": value}
        found = stands(inspected, valid, {**trivial, "simple": simple})
        assert (found is not None) == is_below
    assert found.other == "an n-gram model"

    # A model that diverged has an infinite perplexity, for which JSON has null.
    assert stands(inspected, {"perplexity": None, "bits_per_byte": 1e30}, trivial) is not None


def test_the_baseline_of_its_comparison_counts(inspected, tmp_path: Path) -> None:
    run, folder = inspected["lm"], tmp_path / "runs" / "gru-1"
    folder.mkdir(parents=True)
    of = SimpleNamespace(summary={}, task=run.task, vocabulary=run.vocabulary, path=folder)
    metrics = {"perplexity": 5.0, "perplexity_low": 4.8, "perplexity_high": 5.2}
    for value, is_below in ((4.9, False), (4.7, True)):
        rows = [
            {"layer": "gru", "baseline": False, "runs": [{"path": "runs/gru-1", "metrics": metrics}]},
            {"layer": "ngram", "baseline": True, "runs": [], "metrics": {"perplexity": value}},
        ]
        (tmp_path / "results.json").write_text(json.dumps({"rows": rows, "data": {"measured_on": "a.txt"}}))
        assert (below_baseline(of) is not None) == is_below
    for damaged in ("[]", "{", '{"rows": [1]}'):
        (tmp_path / "results.json").write_text(damaged)
        assert below_baseline(of) is None


def test_nothing_of_a_model_below_its_baseline_is_interpreted(inspected, tmp_path: Path, monkeypatch) -> None:
    run = inspected["lm-words"]
    worse = Standing("This model", main_metric(run.task), {"perplexity": 9.0}, {"name": "a unigram", "perplexity": 5.0})
    for below in (worse, None):
        monkeypatch.setattr("seriatim.inspection.first_screen.below_baseline", lambda _, below=below: below)
        result = seriatim.inspect(run, SENTENCE, out=tmp_path / "a.html")
        names = [lens.name for lens in result.screens[0].lenses]
        html = result.path.read_text()
        if below is None:
            assert "influence" in names
            assert "banner" not in html.split("<header>")[1]
        else:
            assert names == ["surprisal"]
            assert result.summary[0].startswith("! This model is worse than a unigram")
            assert "Context used" not in html
            for section in ("attention", "embeddings", "memory"):
                assert f'<section id="{section}"' not in html


def test_context_and_reach_follow_from_the_intervals() -> None:
    def tiles(low_16: float, high_64: float) -> tuple[int | None, int | None]:
        excess = {4: Excess(0.2, 0.1, 0.3), 16: Excess(0.05, low_16, 0.1), 64: Excess(0.0, -0.01, high_64)}
        assert bits_and_interval(excess[4]) == ("0.20", "0.10 to 0.30")
        reach = Reach.of(excess)
        return reach.helped, reach.enough

    assert tiles(0.03, 0.01) == (16, 64)
    assert tiles(-0.01, 0.01) == (4, 64)
    assert tiles(-0.01, 0.3) == (4, None)


# Several runs on one page


def test_several_runs_on_one_page(inspected, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [str(inspected[name].path) for name in ("lm", "lm-words", "ngram")]
    assert command(["inspect", *runs, "--text", SENTENCE]) == 0
    (*lines, path) = capsys.readouterr().out.splitlines()
    assert path == "inspect-lm-lm-words-ngram.html"
    assert [line.split(": ")[0] for line in lines] == ["lm", "lm-words", "ngram"]
    html = Path(path).read_text()
    for run, line in zip(runs, lines, strict=True):
        bits = total_bits(explainer_of(seriatim.load(run)).token_scores(SENTENCE))
        assert f"{bits:,.1f} in all" in line
        assert f"{bits:,.1f}" in html
    assert html.count('class="tokens"') == 3
    page = seriatim.inspect([inspected["classify"], inspected["classify-forwards"]], SENTENCE, out=tmp_path / "b.html")
    assert all("label: " in line for line in page.summary)


def test_runs_that_cannot_stand_together(inspected, tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    with pytest.raises(InputError, match=r"lm is of the task lm, and .*tag is of the task tag; give runs of one task"):
        seriatim.inspect([inspected["lm"], inspected["tag"]], SENTENCE, out=out)
    with pytest.raises(InputError, match="there is no run"):
        seriatim.inspect([], SENTENCE, out=out)
    with pytest.raises(InputError, match="no section on word order"):
        seriatim.inspect([inspected["lm"], inspected["ngram"]], SENTENCE, out=out, permute=3)
    with pytest.raises(InputError, match="never seen in training"):
        seriatim.inspect([inspected["lm-words"], inspected["lm"]], "☃", out=out)
    assert not out.exists()


def test_names_of_runs_tell_them_apart() -> None:
    assert distinct_names([Path("a/run"), Path("b/run")]) == ["a/run", "b/run"]
    assert distinct_names([Path("a/x"), Path("b/y")]) == ["x", "y"]
    assert distinct_names([Path("a/x"), Path("a/x")]) == ["x", "x (2)"]
    assert page_name(["a/run", "b/run"]) == "inspect-a-run-b-run.html"


# Texts and weights for which little can be shown


@pytest.mark.parametrize("name", ["lm", "ngram", "mlm", "classify", "tag", "seq2seq"])
def test_a_text_of_one_token(inspected, name: str, tmp_path: Path) -> None:
    text = "a" if name in ("lm", "seq2seq") else "the"
    html = seriatim.inspect(inspected[name], text, out=tmp_path / "a.html").path.read_text()
    assert "NaN" not in re.sub(r"<script\b.*?</script>", "", html, flags=re.DOTALL)


def test_weights_that_are_not_numbers_are_one_line(inspected, tmp_path: Path) -> None:
    run = seriatim.load(inspected["lm"].path)
    with torch.no_grad():
        next(run.model.parameters()).fill_(math.nan)
    for given in (run, [run, inspected["ngram"]]):
        with pytest.raises(InputError, match=r"lm: the scores .* are NaN"):
            seriatim.inspect(given, SENTENCE, out=tmp_path / "a.html")
    assert not (tmp_path / "a.html").exists()
