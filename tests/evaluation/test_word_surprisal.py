"""Surprisal per word, token and character: sums, normalization, agreement with the probabilities of whole lines."""

import csv
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.cli.main import main
from seriatim.core.errors import InputError
from seriatim.data.tokenizers import Tokenizer
from seriatim.evaluation.word_surprisal import ReadLine, SurprisalReader, word_starts
from seriatim.models.base_models import TextModel

from ..refusals import refused

LINES = ["the cat sat .", "a dog likes  the cat", "", "she", "  the dog "]


class Tokens(Tokenizer):
    """Four tokens: the boundary symbol, a letter, a letter after a space, and a space with two letters."""

    kind = "letters"
    pieces = ("", "a", " a", " ab")

    def __init__(self) -> None:
        self.vocabulary_size = 4

    def encode(self, text: str) -> np.ndarray:
        ids, start = [], 0
        while start < len(text):
            token = max((i for i in (1, 2, 3) if text.startswith(self.pieces[i], start)), key=lambda i: i)
            ids.append(token)
            start += len(self.pieces[token])
        return np.array(ids, dtype=np.int32)

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token].encode()

    def payload(self) -> dict[str, object]:
        return {}


class Bigrams(TextModel):
    """Fixed probabilities of a token after each token."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.vocabulary_size = size
        torch.manual_seed(1)
        self.logits = nn.Parameter(torch.randn(size, size).double())

    def initial_state(self, batch_size: int) -> Tensor:
        return torch.zeros(batch_size, 1)

    def forward(self, tokens, state=None, *, lengths=None):
        return self.logits[tokens], state


def words(model: TextModel, text: str, tokenizer: Tokenizer, *, is_first: bool = True) -> list:
    ids = tokenizer.encode(text)
    (scores,) = SurprisalReader(model, word_starts(tokenizer)).read([ids])
    return list(ReadLine(text, ids, scores, is_first).units("word", tokenizer))


def test_the_probabilities_of_all_words_sum_to_one() -> None:
    """Words after "a" are " a" or " ab" and any number of "a"; the alternative to a word is the end of the text."""
    model, tokenizer = Bigrams(4), Tokens()
    corrected = uncorrected = 0.0
    for start, rest in itertools.product((" a", " ab"), range(60)):
        text = "a" + start + "a" * rest
        (*_, word) = words(model, text, tokenizer)
        corrected += 2.0**-word.bits
        nats = torch.log_softmax(model.logits, 1).detach()
        ids = tokenizer.encode(text).tolist()
        uncorrected += math.exp(sum(nats[a, b].item() for a, b in itertools.pairwise(ids)))
    end, _, *spaces = torch.softmax(model.logits[1], 0).tolist()
    is_word = sum(spaces) / (end + sum(spaces))
    assert corrected == pytest.approx(is_word, abs=1e-6)
    assert abs(uncorrected - is_word) > 0.05


def test_entropy_and_rank_are_those_before_a_token() -> None:
    model, tokenizer = Bigrams(4), Tokens()
    ids = tokenizer.encode("aa ab")
    (scores,) = SurprisalReader(model, word_starts(tokenizer)).read([ids])
    for place, (before, after) in enumerate(itertools.pairwise([0, *ids.tolist(), 0])):
        probabilities = torch.softmax(model.logits[before], 0).detach().numpy()
        assert scores.bits[place] == pytest.approx(-math.log2(probabilities[after]))
        assert scores.entropy[place] == pytest.approx(-(probabilities * np.log2(probabilities)).sum())
        assert scores.rank[place] == 1 + (probabilities > probabilities[after]).sum()
        assert 2 ** scores.boundary[place] == pytest.approx(probabilities[[0, 2, 3]].sum())


@pytest.mark.parametrize("name", ["char-line", "char-stream", "word-line", "byte-line", "bpe-line"])
def test_the_words_of_a_line_sum_to_its_tokens(runs, name: str) -> None:
    run = runs[name]
    lines = [line for line in LINES if not run.tokenizer.find_unknown(line)]
    assert len(lines) > 2
    by_token = list(run.surprisal(lines, by="token"))
    for line, word_units, tokens in zip(lines, run.surprisal(lines), by_token, strict=True):
        assert [unit.text for unit in word_units] == line.split()
        assert sum(unit.tokens for unit in tokens) == len(run.tokenizer.encode(line))
        if line and not line.endswith(" "):
            total = sum(unit.bits for unit in tokens)
            (scores,) = SurprisalReader(run.model, word_starts(run.tokenizer)).read([run.tokenizer.encode(line)])
            expected = total - scores.boundary[-1]
            assert sum(unit.bits for unit in word_units) == pytest.approx(expected, rel=1e-6)
    ended = run.score(lines)
    for tokens, score, line in zip(by_token, ended, lines, strict=True):
        stream = run.stream()
        nats = stream.feed(line).log_probability
        assert sum(unit.bits for unit in tokens) == pytest.approx(-nats / math.log(2), rel=1e-4, abs=1e-6)
        assert score.log_probability <= nats + 1e-6


def test_context_is_carried_from_line_to_line(runs) -> None:
    run = runs["char-stream"]
    lines = ["the cat sat .", "a dog likes the cat", "she"]
    carried = list(run.surprisal(lines, by="token", carry_context=True))
    stream = run.stream()
    for number, (line, units) in enumerate(zip(lines, carried, strict=True)):
        expected = stream.feed(f"\n{line}" if number else line).log_probability
        assert sum(unit.bits for unit in units) == pytest.approx(-expected / math.log(2), rel=1e-4)
    alone = list(run.surprisal(lines, by="token"))
    assert alone[0] == carried[0]
    assert alone[1][3].bits != carried[1][4].bits
    with refused("unsupported", "char-line"):
        next(runs["char-line"].surprisal(lines, carry_context=True))


def test_characters_of_several_tokens_are_summed(runs) -> None:
    run = runs["byte-line"]
    line = "the é €"
    characters = next(run.surprisal([line], by="character"))
    assert [unit.text for unit in characters] == list(line)
    assert [unit.tokens for unit in characters] == [len(character.encode()) for character in line]
    tokens = next(run.surprisal([line], by="token"))
    assert sum(unit.bits for unit in characters) == pytest.approx(sum(unit.bits for unit in tokens))
    with refused("unsupported"):
        list(runs["word-line"].surprisal(["the cat"], by="character"))


def test_unknown_words_are_counted(runs) -> None:
    (units,) = runs["word-line"].surprisal(["the zebra cat"])
    assert [unit.unknown for unit in units] == [0, 1, 0]
    assert all(math.isfinite(unit.bits) for unit in units)


UNSEEN = {
    "the dot": [0.0, math.inf],  # no letter follows "do" but "g"
    "zzz the": [math.inf, math.inf],  # nothing follows what never occurred
    "th": [math.inf],  # it begins a word and never ends one
}


def counted(folder: Path, kind: str, **options) -> seriatim.Run:
    (folder / "text.txt").write_text("the dog\n" * 5 + "zz\n" * (kind == "char"))
    model = {"layer": "ngram", "options": {"order": 4, **options}}
    data = {"train": str(folder / "text.txt"), "unit": "line"}
    return seriatim.train(
        {"data": data, "tokenizer": {"kind": kind}, "model": model, "out": str(folder / f"{kind}-run")}
    )


def test_impossible_words_have_infinite_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where ∞ − ∞ would be the correction for the end of a word."""
    run = counted(tmp_path, "char", smoothing="maximum-likelihood")
    for by in ("word", "token", "character"):
        for line, units in zip(UNSEEN, run.surprisal([*UNSEEN], by=by), strict=True):
            assert not any(math.isnan(number) for unit in units for number in unit[1:] if number is not None)
            (score,) = run.score([line])
            assert score.log_probability == -math.inf
            if by == "word":
                assert [unit.bits for unit in units] == pytest.approx(UNSEEN[line], abs=0.3)
    (tmp_path / "lines.txt").write_text("\n".join(UNSEEN) + "\n")
    capsys.readouterr()
    assert main(["surprisal", str(run.path), str(tmp_path / "lines.txt")]) == 0
    _, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert [row[3] for row in rows[1:]] == ["inf"] * 4
    assert not any("nan" in row for row in rows)


