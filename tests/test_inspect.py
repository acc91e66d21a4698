"""The page of a run: whole for every task, and one clear line where it cannot be made."""

import json
import shutil
import warnings
from pathlib import Path

import pytest

import seriatim
from seriatim import cli
from seriatim.errors import InputError
from seriatim.inspection import model_sections, sections
from seriatim.inspection.alignment import Aligned, align, aligned_figure, mass
from seriatim.inspection.subject import prepare
from seriatim.unroll.fast import uncompiled

from .inspected import MODELS, SENTENCE, TEXTS

SECTIONS = ("surprisal", "attention", "gates", "gradient-flow", "memory", "errors", "about")


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Nothing here needs compiled code; and how figures become SVG others test, which takes seconds a page."""
    if not request.node.name.endswith("[lm]"):
        monkeypatch.setattr("seriatim.inspection.page.to_svg", lambda *_, title, **__: f"<svg>{title}</svg>")
    with uncompiled():
        yield


@pytest.mark.parametrize("name", MODELS)
def test_a_page_for_every_task(inspected, name: str, tmp_path: Path) -> None:
    found = seriatim.inspect(inspected[name], TEXTS.get(name, SENTENCE), out=tmp_path / "a.html", beam=2)
    html = found.path.read_text()
    for section in SECTIONS:
        assert f'<section id="{section}"' in html
    assert found.summary
    assert "Left out. " not in html or name in ("ngram", "ctc", "mlm", "lm-lines"), "nothing fails unseen"


def test_what_has_no_meaning_is_left_out_with_a_sentence(inspected, tmp_path: Path) -> None:
    pages = {
        name: seriatim.inspect(inspected[name], text, out=tmp_path / f"{name}.html").path.read_text()
        for name, text in {"ngram": SENTENCE, "lm": "a", "classify": SENTENCE}.items()
    }
    assert "n-grams are counted, and there is no gradient" in pages["ngram"]
    assert "no layer of this model has attention" in pages["ngram"]
    assert "the text has one token" in pages["lm"]
    assert "reads from both sides keeps the whole text" in pages["classify"]


def test_long_texts_say_what_is_looked_at(inspected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(prepare.__globals__["READ"], "lm", 30)
    monkeypatch.setitem(prepare.__globals__, "LINE", 3)
    given = {"beam": 1, "data": None, "file_format": None}
    text = f"{SENTENCE}\n" * 3
    for name in ("lm", "lm-lines", "lm-words"):
        subject = prepare(inspected[name], text * 4, **given)
        assert len(subject.corpus.ids) <= 30
        assert "the first 30 are looked at" in subject.notes[0]
    for name in ("classify", "tag", "seq2seq"):
        subject = prepare(inspected[name], text.replace(" ", "") if name == "seq2seq" else text, **given)
        assert len(inspected[name].tokenizer.encode(subject.text)) == 3
        assert "of the 3 lines the first" in subject.notes[0]
        assert "the first 3 are looked at" in subject.notes[1]
    monkeypatch.setattr(sections, "SHOWN", 5)
    (tokens, *_), _ = sections.surprise(prepare(inspected["lm"], SENTENCE, **given))
    assert len(tokens.tokens) == 5
    assert "The first 5 of" in tokens.caption


def test_bad_input_is_one_line(inspected, tmp_path: Path) -> None:
    run, out = inspected["lm"], tmp_path / "a.html"
    wrong = tmp_path / "wrong.tsv"
    wrong.write_text("no table\n")
    for message, of, text, more in (
        ("the text is empty", run, " \n", {}),
        ("never seen in training", run, "☃", {}),
        ("keeps no hypothesis", inspected["seq2seq"], "axbx", {"beam": 0}),
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

    monkeypatch.setattr("seriatim.inspection.page.write_whole", refuse)
    with pytest.raises(InputError, match="may not be written"):
        seriatim.inspect(inspected["ngram"], SENTENCE, out=tmp_path / "a.html")
    monkeypatch.setattr("seriatim.inspection.inspect._sections", lambda _: pytest.fail("work was done first"))
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InputError, match="may not be written to"):
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
    with pytest.raises(InputError, match=r"damaged.*made by seriatim 99\.0"):
        seriatim.inspect(folder, SENTENCE)


def test_missing_data_of_the_run_is_no_error(inspected, tmp_path: Path) -> None:
    run = inspected["classify"]
    gone = run.config.data.model_copy(update={"test": str(tmp_path / "gone.tsv")})
    subject = prepare(run, SENTENCE, beam=1, data=None, file_format=None)
    config = run.config.model_copy(update={"data": gone})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "config", config)
        (said,), lines = model_sections.mistakes(subject)
    assert "cannot be read" in said.text
    assert not lines


def test_the_command(inspected, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "page.html"
    text.write_text(f"{SENTENCE}\n")
    run = str(inspected["ngram"].path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cli.main(["inspect", run, "--text-file", str(text), "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    for arguments in (["--text", "a", "--text-file", "b"], [], ["--text", ""]):
        assert cli.main(["inspect", run, *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_alignments_are_those_of_the_run(inspected, monkeypatch: pytest.MonkeyPatch) -> None:
    run = inspected["seq2seq"]
    (expected,) = run.details(["axbxcx"], alignments=True)
    greedy, beam = align(run, "axbxcx", beam=3)
    assert greedy.weights == expected["alignment"]
    assert beam.how == "beam of 3"
    assert beam.text == next(iter(run.predict(["axbxcx"], beam=3)))
    heads = align(inspected["seq2seq-heads"], "axbxcx", beam=1)[0]
    assert heads.heads > 1
    assert len(heads.weights) == len(heads.target_tokens)
    for one in (greedy, beam, heads):
        assert [sum(row) for row in one.weights] == pytest.approx([1] * len(one.target_tokens), abs=1e-5)
        assert mass(one, [range(len(one.source_tokens))] * len(one.weights)) == pytest.approx(1, abs=1e-5)
        assert aligned_figure(one).axes
    assert not align(inspected["ctc"], "axbxcx", beam=1)[0].weights
    monkeypatch.setattr("seriatim.inspection.alignment.LARGEST", 4)
    (cut,) = align(inspected["seq2seq-heads"], "axbxcx", beam=1)
    assert "The first 4" in cut.limits
    assert cut.target_tokens[-1] != "</s>", "the end of an answer is not where its map is cut off"
    with pytest.raises(InputError, match="looks at nothing"):
        aligned_figure(Aligned("greedy", "", 0.0))
    with pytest.raises(InputError, match="translates nothing"):
        align(inspected["lm"], "a")
