"""Columns in and out: everything but the tags comes back as it was, and what is wrong is named by line."""

import gzip
import random
from pathlib import Path

import pytest

from seriatim.data.conll import Sentence, read_sentences, read_untagged, write
from seriatim.data.repairs import Repairs
from seriatim.data.sources import find_sources
from seriatim.data.tag_sets import marks_chunks, to_scheme

from ..refusals import refused

CONLLU = """# newdoc id = one
# text = Vámonos al mar
1-2	Vámonos	_	_	_	_	_	_	_	SpaceAfter=No
1	Vamos	ir	VERB	V	Mood=Imp	0	root	_	_
2	nos	nosotros	PRON	P	_	1	obj	_	_
3-4	al	_	_	_	_	_	_	_	_
3	a	a	ADP	_	_	5	case	_	_
4	el	el	DET	_	_	5	det	_	_
4.1	gran	grande	ADJ	_	_	_	_	_	_
5	mar y cielo	mar	NOUN	_	_	1	obl	_	_

# text = Sí
1	Sí	sí	INTJ	_	_	0	root	_	_

"""
PLAIN = """-DOCSTART- -X- O

Ada NNP B-PER
Lovelace NNP I-PER
wrote VBD O

#tags NN O

"""


def written(folder: Path, text: str | bytes, name: str = "a.conll") -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def sentences(spec: str, **options) -> list[Sentence]:
    return list(read_sentences(find_sources(spec), **options))


def rewritten(found: list[Sentence]) -> str:
    return "".join(write(sentence, sentence.tags) for sentence in found)


def test_conllu_words_are_neither_ranges_nor_empty_nodes(tmp_path: Path) -> None:
    first, second = sentences(written(tmp_path, CONLLU, "a.conllu"))
    assert first.words == ["Vamos", "nos", "a", "el", "mar y cielo"]
    assert first.tags == ["VERB", "PRON", "ADP", "DET", "NOUN"]
    assert (second.words, second.tags, second.number) == (["Sí"], ["INTJ"], 12)
    assert sentences(written(tmp_path, CONLLU, "a.conllu"), column="deprel")[0].tags[0] == "root"
    assert sentences(written(tmp_path, CONLLU, "a.conllu"), column="feats")[0].tags == ["Mood=Imp", *"____"]


def test_plain_columns_have_the_word_first_and_the_tag_last(tmp_path: Path) -> None:
    first, second = sentences(written(tmp_path, PLAIN))
    assert (first.words, first.tags) == (["Ada", "Lovelace", "wrote"], ["B-PER", "I-PER", "O"])
    assert (second.words, second.number, second.rows) == (["#tags"], 7, [0])
    assert sentences(written(tmp_path, PLAIN), column="2")[0].tags == ["NNP", "NNP", "VBD"]


def test_only_the_tag_column_changes(tmp_path: Path) -> None:
    found = sentences(written(tmp_path, CONLLU, "a.conllu"), column="xpos", labelled=False)
    text = "".join(write(sentence, ["X"] * len(sentence.words)) for sentence in found)
    changed = [pair for pair in zip(CONLLU.split("\n"), text.split("\n"), strict=True) if pair[0] != pair[1]]
    assert len(changed) == 6
    for before, after in changed:
        assert after.split("\t") == [*before.split("\t")[:4], "X", *before.split("\t")[5:]]
    spaced = "Ada   NNP  O \nwrote VBD  O\n"
    (sentence,) = sentences(written(tmp_path, spaced))
    assert write(sentence, ["B-PER", "X"]) == "Ada   NNP  B-PER \nwrote VBD  X\n"
    with pytest.raises(ValueError, match="shorter"):
        write(sentence, ["O"])


def conllu_line(choose: random.Random, place: str) -> str:
    fields = [choose.choice(["a", "é b", "#", "-DOCSTART-", "_", "\u2028", "\u00a0"]) for _ in range(9)]
    return "\t".join([place, *fields])


