"""ARPA files: written, read again, read by another library, refused."""

import gzip
import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seriatim.cli.main import main
from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.core.errors import InputError
from seriatim.counting.ngram import NGram
from seriatim.counting.ngrams.counts import count_ngrams
from seriatim.counting.ngrams.smoothing import Smoothing, smoothed
from seriatim.counting.ngrams.table import orders_of
from seriatim.data.repairs import DataWarning, Repairs
from seriatim.data.tokenizers import Spelling, Tokenizer, WordTokenizer
from seriatim.data.vocabulary import fit_tokenizer
from seriatim.interchange.arpa import ESCAPED, read_arpa, write_arpa

from ..refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore:too few")
LINES = [
    "the ship sails over the sea .",
    "the moon is over the sea , and the ship is far",
    "she likes the sea .",
    "a word with \\ in it , and <s> and </s> and <unk> as words",
    "",
    "the ship sails home .",
]


def made(kind: str, order: int, lines: list[str] = LINES) -> tuple[NGram, Tokenizer]:
    tokenizer = fit_tokenizer(TokenizerConfig(kind=kind), lines)
    ids = np.concatenate([np.append(tokenizer.encode(line), 0) for line in lines]).astype(np.int32)
    size = tokenizer.vocabulary_size
    pieces = smoothed(count_ngrams(ids, order, size), size, Smoothing(), unknown=tokenizer.unknown_id)
    return NGram(orders_of(pieces)), tokenizer


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
@pytest.mark.parametrize(("kind", "order"), [("word", 1), ("word", 3), ("char", 5), ("byte", 2)])
def test_what_is_written_is_read(tmp_path: Path, kind: str, order: int, name: str) -> None:
    model, tokenizer = made(kind, order)
    write_arpa(model.table.orders, tokenizer, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    found = read_arpa(tmp_path / name)
    if tokenizer.unknown_id == 1:
        texts = [tokenizer.token_bytes(token).decode() for token in range(2, tokenizer.vocabulary_size)]
        assert found.words == texts
        for mine, other in zip(model.table.orders, found.orders, strict=True):
            assert np.array_equal(mine.key, other.key)
            np.testing.assert_allclose(mine.probability, other.probability, rtol=1e-8)
            np.testing.assert_allclose(mine.backoff, other.backoff, rtol=1e-8)


@pytest.mark.parametrize(("kind", "order"), [("word", 2), ("word", 4), ("char", 5)])
def test_kenlm_gives_the_same_scores(tmp_path: Path, kind: str, order: int) -> None:
    kenlm = pytest.importorskip("kenlm")
    plain = [line for line in LINES if "<" not in line and line]
    model, tokenizer = made(kind, order, plain)
    write_arpa(model.table.orders, tokenizer, tmp_path / "model.arpa")
    theirs = kenlm.Model(str(tmp_path / "model.arpa"))
    for line in [*plain, "the sea sails xyzzy over the ship ."]:
        words = line.split() if kind == "word" else list(line.replace(" ", "_"))
        spelled = " ".join(words).replace("_", "\\x20")
        ids = np.append(tokenizer.encode(line), 0).astype(np.int64)
        found = [part[0] for part in theirs.full_scores(spelled)]
        np.testing.assert_allclose(found, model.text_losses(ids) / -math.log(10), atol=2e-6)


GOOD = """\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-1.0\t<unk>
-99\t<s>\t-0.3
-0.5\ta\t-0.2
-0.4\t</s>

\\2-grams:
-0.2\t<s> a
-0.1\ta </s>

\\end\\
"""


def test_a_file_of_another_program(tmp_path: Path) -> None:
    """Spaces for tabs, lines before, the other spelling of the unknown word, a gzip file without its ending."""
    text = "made by hand\n\n" + GOOD.replace("\t", " ").replace("<unk>", "<UNK>")
    (tmp_path / "a").write_bytes(gzip.compress(text.encode()))
    found = read_arpa(tmp_path / "a")
    assert found.words == ["a"]
    model = NGram(found.orders)
    expected = [10**-0.2, 10**-0.1, 10 ** (-0.3 - 1.0), 10**-0.4]
    losses = model.text_losses(np.array([2, 0, 1, 0]))
    np.testing.assert_allclose(np.exp(-losses), expected)


@pytest.mark.parametrize(
    ("old", "new", "kind", "place"),
    [
        ("ngram 2=2", "ngram 2=3", "malformed", "a:15"),
        ("ngram 2=2", "ngram 2=1", "malformed", "a:13"),
        ("ngram 1=4", "ngram 1=3", "malformed", "a:9"),
        ("ngram 2=2", "ngram 3=2", "malformed", "a:3"),
        ("\\data\\", "", "malformed", "a:15"),
        ("ngram 1=4\nngram 2=2\n", "", "malformed", "a:3"),
        ("a </s>", "b </s>", "malformed", "a:13"),
        ("a </s>", "<s> a", "malformed", "a:13"),
        ("-0.5\ta", "-0.5\t<unk>", "malformed", "a:8"),
        ("-0.5\ta", "nan\ta", "malformed", "a:8"),
        ("-0.5\ta", "x\ta", "malformed", "a:8"),
        ("-0.5\ta", "0.5\ta", "malformed", "a:8"),
        ("\ta </s>", "\ta <s>", "malformed", "a:13"),
        ("\\end\\\n", "", "malformed", "a:14"),
        ("\t-0.2\n", "\t-0.2\t5\n", "malformed", "a:8"),
        ("\t-0.2\n", "\t1e5\n", "malformed", "a:8"),
        ("-0.5\ta", "-0.5\t", "malformed", "a:8"),
        ("-0.5\ta", "-0.5\t<UNK>", "malformed", "a:8"),
        ("ngram 1=4", "ngram 1=999999999999999", "malformed", "a:2"),
        ("ngram 2=2", "ngram 2=" + 5000 * "9", "malformed", "a:3"),
    ],
)
def test_damaged_files_are_refused_with_the_line(tmp_path: Path, old: str, new: str, kind: str, place: str) -> None:
    assert old in GOOD
    (tmp_path / "a").write_text(GOOD.replace(old, new, 1))
    with refused(kind, place):
        read_arpa(tmp_path / "a")


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("word\n" * 1000)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(GOOD.encode())[:-20])
    packed = bytearray(gzip.compress(GOOD.encode()))
    packed[20:40] = bytes(20)
    (tmp_path / "damaged.gz").write_bytes(packed)
    (tmp_path / "empty").write_text("")
    for name, message in (
        ("long", "give an ARPA file"),
        ("bytes", "not UTF-8"),
        ("cut.gz", "cannot be read"),
        ("damaged.gz", "cannot be read"),
        ("empty", ":1: ends too early"),
        ("no", "no"),
    ):
        with pytest.raises(InputError, match=message):
            read_arpa(tmp_path / name)