def test_nothing_is_said_of_a_place_where_every_token_is_impossible() -> None:
    model, tokenizer = Bigrams(4), Tokens()
    model.gives_log_probabilities = True
    with torch.no_grad():
        model.logits.copy_(model.logits.log_softmax(1))
        model.logits[1] = -math.inf  # nothing follows "a"
    by_word = words(model, "a a", tokenizer)
    assert [(word.bits, word.entropy is None, word.rank is None) for word in by_word] == [
        (math.inf, False, False),  # it cannot end
        (math.inf, True, True),
    ]
    ids = tokenizer.encode("aa")
    (scores,) = SurprisalReader(model, word_starts(tokenizer)).read([ids])
    first, second = ReadLine("aa", ids, scores, is_first=True).units("token", tokenizer)
    assert first.bits < math.inf == second.bits
    assert (second.entropy, second.rank) == (None, None)


def test_probabilities_of_a_table_are_those_that_it_holds(tmp_path: Path) -> None:
    """Those of an ARPA file need not sum to 1; surprisal, score and evaluation agree all the same."""
    (tmp_path / "a.arpa").write_text(
        "\\data\\\nngram 1=4\nngram 2=2\n\n\\1-grams:\n-99 <s> -0.3\n-0.6 </s>\n-0.6 ja -0.2\n-0.6 <unk>\n\n"
        "\\2-grams:\n-0.3 <s> ja\n-0.4 ja </s>\n\n\\end\\\n"
    )
    assert main(["import", str(tmp_path / "a.arpa"), "--out", str(tmp_path / "run")]) == 0
    run = seriatim.load(tmp_path / "run")
    (units,), (score,) = run.surprisal(["ja ja"]), run.score(["ja ja"])
    assert [unit.bits for unit in units] == pytest.approx([0.3 * math.log2(10), 0.8 * math.log2(10)])
    assert score.log_probability == pytest.approx(-1.5 * math.log(10))
    assert run.stream().feed("ja ja").log_probability == pytest.approx(-1.1 * math.log(10))
    (tmp_path / "text.txt").write_text("ja ja\n")
    assert run.evaluate(tmp_path / "text.txt")["loss"] == pytest.approx(0.5 * math.log(10))