def generated_conllu(choose: random.Random) -> list[str]:
    lines, count, last = ["# x = y\tz", "#"][: choose.randrange(3)], choose.randrange(1, 5), 0
    for i in range(1, count + 1):
        if choose.random() < 0.3 and last < i < count:
            last = i + choose.choice([1, count - i])
            lines.append(conllu_line(choose, f"{i}-{last}"))
        lines.append(conllu_line(choose, str(i)))
        if choose.random() < 0.3:
            lines.append(conllu_line(choose, f"{i}.1"))
    return lines


def generated_columns(choose: random.Random, count: int, gap: str) -> list[str]:
    """Words and tags that hold anything but what is between columns; no sentence looks like a comment."""
    fields = ["a", "é\u00a0b", "#", "1", "O", "\u2028"]
    lines = [[choose.choice(fields) for _ in range(count)] for _ in range(choose.randrange(1, 5))]
    lines[0][0] = lines[0][0].replace("#", "#" if gap == "\t" else "#tag")
    return [gap.join(line) for line in lines]


@pytest.mark.parametrize("kind", ["conllu", "tabs", "spaces"])
@pytest.mark.parametrize("seed", range(30))
def test_writing_ones_own_tags_gives_the_file(tmp_path: Path, kind: str, seed: int) -> None:
    choose = random.Random(seed)
    count = choose.randrange(2, 5)
    lines, words = [""] * choose.randrange(3), 0
    for _ in range(choose.randrange(1, 6)):
        if kind == "conllu":
            block = generated_conllu(choose)
            words += sum(line.split("\t")[0].isdigit() for line in block)
        else:
            block = generated_columns(choose, count, "\t" if kind == "tabs" else " ")
            words += len(block)
            if choose.random() < 0.3:
                lines += ["-DOCSTART- -X-", ""]
        lines += [*block, *choose.choices(["", "\t", " "], k=choose.randrange(1, 4))]
    while not lines[-1].strip():
        lines.pop()
    lines += [""] * choose.randrange(3)
    end = choose.choice(["\n", "\r\n"])
    text = "\n".join(lines)
    raw = text.replace("\n", end) + choose.choice(["", end] if lines[-1] else [""])
    name = "a.conllu" if kind == "conllu" else "a.txt"
    raw_bytes = (choose.choice(["", "\ufeff"]) + raw).encode()
    spec = written(tmp_path, gzip.compress(raw_bytes), f"{name}.gz") if seed % 2 else written(tmp_path, raw_bytes, name)
    formats = ["auto", "conllu" if kind == "conllu" else "conll"]
    found = sentences(spec, file_format=choose.choice(formats), labelled=kind != "conllu")
    assert sum(len(sentence.words) for sentence in found) == words
    assert rewritten(found) == (text if text.endswith("\n") else text + "\n")
    for sentence in found:
        assert len(sentence.words) == len(sentence.tags) == len(sentence.rows)
        assert lines[sentence.number - 1] == sentence.lines[0]


def test_the_format_shows_in_the_first_word(tmp_path: Path) -> None:
    assert sentences(written(tmp_path, CONLLU, "a.txt"))[0].tags[0] == "VERB"
    with refused("malformed", "a.txt:4"):
        sentences(written(tmp_path, CONLLU.replace("\t", " ").replace("1-2 ", "# "), "a.txt"))
    assert sentences(written(tmp_path, "# O\n1 O\n", "a.txt"))[0].words == ["#", "1"]


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("Ada\nwrote\n", None, "Ada\tX\nwrote\tX\n"),
        ("Ada\t\nwrote\t\n", None, "Ada\tX\nwrote\tX\n"),
        ("Ada\t_\nwrote\tO\n", None, "Ada\tX\nwrote\tX\n"),
        ("Ada NNP\nwrote VBD\n", "3", "Ada NNP X\nwrote VBD X\n"),
        ("Ada\tNNP\nwrote\tVBD\n\n\n", "3", "Ada\tNNP\tX\nwrote\tVBD\tX\n\n\n"),
        ("Ada\tI-PER\nwrote\tI-\n", None, "Ada\tX\nwrote\tX\n"),
    ],
)
def test_sentences_may_come_without_tags(tmp_path: Path, text: str, column: str | None, expected: str) -> None:
    (sentence,) = sentences(written(tmp_path, text), column=column, labelled=False)
    assert write(sentence, ["X", "X"]) == expected
    if "O" not in text and "I" not in text and column is None:
        assert sentence.tags == ["_", "_"]