def test_tokens_that_need_it_are_written_with_backslashes(tmp_path: Path) -> None:
    model, tokenizer = made("word", 2)
    write_arpa(model.table.orders, tokenizer, tmp_path / "model.arpa")
    text = (tmp_path / "model.arpa").read_text()
    assert ESCAPED in text
    assert "\t\\<s>" in text
    assert "\t\\\\\t" in text or "\t\\\\\n" in text


def test_unknown_words_by_their_other_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(GOOD.replace("<unk>", "<UNK>").replace("\ta </s>", "\ta <UNK>"))
    found = read_arpa(tmp_path / "a")
    assert found.words == ["a"]
    assert len(found.orders[1].key) == 2


def test_words_of_any_characters_come_back(tmp_path: Path) -> None:
    """Among them those that look like white space, like escapes, and like the names of the format."""
    words = ["it\x92s", "a\x85b", "a\xa0b", "\u2003", "<UNK>", "<unk", "\\x41", "\\", "\x7f", "\U0001f642", "\ue000"]
    tokenizer = WordTokenizer(words, Spelling())
    ids = np.array([2 + i % len(words) for i in range(40)] + [0], dtype=np.int32)
    size = tokenizer.vocabulary_size
    model = NGram(orders_of(smoothed(count_ngrams(ids, 2, size), size, Smoothing())))
    write_arpa(model.table.orders, tokenizer, tmp_path / "model.arpa")
    found = read_arpa(tmp_path / "model.arpa")
    assert found.words == words
    again = NGram(found.orders).text_losses(ids)
    np.testing.assert_allclose(again, model.text_losses(ids), atol=1e-8)


