"""A run in use: its metrics and scores; and what happens when its files are not whole."""

import math
import shutil
from pathlib import Path

import pytest

import seriatim
from seriatim.core.errors import InputError
from seriatim.data.tokenizers import Spelling
from seriatim.runs.ensembles import compare, ensemble, interpolate

from ..refusals import refused

RUNS = ("char-stream", "char-line", "word-stream", "word-line", "bpe-line", "byte-stream")


@pytest.mark.parametrize("name", RUNS)
def test_the_window_does_not_change_the_figures(runs, texts, name: str) -> None:
    found = [runs[name].evaluate(texts["test"], window=window) for window in (1, 17, 256, 10_000)]
    for other in found[1:]:
        assert other["loss"] == pytest.approx(found[0]["loss"], abs=1e-6)
        assert other["loss_low"] == pytest.approx(found[0]["loss_low"], abs=1e-5)


@pytest.mark.parametrize("name", RUNS)
def test_the_figures_belong_together(runs, texts, name: str) -> None:
    found = runs[name].evaluate(texts["test"])
    text = Path(texts["test"]).read_text()
    for key in ("loss", "perplexity", "word_perplexity", "bits_per_byte"):
        assert found[f"{key}_low"] < found[key] < found[f"{key}_high"]
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["bytes"] == len(text.encode())
    assert found["words"] == len(text.split())
    nats = found["loss"] * found["tokens"]
    assert found["unknown_tokens"] == 0
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / found["bytes"])
    assert found["word_perplexity"] == pytest.approx(math.exp(nats / (found["words"] + found["lines"])))
    if name == "word-stream":
        assert found["tokens"] == len(text.split()) + text.count("\n")
        assert found["word_perplexity"] == pytest.approx(found["perplexity"])
    if name == "byte-stream":
        assert found["tokens"] == len(text)


def test_unknown_words_cost_their_spelling(runs, tmp_path: Path) -> None:
    run, path = runs["word-line"], tmp_path / "a.txt"
    path.write_text("the cat sees the zebra .\n")
    found = run.evaluate(str(path))
    assert found["unknown_tokens"] == 1
    nats = found["loss"] * found["tokens"] + run.tokenizer.spelling.nats(Spelling.count_symbols(["zebra"]))
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / 25)
    assert found["loss_low"] is None


@pytest.mark.parametrize("name", [name for name in RUNS if name.endswith("line")])
def test_scores_of_lines_are_the_loss_of_the_text(runs, texts, name: str) -> None:
    lines = Path(texts["test"]).read_text().splitlines()
    scores, found = runs[name].score(lines), runs[name].evaluate(texts["test"])
    assert sum(score.tokens for score in scores) == found["tokens"]
    assert -sum(score.log_probability for score in scores) == pytest.approx(found["loss"] * found["tokens"], rel=1e-5)
    assert [score.bytes for score in scores] == [len(line.encode()) for line in lines]


@pytest.mark.parametrize("name", RUNS)
def test_scores_of_a_batch_are_those_of_its_rows(runs, name: str) -> None:
    lines = ["the cat sees it .", "", "nobody likes the sea . she paints red wine .", "a dog"]
    together = runs[name].score(lines)
    assert len(together) == 4
    for line, score in zip(lines, together, strict=True):
        (alone,) = runs[name].score([line])
        assert alone.log_probability == pytest.approx(score.log_probability, abs=1e-4)
        assert alone[1:] == score[1:]
    assert runs[name].score([]) == []
    with refused("malformed"):
        runs[name].score(["a\nb"])


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_without_tokens_is_refused(runs, texts, window: int) -> None:
    with refused("range", "window"):
        runs["char-line"].evaluate(texts["test"], window=window)


def test_data_may_be_named_by_a_path(runs, texts) -> None:
    run = runs["char-line"]
    assert run.evaluate(Path(texts["test"])) == run.evaluate(texts["test"])
    with refused("range", "data"):
        run.evaluate([texts["test"]])


@pytest.mark.parametrize("open_run", [seriatim.load, seriatim.resume])
def test_an_empty_name_is_not_the_current_folder(runs, monkeypatch: pytest.MonkeyPatch, open_run) -> None:
    monkeypatch.chdir(runs["char-line"].path)
    with refused("required"):
        open_run("")


@pytest.mark.parametrize("file", ["config.yaml", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "swapped"])
def test_a_run_that_is_not_whole_is_refused(runs, tmp_path: Path, file: str, damage: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["char-line"].path, folder)
    path = folder / file
    if damage == "missing":
        path.unlink()
    elif damage == "swapped":
        shutil.copy(runs["word-stream"].path / file, path)
    else:
        content = path.read_bytes()
        half = content.index(b"hidden_size") if file == "config.yaml" else len(content) // 2
        path.write_bytes(content[: 0 if damage == "empty" else half])
    with pytest.raises(InputError, match=file):
        seriatim.load(folder)


def test_no_run_at_all(runs, tmp_path: Path) -> None:
    with refused("missing", "nothing"):
        seriatim.load(tmp_path / "nothing")
    with refused("missing", "config.yaml"):
        seriatim.load(tmp_path)
    shutil.copytree(runs["char-line"].path, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "checkpoints")
    with refused("missing", "checkpoints"):
        seriatim.resume(tmp_path / "copy")


def test_two_language_models_are_compared_block_by_block(runs, texts) -> None:
    found = compare(runs["char-line"], runs["char-line"], texts["test"])
    assert found["loss"].difference == 0
    assert found["loss"].p_value == 1
    with refused("mismatch", "word-stream"):
        compare(runs["char-stream"], runs["word-stream"], texts["test"])


@pytest.mark.parametrize("name", ["char-line", "word-stream"])
def test_what_is_not_text_is_refused(runs, name: str) -> None:
    run = runs[name]
    for call, expected in (
        (lambda: run.score("the cat"), r"'the cat' is a single text; give a list of texts, such as \[text\]"),
        (lambda: run.score(["the cat", None]), "item 1: None is of type NoneType; give a string"),
        (lambda: run.score(["\ud800"]), "item 0: .* is not UTF-8"),
        (lambda: run.generate(None), "None is of type NoneType; give a string"),
        (lambda: run.samples(2, ["the"]), "; give a string"),
        (lambda: run.stream().feed(5), "5 is of type int; give a string"),
    ):
        with pytest.raises(InputError, match=expected):
            call()


@pytest.mark.parametrize("given", [[], ["runs/demo"], "runs/demo", None])
def test_an_ensemble_takes_runs(given) -> None:
    for call in (ensemble, interpolate):
        with refused("range"):
            call(given)


def test_models_of_lines_and_of_running_text_are_not_combined(runs, texts) -> None:
    """Words are numbered alike in both units, so that only the unit tells the two models apart."""
    first, second = runs["word-line"], runs["word-stream"]
    assert first.vocabulary.fingerprint() == second.vocabulary.fingerprint()
    with refused("mismatch", "word-stream"):
        ensemble([first, second])
    with refused("mismatch", "word-line"):
        interpolate([second, first], texts["valid"])
    with refused("mismatch", "word-stream"):
        compare(first, second, texts["test"])


def test_a_run_shows_its_task_layer_parameters_and_best_figure(runs) -> None:
    run = runs["char-line"]
    shown, table = repr(run), run._repr_html_()
    assert shown.startswith(f"Run('{run.path}', task=lm, layer={run.config.model.layer}, parameters=")
    assert f"{run.summary['valid']['perplexity']:.2f}" in shown
    assert all(f"<td>{value}</td>" in table for value in (run.path, run.config.task, run.config.model.layer))