def test_a_word_of_a_word_vocabulary_ends_also_where_nothing_follows(tmp_path: Path) -> None:
    run = counted(tmp_path, "word", smoothing="maximum-likelihood")
    (units,) = run.surprisal(["the dog dog the"])
    assert [unit.bits for unit in units][:2] == [0.0, 0.0]
    assert [unit.bits for unit in units][2:] == [math.inf] * 2


def test_the_boundary_of_very_unlikely_spaces_is_exact() -> None:
    """The sum of their probabilities is 0 in floating-point numbers, that of their logarithms is not."""
    model, tokenizer = Bigrams(4), Tokens()
    with torch.no_grad():
        model.logits[:, [0, 2, 3]] -= 900.0
    nats = torch.log_softmax(model.logits.detach(), 1)
    ends, ids = nats[:, [0, 2, 3]].logsumexp(1), [0, *tokenizer.encode("a a ab").tolist()]
    before = [0.0, *ends[ids[1:-1]].tolist()]
    expected = [start - nats[a, b] - ends[b] for start, (a, b) in zip(before, itertools.pairwise(ids), strict=True)]
    found = [word.bits for word in words(model, "a a ab", tokenizer)]
    assert found == pytest.approx([float(each) / math.log(2) for each in expected])
    assert min(found) > 1000


def test_many_lines_at_once_are_each_line_alone(runs) -> None:
    run = runs["char-line"]
    lines = (LINES * 40)[:150]
    together = list(run.surprisal(lines))
    alone = [next(run.surprisal([line])) for line in LINES] * 40
    for units, expected in zip(together, alone, strict=False):
        assert [unit.text for unit in units] == [unit.text for unit in expected]
        np.testing.assert_allclose([unit.bits for unit in units], [unit.bits for unit in expected], rtol=1e-5)


def test_bad_arguments(runs, inspected) -> None:
    run = runs["char-line"]
    for lines, by, message in (
        (["a\nb"], "word", "contains a line end"),
        ([3], "word", "item 0"),
        (["a"], "sentence", "is unknown"),
        ("the cat", "word", "surprisal"),
    ):
        with pytest.raises(InputError, match=message):
            list(run.surprisal(lines, by=by))
    with refused("unsupported", "classify"):
        list(inspected["classify"].surprisal(["a"]))
