"""Markers such as ``<s>`` around every line are left out, others are warned of; a run reads its inputs as its data."""

import gzip
import io
import itertools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.config import resolve
from seriatim.data import pipes
from seriatim.data.repairs import KNOWN, DataWarning, common_markers, find_markers, without_markers

from ..refusals import refused

LINES = ["ja nein", "nein ja", "ja <unk> ja", "", "nein nein ja"] * 12


@pytest.mark.parametrize("markers", KNOWN)
def test_markers_around_every_text_are_found_and_removed(markers: tuple[str, str]) -> None:
    begin, end = markers
    marked = [f"{begin} {line} {end}" for line in LINES]
    assert common_markers([*marked, "", f" {begin}\t{end} "]) == markers
    assert common_markers([*marked, "ja"]) is None
    assert common_markers([f"{begin} ja"]) is None
    assert common_markers([begin]) is None
    assert common_markers([]) is None
    text, lines = without_markers("\n".join([*marked, "ja", begin, f"  {begin} {begin} x"]), markers)
    assert text == "\n".join([*LINES, "ja", "", "x"])
    assert lines == [*range(len(LINES)), len(LINES) + 1, len(LINES) + 2]
    for other in (f"x{begin} ja", f"ja {end}x", f"ja {begin} ja", " ja "):
        assert without_markers(other, markers) == (other, [])


@pytest.mark.parametrize("markers", KNOWN)
def test_markers_need_no_blank_beside_them(markers: tuple[str, str]) -> None:
    begin, end = markers
    glued = [f"{begin}{line}{end}" for line in LINES]
    assert common_markers([*glued, f"{begin} ja {end}", f" {begin}ja {end} "]) == markers
    assert common_markers([*glued, f"{begin}ja"]) is None
    assert without_markers("\n".join(glued), markers) == ("\n".join(LINES), [*range(len(LINES))])
    for one in (f"{begin}ja", f"ja{end}", f"a{end}{begin}b", f'"{begin}ja"', f"{begin}\tja", f"x {end},y", glued[0]):
        lines, pair, marker = find_markers(f"a\n{one}\nb")
        assert lines == [1]
        assert marker in markers
        assert {begin, end} & set(pair)
        assert pair == markers or not (begin in one and end in one)
    for one in (f"List{begin}", f"x{begin} y", f"y {end}x"):
        assert not find_markers(one)[0]


def test_words_that_begin_or_end_with_chosen_markers_are_words() -> None:
    assert without_markers("a apple pizz z\na b", ("a", "z")) == ("apple pizz\nb", [0, 1])
    assert find_markers("apple |- a\nb -|x |-y\nc -|", ("|-", "-|")) == ([0, 2], ("|-", "-|"), "|-")


def test_markers_are_found_at_the_ends_of_words_only() -> None:
    text = 'a\nb <s>\nx<s>c\n{"text": "<s> d"}\n<s>\te\nx </s>,y\n<b> [x]'
    assert find_markers(text) == ([1, 3, 4, 5], ("<s>", "</s>"), "<s>")
    assert common_markers(["<s> a </s>", "[CLS] a [SEP]"]) is None


def marked(lines: list[str], markers: str = "<s> </s>") -> list[str]:
    begin, end = markers.split()
    return [f"{begin} {line} {end}" for line in lines]


def written(folder: Path, lines: list[str], name: str = "a.txt") -> str:
    content = "".join(f"{line}\n" for line in lines).encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(folder / name)


def objects(lines: list[str], **others: str) -> list[str]:
    return [json.dumps({"text": line, **others}) for line in lines]


