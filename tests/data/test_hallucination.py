"""Invented stems: other tokens in the part that a source shares with its target, and nothing else."""

import numpy as np
import torch

from seriatim.config import Tokenizer
from seriatim.data.pairs import Pair, encode_pairs, shared_spans, with_invented_stems
from seriatim.data.vocabulary import Vocabulary, fit_tokenizer
from seriatim.models.copying import copied_tokens

TEXTS = [
    ("s p i e l e n +V", "g e s p i e l t"),
    ("a b", "a b"),
    ("l a u f e n +N", "l a u f"),
    ("x +N", ""),
    ("", "y"),
]


def batch():
    sources, targets = zip(*TEXTS, strict=True)
    tokenizers = {name: fit_tokenizer(Tokenizer(kind="word"), texts) for name, texts in
                  (("tokenizer", sources), ("target", targets))}  # fmt: skip
    vocabulary = Vocabulary(tokenizers)
    pairs = encode_pairs([Pair(*text, "train.tsv", i + 1) for i, text in enumerate(TEXTS)], vocabulary)
    table = copied_tokens(vocabulary.tokenizer, vocabulary.target)
    return pairs.with_shared_spans(table).batch(np.arange(len(TEXTS))), vocabulary, table


def words(ids: torch.Tensor, size: int, tokenizer) -> list[str]:
    return [tokenizer.describe(token) for token in ids[:size].tolist()]


def test_only_the_inside_of_the_longest_shared_part_changes_on_both_sides_alike() -> None:
    torch.manual_seed(0)
    given, vocabulary, _ = batch()
    changed = False
    for _ in range(20):
        made = given.with_invented_stems(0.9)
        changed |= not torch.equal(made.source, given.source)
        assert torch.equal(made.inputs[:, 1:], made.targets[:, :-1])
        assert torch.equal(made.source[[1, 3, 4]], given.source[[1, 3, 4]])
        assert torch.equal(made.targets[[1, 3, 4]], given.targets[[1, 3, 4]])
        source = words(made.source[0], 8, vocabulary.tokenizer)
        target = words(made.targets[0], 8, vocabulary.target)
        assert source[:1] + source[4:] == ["s", "l", "e", "n", "+V"]
        assert target == ["g", "e", *source[:5], "t"]
        source, target = words(made.source[2], 7, vocabulary.tokenizer), words(made.targets[2], 5, vocabulary.target)
        assert source[4:] == ["e", "n", "+N"]
        assert target == [*source[:4], "</s>"]
    assert changed


def test_no_pair_changes_at_rate_zero_or_without_parts() -> None:
    given, _, table = batch()
    assert given.with_invented_stems(0.0) is given
    source, targets = with_invented_stems(given.source, given.targets, given.spans, 0.0)
    assert torch.equal(source, given.source)
    assert torch.equal(targets, given.targets)
    none = shared_spans([], [], table)
    assert none.sizes.shape == (0,)


def test_the_same_seed_gives_the_same_stems() -> None:
    given, *_ = batch()
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(given.with_invented_stems(0.5).source)
    assert torch.equal(*results)