BOUNDARIES = """\\data\\
ngram 1=5
ngram 2=6

\\1-grams:
-99\t<s>\t-0.30103
-0.60206\t</s>\t-0.1
-0.60206\tja\t-0.2
-0.60206\tnein\t-0.2
-0.60206\t<unk>

\\2-grams:
-99\t<s> <s>
-1.5\t</s> <s>
-0.30103\t<s> ja
-0.69897\t<s> nein
-0.30103\tja </s>
-0.1249387\tnein ja

\\end\\
"""


def scores(path: Path, lines: list[str], repairs: Repairs | None = None) -> list[float]:
    """Return log10 of the probability of each line, its end included."""
    arpa = read_arpa(path, repairs)
    ids = {word: i for i, word in enumerate(arpa.words, 2)}
    texts = [np.array([*(ids.get(word, 1) for word in line.split(" ") if word), 0]) for line in lines]
    return [float(-NGram(arpa.orders).text_losses(text).sum() / math.log(10)) for text in texts]


def test_ngrams_across_a_boundary_are_left_out_and_counted(tmp_path: Path, capsys) -> None:
    path, run = tmp_path / "a.arpa", str(tmp_path / "run")
    path.write_text(BOUNDARIES)
    repairs = Repairs()
    assert scores(path, ["ja", "nein ja", "ja nein"], repairs) == pytest.approx(
        [-0.60206, -1.12494, -1.90515], abs=1e-5
    )
    assert [(repair.line, repair.count) for repair in repairs] == [(13, 2)]
    assert main(["import", str(path), "--out", run, "--strict"]) == 2
    assert f"{path}:13: " in capsys.readouterr().err
    with pytest.warns(DataWarning, match=r":13: .*2 times"):
        assert main(["import", str(path), "--out", run]) == 0


WORDS = ["ja", "nein", "a\xa0b", "#", "1", "-0.5"]


def listed(draw: random.Random) -> list[dict[tuple[str, ...], tuple[float, float]]]:
    """Return random n-grams of two or three orders (KenLM needs two) with log10 of probability and back-off weight."""
    vocabulary = ["<s>", "</s>", "<unk>", *draw.sample(WORDS, 3)]
    grams = [[(word,) for word in vocabulary]]
    for _ in range(draw.choice([1, 2])):
        contexts = [gram for gram in grams[-1] if gram[-1] != "</s>"]
        longer = [(*gram, word) for gram in contexts for word in vocabulary if (*gram[1:], word) in grams[-1]]
        longer = [gram for gram in longer if gram[-1] != "<s>"]
        grams.append(draw.sample(longer, draw.randrange(1, max(2, len(longer)))) if longer else [])
    return [{gram: (-draw.random(), round(draw.uniform(-1, 0.2), 4)) for gram in order} for order in grams]