def told(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a function returns, and what it warns of markers."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
    said = {str(warning.message) for warning in caught if issubclass(warning.category, DataWarning)}
    return found, sorted(line for line in said if "marker" in line)


def trained(folder: Path, spec: str, name: str = "run", task: str = "lm", **sections: dict) -> tuple[Any, list[str]]:
    base: dict[str, dict] = {
        "data": {"train": spec, "valid": "none"},
        "tokenizer": {"kind": "word"},
        "model": {"layer": "ngram", "options": {"order": 2, "smoothing": "witten-bell"}},
        "training": {},
    }
    config = {section: {**base[section], **sections.get(section, {})} for section in base}
    return told(lambda: seriatim.train({"task": task, "out": str(folder / name), **config}))


@pytest.mark.parametrize("unit", ["line", "stream"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl"])
def test_a_model_of_marked_lines_is_that_of_the_lines(tmp_path: Path, unit: str, name: str) -> None:
    form = objects if "jsonl" in name else list
    spec = written(tmp_path, form(marked(LINES)), name)
    plain = written(tmp_path, form(LINES), f"plain.{name.partition('.')[2]}")
    run, said = trained(tmp_path, spec, data={"unit": unit})
    assert said == [line for line in said if line.startswith(f"{spec}:1: ") and "60 times" in line]
    assert len(said) == 1
    same, nothing = trained(tmp_path, plain, "plain", data={"unit": unit})
    assert not nothing
    assert run.vocabulary.fingerprint() == same.vocabulary.fingerprint()
    assert resolve(run.path / "config.yaml").data.markers == "<s> </s>"
    expected = run.evaluate(plain)
    assert expected == same.evaluate(plain)
    found, said = told(lambda: run.evaluate(spec))
    assert len(said) == 1
    assert found.pop("repairs")[0]["count"] == 60
    assert found == expected
    found, said = told(lambda: same.evaluate(spec))
    assert (len(said), found["loss"]) == (1, expected["loss"])
    with refused("malformed"):
        trained(tmp_path, spec, "strict", data={"unit": unit, "strict": True})


def test_the_surprisal_of_a_report(tmp_path: Path) -> None:
    """``ja`` begins 6 of 9 lines; with the markers it cost 4.68 bits."""
    lines = marked(["ja nein", "nein ja", "ja <unk> ja"] * 3)
    config = {
        "task": "lm",
        "data": {"train": written(tmp_path, lines), "valid": "none", "unit": "line"},
        "tokenizer": {"kind": "word"},
        "model": {"layer": "ngram"},
        "out": str(tmp_path / "run"),
    }
    with pytest.warns(UserWarning, match="boundary markers|n-grams"):
        run = seriatim.train(config)
    ((first, _),) = run.surprisal(["ja nein"])
    assert first.bits == pytest.approx(0.73, abs=0.005)


INNER = {
    "a.txt": ("<s> ja nein </s> <s> ja </s>", "lm"),
    "a.jsonl": ('{"text": "<s> ja </s>\\n<s> nein </s> <s> ja </s>"}', "lm"),
    "glued.txt": ("<s>ja nein</s><s>ja</s>", "lm"),
    "other.txt": ("<s> ja [SEP] nein </s>", "lm"),
    "a.tsv": ("<s> ja nein </s> <s> ja </s>\tA", "classify"),
    "pairs.tsv": ("<s> ja </s> <s> ja </s>\t<s> a </s>", "seq2seq"),
}


@pytest.mark.parametrize("unit", ["line", "stream"])
@pytest.mark.parametrize("name", INNER)
def test_markers_within_lines_are_warned_of_where_those_around_are_left_out(
    tmp_path: Path, name: str, unit: str
) -> None:
    line, task = INNER[name]
    outer = {"lm": "<s> ja </s>", "classify": "<s> ja </s>\tB", "seq2seq": "<s> ja </s>\t<s> b </s>"}[task]
    outer = json.dumps({"text": outer}) if "jsonl" in name else outer
    lines = [*["text\tlabel"][task != "classify" :], outer, outer, line, line]
    spec = written(tmp_path, lines, name)
    base = ["--data.unit", unit] if task == "lm" else []
    code, said = told(lambda: main(["check", task, "--data", spec, "--tokenizer.kind", "word", *base]))
    assert code == 0
    first = lines.index(outer) + 1
    assert [each.partition(" ")[0] for each in said] == [f"{spec}:{first}:", f"{spec}:{first + 2}:"]
    assert "read as a word" in said[1]
    assert "2 times" in said[1]


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("[CLS] ja", "[CLS] [SEP]"),
        ("ja [SEP]", "[CLS] [SEP]"),
        ("<sos> ja <eos>", "<sos> <eos>"),
        ("ja<EOS>", "<BOS> <EOS>"),
        ("<s>ja</s>", "<s> </s>"),
    ],
)
def test_the_remedy_names_the_pair_of_the_marker(tmp_path: Path, line: str, remedy: str) -> None:
    spec = written(tmp_path, ["ja", line])
    code, said = told(lambda: main(["check", "lm", "--data", spec, "--tokenizer.kind", "word"]))
    assert (code, len(said)) == (0, 1)
    assert said[0].startswith(f"{spec}:2: ")
    assert f'--data.markers "{remedy}"' in said[0]


@pytest.mark.parametrize("markers", ["<S> </S>", "[CLS] [SEP]"])
def test_held_out_lines_are_a_part_without_markers(tmp_path: Path, markers: str) -> None:
    lines = [f"{line} {i}" for i, line in enumerate(LINES)]
    for valid in ("20%", written(tmp_path, marked(lines[:5], markers), "valid.txt")):
        spec, name = written(tmp_path, marked(lines, markers)), valid[-5:]
        run, said = trained(tmp_path, spec, name, data={"valid": valid, "unit": "line"})
        assert len(said) == 1 + valid.endswith("txt")
        assert run.config.data.markers == markers
        assert not {*markers.split()} & {*run.vocabulary.tokenizer.words}
    report, said = told(lambda: main(["check", "lm", "--data", spec, "--data.unit", "line"]))
    assert (report, len(said)) == (0, 1)


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        ([*marked(LINES), "ja"], 1),
        (["ja", *marked(LINES)], 2),
        (["ja", "<s> nein"], 2),
        (["ja nein </s> <s> ja"], 1),
        (["ja <eos>", "nein <eos>"], 1),
    ],
)
def test_other_markers_are_words_and_warned_of(tmp_path: Path, lines: list[str], first: int) -> None:
    spec = written(tmp_path, [*lines, "ja"])
    run, said = trained(tmp_path, spec, data={"strict": True, "unit": "line"})
    assert [line.split(": ")[0] for line in said] == [f"{spec}:{first}"]
    assert run.config.data.markers == "keep"
    held_out = written(tmp_path, marked(LINES), "held-out.txt")
    found, said = told(lambda: run.evaluate(held_out))
    assert "repairs" not in found
    assert (len(said), found["words"]) == (1, len(" ".join(marked(LINES)).split()))