WORD, RANGE = "1\ta\ta\tNOUN\tN\t_\t0\troot\t_\t_", "\t_" * 8


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        (f"{WORD}\n2\tb\n", "malformed", "a.conllu:2"),
        (WORD.replace("\t", "  "), "malformed", "a.conllu:1"),
        (f"{WORD}\n3{WORD[1:]}\n", "malformed", "a.conllu:2"),
        (f"{WORD}\n{WORD}\n", "malformed", "a.conllu:2"),
        (f"2{WORD[1:]}\n", "malformed", "a.conllu:1"),
        (f"{'9' * 5000}{WORD[1:]}\n", "malformed", "a.conllu:1"),
        (f"x{WORD[1:]}\n", "malformed", "a.conllu:1"),
        (f"{WORD}\n\n# one\n# two\n\n{WORD}\n", "malformed", "a.conllu:3"),
        (f"{WORD}\n\n# one\n", "malformed", "a.conllu:3"),
        (f"{WORD}\n2-3\tbc{RANGE}\n2{WORD[1:]}\n\n{WORD}\n", "malformed", "a.conllu:2"),
        (f"1-2\tbc{RANGE}\n{WORD}\n", "malformed", "a.conllu:1"),
        (f"{WORD}\n\n{WORD}\n2-99\tbc{RANGE}\n", "malformed", "a.conllu:4"),
        (f"{WORD}\n2.1\tbc{RANGE}\n", "malformed", "a.conllu:2"),
        (f"2-1\tbc{RANGE}\n{WORD}\n2{WORD[1:]}\n", "malformed", "a.conllu:1"),
        (f"1-2\tbc{RANGE}\n{WORD}\n2-3\tbc{RANGE}\n2{WORD[1:]}\n3{WORD[1:]}\n", "malformed", "a.conllu:3"),
        (f"1-2\tbc{RANGE}\n1-2\tbc{RANGE}\n{WORD}\n2{WORD[1:]}\n", "malformed", "a.conllu:2"),
        (f"1-3\tb{RANGE}\n{WORD}\n2{WORD[1:]}\n2-3\tb{RANGE}\n3{WORD[1:]}\n", "malformed", "a.conllu:4"),
        (f"{WORD}\n2{WORD[1:]}\n1-2\tbc{RANGE}\n", "malformed", "a.conllu:3"),
        (f"{WORD}\n\n{WORD}\n1-2\tbc{RANGE}\n2{WORD[1:]}\n", "malformed", "a.conllu:4"),
        (f"2-3\tbc{RANGE}\n{WORD}\n2{WORD[1:]}\n3{WORD[1:]}\n", "malformed", "a.conllu:1"),
        (f"1-{'9' * 5000}\tbc{RANGE}\n{WORD}\n", "malformed", "a.conllu:1"),
        (WORD.replace("a\ta", "\ta"), "malformed", "a.conllu:1"),
        (WORD.replace("NOUN", ""), "malformed", "a.conllu:1"),
        (WORD.replace("NOUN", "_"), "malformed", "a.conllu:1"),
        ("", "empty", "a.conllu:1"),
        ("\n\n", "empty", "a.conllu:1"),
    ],
)
def test_conllu_that_is_wrong_is_named(tmp_path: Path, text: str, kind: str, place: str) -> None:
    with refused(kind, place) as raised:
        sentences(written(tmp_path, text, "a.conllu"))
    assert "; " in str(raised.value)


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("a\tO\nb\tN\tO\n", "malformed", "a.conll:2"),
        ("a\tO\n\nb O\n", "malformed", "a.conll:3"),
        ("a O\nb\tO\n", "malformed", "a.conll:2"),
        ("a O\nb x\tO O\n", "malformed", "a.conll:2"),
        ("a\nb\n", "malformed", "a.conll:1"),
        ("a\tO\n\tO\n", "malformed", "a.conll:2"),
        (" a O\n", "malformed", "a.conll:1"),
        ("a\tO\nb\t\n", "malformed", "a.conll:2"),
        ("-DOCSTART- -X- O\n", "empty", "a.conll:1"),
        ("a\tO\nb\tI-PER\n", "malformed", "a.conll:2"),
        ("a\tI-PER\nb\tO\n", "malformed", "a.conll:1"),
        ("a\tB-LOC\nb\tI-PER\n", "malformed", "a.conll:2"),
        ("a\tB-PER\n\nb\tI-PER\n", "malformed", "a.conll:3"),
        ("-DOCSTART-\nz\tB-N\n\na\tO\nb\tI-\n", "malformed", "a.conll:5"),
        ("a\tO\nb\tB-\n", "malformed", "a.conll:2"),
    ],
)
def test_columns_that_are_wrong_are_named(tmp_path: Path, text: str, kind: str, place: str) -> None:
    with refused(kind, place) as raised:
        sentences(written(tmp_path, text))
    assert "; " in str(raised.value)