def spelled_oddly(grams: list[dict[tuple[str, ...], tuple[float, float]]], draw: random.Random) -> tuple[str, int]:
    """Return a file as the toolkits and editors of the world leave it, and the number of repairs that it needs."""
    blank = draw.choice(["\t", " ", "  ", "\t\t", " \t"])
    capitals = {name: draw.choice([name, name.upper()]) for name in ("<s>", "</s>", "<unk>")}
    ending, trail, apart = draw.choice(["\n", "\r\n", "\r"]), draw.choice(["", " ", "\t"]), draw.choice(["", "\n"])
    lines = draw.choice([[], [""], ["# made by hand", "Beginning of data mark: \\data\\", "\\1-grams:"]])
    repairs = sum(name in ("<S>", "</S>") for name in capitals.values())
    sections = []
    for n, order in enumerate(grams, 1):
        entries = [[f"{p:.8g}" if draw.random() < 0.5 else f"{p:.8e}", *gram, f"{b}"] for gram, (p, b) in order.items()]
        for entry in entries:
            if n == len(grams):
                entry[-1:] = draw.choice([[], ["0"], ["-0.0"], ["0.25"]])
                repairs += entry[-1:] == ["0.25"]
        if n > 1:
            crossing = draw.sample([["<s>"] * n, ["</s>"] * n, ["</s>", *["<s>"] * (n - 1)]], draw.randrange(3))
            entries += [["-99", *gram] for gram in crossing]
            repairs += len(crossing)
        draw.shuffle(entries)
        sections.append([blank.join(capitals.get(field, field) for field in entry) + trail for entry in entries])
    lines += ["\\data\\" + trail, *(f"ngram {n}={len(section)}{trail}" for n, section in enumerate(sections, 1))]
    for n, section in enumerate(sections, 1):
        lines += [f"{apart}\\{n}-grams:{trail}", *section]
    whole = "\n".join([*lines, f"{apart}\\end\\{trail}", ""])
    return whole.replace("\n", ending), repairs + (whole.count("\n") if ending == "\r" else 0)


def spelled_plainly(grams: list[dict[tuple[str, ...], tuple[float, float]]]) -> str:
    text = "\\data\\\n" + "".join(f"ngram {n}={len(order)}\n" for n, order in enumerate(grams, 1))
    for n, order in enumerate(grams, 1):
        text += f"\n\\{n}-grams:\n"
        for gram, (p, backoff) in order.items():
            text += f"{p:.8g}\t{' '.join(gram)}" + (f"\t{backoff}\n" if n < len(grams) else "\n")
    return f"{text}\n\\end\\\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.randoms(use_true_random=False), st.booleans())
def test_odd_files_score_as_kenlm_scores_plain_ones(tmp_path: Path, draw: random.Random, packed: bool) -> None:
    kenlm = pytest.importorskip("kenlm")
    grams = listed(draw)
    text, count = spelled_oddly(grams, draw)
    (tmp_path / "odd").write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    (tmp_path / "plain").write_text(spelled_plainly(grams))
    lines = [" ".join(draw.choices([*WORDS, "other"], k=draw.randrange(5))) for _ in range(8)]
    repairs = Repairs()
    model = kenlm.Model(str(tmp_path / "plain"))
    expected = [model.score(line) for line in lines]
    assert scores(tmp_path / "odd", lines, repairs) == pytest.approx(expected, abs=1e-5)
    assert sum(repair.count for repair in repairs) == count


@pytest.mark.parametrize("name", ["<s>", "</s>"])
def test_a_missing_boundary_is_told(tmp_path: Path, name: str) -> None:
    lines = [line for line in GOOD.splitlines() if f"\t{name}" not in line and f" {name}" not in line]
    counts = {"ngram 1=4": "ngram 1=3", "ngram 2=2": "ngram 2=1"}
    if name == "<s>":
        lines = [line for line in lines if "<s>" not in line]
    (tmp_path / "a").write_text("".join(f"{counts.get(line, line)}\n" for line in lines))
    with pytest.warns(DataWarning, match=f"no {name} "):
        found = read_arpa(tmp_path / "a")
    assert (found.orders[0].probability[0] == 0) == (name == "</s>")


@pytest.mark.parametrize(
    ("old", "new", "line"), [("a </s>", "a </s>\t-0.5", 13), ("-0.5\ta", "1e-7\ta", 8), ("<s>", "<S>", 7)]
)
def test_repairs_are_refused_where_nobody_asks_for_them(tmp_path: Path, old: str, new: str, line: int) -> None:
    (tmp_path / "a").write_text(GOOD.replace(old, new))
    with refused("malformed", f"a:{line}"):
        read_arpa(tmp_path / "a")
    repairs = Repairs()
    found = read_arpa(tmp_path / "a", repairs)
    assert found.words == ["a"]
    assert [(repair.line, repair.count) for repair in repairs] == [(line, 1)]


def test_formats_that_only_look_like_it_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("iARPA\n" + GOOD)  # of IRSTLM, whose numbers are weights of an interpolation
    with refused("malformed", "a:1"):
        read_arpa(tmp_path / "a")