def test_what_is_left_out_can_be_chosen(tmp_path: Path) -> None:
    spec = written(tmp_path, [*marked(LINES, "|- -|"), "ja", *marked(LINES)])
    counts = {}
    for setting in ("auto", "keep", "|- -|", "<s> </s>"):
        run, _ = trained(tmp_path, spec, setting[:2], data={"markers": setting, "unit": "line"})
        counts[setting] = {marker: marker in run.vocabulary.tokenizer.words for marker in ("|-", "<s>")}
    assert counts["auto"] == counts["keep"] == {"|-": True, "<s>": True}
    assert counts["|- -|"] == {"|-": False, "<s>": True}
    assert counts["<s> </s>"] == {"|-": True, "<s>": False}
    with refused("range", "data.markers"):
        trained(tmp_path, spec, "wrong", data={"markers": "three <s> </s>"})


def test_inputs_of_a_language_model_are_read_as_its_data(tmp_path: Path, capsys, monkeypatch) -> None:
    run = str(trained(tmp_path, written(tmp_path, marked(LINES)), data={"unit": "line"})[0].path)
    plain = str(trained(tmp_path, written(tmp_path, LINES), "plain", data={"unit": "line"})[0].path)
    keeps = str(trained(tmp_path, written(tmp_path, [*marked(LINES), "ja"]), "keeps")[0].path)
    lines, bare = written(tmp_path, marked(LINES[:3]), "marked.txt"), written(tmp_path, LINES[:3], "bare.txt")
    pairs = [{"sentence_good": a, "sentence_bad": b} for a, b in itertools.pairwise(LINES) if a and b]
    pairs_marked = [{name: marked([text])[0] for name, text in pair.items()} for pair in pairs]

    def printed(*arguments: str) -> str:
        assert main([*arguments]) == 0
        return capsys.readouterr().out

    for verb in (["surprisal"], ["generate", "--seed", "1", "--max-tokens", "3", "--prompts"]):
        given = [verb[0], run, *verb[1:]]
        expected = printed(*given, bare)
        found, said = told(lambda given=given: printed(*given, lines))
        assert (found, len(said)) == (expected, 1)
        begun = written(tmp_path, [f"<s> {line}" for line in LINES[:3]], "begun.txt")
        assert told(lambda given=given, begun=begun: printed(*given, begun))[0] == expected
    for text in ("<s> ja", "<s> ja </s>"):
        found, said = told(lambda text=text: printed("generate", run, "--prompt", text, "--seed", "1"))
        assert (found, len(said)) == (printed("generate", run, "--prompt", "ja", "--seed", "1"), 1)
    monkeypatch.chdir(tmp_path)
    for text in ("<s> ja nein </s>", "ja nein"):
        told(lambda text=text: printed("inspect", run, "--text", text, "--out", f"{len(text)}.html"))
    pages = [(tmp_path / f"{size}.html").read_text().replace(f"{size}.html", "") for size in (7, 16)]
    assert pages[0] == pages[1]
    assert [":1: " in line for line in told(lambda: printed("generate", keeps, "--prompt", "<s> ja"))[1]] == [True]
    files = [written(tmp_path, [json.dumps(pair) for pair in each], f"{len(each)}.jsonl") for each in (pairs,)]
    expected = printed("evaluate", run, "--minimal-pairs", "--json", "--data", files[0])
    other = written(tmp_path, [json.dumps(pair) for pair in pairs_marked], "marked.jsonl")
    assert told(lambda: printed("evaluate", run, "--minimal-pairs", "--json", "--data", other))[0] == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(lines).read_bytes())))
    found, said = told(lambda: printed("surprisal", run))
    assert (found, len(said)) == (printed("surprisal", run, bare), 1)
    # Training data without markers: a file with them on every line is read so, and so is a pipe if all of it is there.
    assert told(lambda: printed("surprisal", plain, lines))[0] == printed("surprisal", plain, bare)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(lines).read_bytes())))
    found, said = told(lambda: printed("surprisal", plain))
    assert (found, len(said)) == (printed("surprisal", plain, bare), 1)
    monkeypatch.setattr(pipes, "ARRIVED_BYTES", 9)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(lines).read_bytes())))
    found, said = told(lambda: printed("surprisal", plain))
    assert found.count("<s>") == 3
    assert said[0].startswith("<stdin>:1: ")