@pytest.mark.parametrize(
    ("options", "kind", "place", "value"),
    [
        ({"column": "uppos"}, "unknown", "column 'uppos'", "upos"),
        ({"column": "upos", "file_format": "conll"}, "range", "", ""),
        ({"column": "1", "file_format": "conll"}, "range", "", ""),
        ({"column": "12", "file_format": "conll"}, "malformed", "a.conllu:1", ""),
        ({"file_format": "conlu"}, "unknown", "", "conllu"),
        ({"scheme": "iob"}, "unknown", "", "iob1"),
    ],
)
def test_options_that_are_not_there_are_refused(
    tmp_path: Path, options: dict[str, str], kind: str, place: str, value: str
) -> None:
    with refused(kind, place, value):
        sentences(written(tmp_path, WORD, "a.conllu"), **options)


COMMENTED = {
    "spaces": ["# newdoc id = 1", "#a NN O", "b NN O", "", "# NN O", "c VB B-X", "", "# sent = 2", "# x y z", "d NN O"],
    "tabs": ["# newdoc", "#a\tNN\tO", "b\tNN\tO", "", "#\tNN\tO", "", "# x\tb\tc", "# text = d", "d\tNN\tO"],
    "no tags": ["# newdoc id", "#a", "b", "", "#", "", "# sent", "d"],
    "hashtags alone": ["#a O", "", "#b O", "", "#c B-X"],
    "between documents": ["# 1", "", "-DOCSTART- -X- O", "", "# two", "a B-X", "# O", "#b O", "", "# the", "#end"],
}


@pytest.mark.parametrize("name", COMMENTED)
@pytest.mark.parametrize("labelled", [True, False])
def test_comments_of_columns_are_told_from_words(tmp_path: Path, name: str, labelled: bool) -> None:
    """They are kept where they are, and words that begin with # stay words, wherever they are in the file."""
    lines, repairs = COMMENTED[name], Repairs()
    if labelled and name == "no tags":
        return
    spec = written(tmp_path, "".join(f"{line}\n" for line in lines))
    found = sentences(spec, labelled=labelled, labels=["B-X", "I-X", "O"], repairs=repairs)
    comments = [line for line in lines if line.startswith("# ") and line not in ("# NN O", "# O")]
    comments += ["#end"] if "#end" in lines else []
    assert sum(repair.count for repair in repairs) == len(comments)
    words = [line for line in lines if line and line not in comments and "DOC" not in line]
    assert [word for one in found for word in one.words] == [
        line.split("\t" if "\t" in line else " ")[0] for line in words
    ]
    if not labelled:
        assert (
            rewritten([one._replace(column=99) if name == "no tags" else one for one in found]).split("\n")[0]
            == lines[0]
        )
        assert [line for one in found for line in one.lines] == lines
    if comments:
        with refused("malformed", f":{lines.index(comments[0]) + 1}"):
            sentences(spec, labelled=labelled, labels=["B-X", "I-X", "O"])


