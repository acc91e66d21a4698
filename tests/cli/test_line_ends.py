"""Every verb reads a file that ends its lines with CR as the same file with LF, and says so; kept runs do the work."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from seriatim.cli.main import main
from seriatim.data import pipes
from tests.golden.answers import GOLDEN

LM, MLM, CLASSIFY, TAG, SEQ2SEQ = (
    str(GOLDEN / name) for name in ("lm-lstm", "mlm-transformer", "classify-mean", "tag-words", "seq2seq-dot")
)
LINES = ["the cat sees the sea .", "", "nobody paints it .", "she forgets her brother ."]
TEXT = "".join(f"{line}\n" for line in LINES)
OBJECTS = "".join(json.dumps({"text": line, "source": line, "prompt": line}) + "\n" for line in LINES)
PAIRS = "".join(json.dumps({"sentence_good": line, "sentence_bad": f"{line} ."}) + "\n" for line in LINES)
DATA = {name: (GOLDEN / "data" / f"valid-{name}").read_text() for name in ("labels.tsv", "pairs.tsv", "tags.conll")}
WITHOUT_LABELS = "text\tlabel\n" + "".join(f"{line}\t\n" for line in LINES if line)
VERBS: dict[str, tuple[list[str], str, str]] = {
    "evaluate lm": (["evaluate", LM, "--json", "--data"], "a.txt", TEXT),
    "evaluate lm on JSONL": (["evaluate", LM, "--json", "--data"], "a.jsonl", OBJECTS),
    "evaluate mlm": (["evaluate", MLM, "--json", "--data"], "a.txt", TEXT),
    "evaluate classify": (["evaluate", CLASSIFY, "--json", "--data"], "a.tsv", DATA["labels.tsv"]),
    "evaluate tag": (["evaluate", TAG, "--json", "--data"], "a.conll", DATA["tags.conll"]),
    "evaluate seq2seq": (["evaluate", SEQ2SEQ, "--json", "--data"], "a.tsv", DATA["pairs.tsv"]),
    "evaluate minimal pairs": (["evaluate", LM, "--json", "--minimal-pairs", "--data"], "a.jsonl", PAIRS),
    "surprisal": (["surprisal", LM], "a.txt", TEXT),
    "surprisal of JSONL": (["surprisal", LM], "a.jsonl", OBJECTS),
    "generate": (["generate", LM, "--max-tokens", "5", "--seed", "1", "--prompts"], "a.txt", TEXT),
    "generate from JSONL": (["generate", LM, "--max-tokens", "5", "--seed", "1", "--prompts"], "a.jsonl", OBJECTS),
    "predict classify": (["predict", CLASSIFY], "a.txt", TEXT),
    "predict a table": (["predict", CLASSIFY], "a.tsv", WITHOUT_LABELS),
    "predict a table of CSV": (["predict", CLASSIFY], "a.csv", WITHOUT_LABELS.replace("\t", ",")),
    "predict classify on JSONL": (["predict", CLASSIFY], "a.jsonl", OBJECTS),
    "predict tag": (["predict", TAG], "a.txt", TEXT),
    "predict tag on columns": (["predict", TAG], "a.conll", DATA["tags.conll"]),
    "predict seq2seq": (["predict", SEQ2SEQ], "a.txt", TEXT),
    "predict seq2seq on a table": (["predict", SEQ2SEQ], "a.tsv", DATA["pairs.tsv"]),
    "predict seq2seq on JSONL": (["predict", SEQ2SEQ], "a.jsonl", OBJECTS),
    "predict mlm": (["predict", MLM], "a.txt", TEXT.replace("the", "[MASK]")),
    "check lm": (["check", "lm", "--json", "--data.unit", "line", "--data"], "a.txt", TEXT),
    "check classify": (["check", "classify", "--json", "--data"], "a.tsv", DATA["labels.tsv"]),
}
TAKES_PIPES = ("predict", "surprisal", "generate")


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[[list[str], bytes, str], str]:
    """What a command prints for a file with this content, without what it says of repairs."""

    def call(command: list[str], content: bytes, name: str) -> str:
        (tmp_path / name).write_bytes(content)
        assert main([*command, str(tmp_path / name)]) == 0
        out = capsys.readouterr().out
        return re.sub(r', "repairs": .*?\]', "", out)

    return call


@pytest.mark.parametrize("verb", VERBS)
def test_cr_ends_a_line_for_every_verb(verb: str, printed, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(GOLDEN)
    command, name, text = VERBS[verb]
    expected = printed(command, text.encode(), name)
    assert expected
    first = text.split("\n")
    mixed = "\n".join([*first[:2], "\r".join(first[2:])])
    for content, line in ((text.replace("\n", "\r"), 1), (mixed, 3)):
        with pytest.warns(UserWarning, match=rf"{name}:{line}: a CR without LF.*--strict") as told:
            assert printed(command, content.encode(), name) == expected
        assert len({str(warning.message) for warning in told}) == 1
        assert main([*command, str(tmp_path / name), "--strict"]) == 2
        assert re.search(rf"{name}:{line}: a CR without LF", capsys.readouterr().err)
    if command[0] in TAKES_PIPES:
        pipes.spool.cache_clear()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.replace("\n", "\r").encode())))
        by_name = {"jsonl": "jsonl", "tsv": "tsv", "csv": "csv", "conll": "conll"}.get(name.partition(".")[2])
        with pytest.warns(UserWarning, match="<stdin>:1: a CR without LF"):
            assert main([*command, "-", *(["--format", by_name] if by_name else [])]) == 0
        assert capsys.readouterr().out == expected


def test_predict_answers_every_row_of_a_table_with_cr(printed, monkeypatch) -> None:
    monkeypatch.chdir(GOLDEN)
    with pytest.warns(UserWarning, match="a CR without LF"):
        found = printed(["predict", CLASSIFY], WITHOUT_LABELS.replace("\n", "\r").encode(), "a.tsv")
    assert found.count("\n") == WITHOUT_LABELS.count("\n") - 1