SMALL = {"layer": "window", "embedding_size": 4, "hidden_size": 4, "options": {}}
STEP = {"steps": 1, "baseline": "none"}


def test_texts_to_classify(tmp_path: Path, capsys) -> None:
    texts = [f"{line} {i}" for i, line in enumerate(LINES[:10])]

    def table(texts: list[str], name: str) -> str:
        return written(tmp_path, ["text\tlabel", *(f"{t}\t{'AB'[i % 2]}" for i, t in enumerate(texts))], name)

    spec, bare = table(marked(texts), "marked.tsv"), table(texts, "bare.tsv")
    run, said = trained(tmp_path, spec, task="classify", model=SMALL, training=STEP)
    assert [line.split(": ")[0] for line in said] == [f"{spec}:2"]
    assert "<s>" not in run.vocabulary.tokenizer.words
    assert told(lambda: run.evaluate(spec))[0]["loss"] == run.evaluate(bare)["loss"]
    found = []
    for name in (spec, bare):
        assert told(lambda name=name: main(["predict", str(run.path), name, "--json"]))[0] == 0
        found.append([json.loads(line)["probabilities"] for line in capsys.readouterr().out.splitlines()])
    assert found[0] == found[1]
    some = table([*marked(texts[:-1]), texts[-1]], "some.tsv")
    run, said = trained(tmp_path, some, "some", task="classify", model=SMALL, training=STEP)
    assert [line.split(": ")[0] for line in said] == [f"{some}:2"]
    assert "<s>" in run.vocabulary.tokenizer.words


@pytest.mark.parametrize("sides", ["both", "targets"])
def test_pairs_with_markers_on_a_side(tmp_path: Path, sides: str, capsys) -> None:
    sources, targets = [f"{line}x x{i}" for i, line in enumerate(LINES[:8])], [f"y y{line}" for line in LINES[:8]]

    def pairs(sources: list[str], name: str) -> str:
        return written(tmp_path, ["\t".join(row) for row in zip(sources, marked(targets), strict=True)], name)

    spec = pairs(marked(sources) if sides == "both" else sources, "pairs.tsv")
    run, said = trained(tmp_path, spec, task="seq2seq", model={**SMALL, "layer": "gru"}, training=STEP)
    assert [line.split(": ")[0] for line in said] == [f"{spec}:1"]
    known = set(run.vocabulary.tokenizer.words) | set(run.vocabulary.target.words)
    assert not known & {"<s>", "</s>"}
    data, said = told(lambda: run.task.reader.read(spec, "test", run.vocabulary))
    assert (data.sources, data.targets) == (sources, targets)
    assert len(said) == 1


def test_words_to_tag_keep_their_markers(tmp_path: Path, capsys) -> None:
    rows = [f"{word}\t{'AB'[word == 'ja']}" if word else "" for line in LINES for word in [*line.split(), ""]]
    spec = written(tmp_path, rows, "a.conll")
    run, said = trained(tmp_path, spec, task="tag", model={**SMALL, "options": {"characters": "none"}}, training=STEP)
    assert not said
    lines = written(tmp_path, marked(["ja nein", "nein"]))
    code, said = told(lambda: main(["predict", str(run.path), lines]))
    assert [len(line.split()) for line in capsys.readouterr().out.splitlines()] == [4, 3]
    assert (code, [line.split(": ")[0] for line in said]) == (0, [f"{lines}:1"])