def test_iob1_becomes_bio(tmp_path: Path) -> None:
    tags = ["I-A", "I-A", "B-A", "I-A", "O", "I-B", "I-A", "B-B", "I-B"]
    expected = ["B-A", "I-A", "B-A", "I-A", "O", "B-B", "B-A", "B-B", "I-B"]
    assert to_scheme(tags, "bio") == to_scheme(expected, "bio") == expected
    text = "".join(f"w\t{tag}\n" for tag in tags)
    (sentence,) = sentences(written(tmp_path, text), scheme="iob1")
    assert sentence.tags == expected
    assert rewritten(sentences(written(tmp_path, write(sentence, sentence.tags)))) == rewritten([sentence])


def test_tags_that_are_no_chunks_are_left_alone(tmp_path: Path) -> None:
    """Some treebanks call an interjection ``I-``, and some tag sets have a tag ``B``."""
    assert sentences(written(tmp_path, "a\tI-\nb\tV-\n\nc\tNOUN\n"))[0].tags == ["I-", "V-"]
    found = sentences(written(tmp_path, WORD.replace("\tN\t", "\tI-x\t"), "a.conllu"), column="xpos")
    assert found[0].tags == ["I-x"]


def test_sentences_are_read_as_they_are_needed(tmp_path: Path) -> None:
    text = "a\tO\n\n" * 3 + "b\n"
    stream = read_sentences(find_sources(written(tmp_path, text)), labelled=False)
    assert [next(stream).words for _ in range(2)] == [["a"], ["a"]]
    with refused("malformed", "a.conll:7"):
        list(stream)


def test_text_that_looks_like_jsonl_gives_a_warning(tmp_path: Path) -> None:
    spec = written(tmp_path, '{"text": "a b"}\n{"text": "c"}\n', "a.txt")
    with pytest.warns(UserWarning, match=r"a\.txt:1: looks like JSONL, but is read as text; use --format jsonl"):
        assert list(read_untagged(find_sources(spec))) == ['{"text": "a b"}', '{"text": "c"}']
    assert list(read_untagged(find_sources(spec, file_format="jsonl"), file_format="jsonl")) == ["a b", "c"]
    assert list(read_untagged(find_sources(spec), file_format="text")) == ['{"text": "a b"}', '{"text": "c"}']


@pytest.mark.parametrize(
    ("tags", "kind", "line", "count"),
    [
        (["B-X", "I-X", "O", "B", "I", "B-X"], "tag that marks no chunk", 4, 20),
        (["B-X", "B-X", "O", "B", "B"], "tag that marks no chunk", 4, 20),
        (["B", "I", "O", "B-X"], "tag that marks no chunk", 4, 10),
        (["O", "B-X", "X", "X"], "chunks beside other tags", 3, 1),
    ],
)
def test_chunks_with_and_without_types_are_counted_or_told(
    tmp_path: Path, tags: list[str], kind: str, line: int, count: int
) -> None:
    spec, repairs = written(tmp_path, "".join(f"w\t{tag}\n" for tag in tags) * 10), Repairs()
    found = [tag for sentence in sentences(spec, repairs=repairs) for tag in sentence.tags]
    assert marks_chunks(found) == (kind == "tag that marks no chunk")
    assert [(each.kind, each.line, each.count) for each in repairs.found() if "I-" not in each.kind] == [
        (kind, line, count)
    ]
