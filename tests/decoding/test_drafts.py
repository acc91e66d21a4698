"""Sources of drafts: what they propose, and how much of it."""

import numpy as np

from seriatim.decoding.sampling import Sampling
from seriatim.decoding.speculative import DraftLength, ModelDraft, NgramDraft, PromptLookup

from .drafting import PROMPT, VOCABULARY, counted, network, plain


def test_lookup_finds_the_latest_occurrence_of_the_longest_suffix() -> None:
    lookup = PromptLookup(3, 1)
    assert lookup.propose(4) == []
    lookup.append([1, 2, 3, 9, 2, 3, 8, 5, 3])
    assert lookup.propose(2) == [8, 5]  # 3 occurred last before 8
    lookup.append([7, 1, 2, 3])
    assert lookup.propose(3) == [9, 2, 3]  # the trigram decides, not the later bigram
    lookup = PromptLookup(3, 1)
    lookup.append([1, 2, 1, 2])
    assert lookup.propose(5) == [1, 2, 1, 2, 1]  # a period goes on
    lookup = PromptLookup(3, 3)
    lookup.append([1, 2, 1, 2])
    assert lookup.propose(5) == []


def test_a_draft_from_tables_is_that_of_the_model() -> None:
    """Where the context has a known continuation, it is the likeliest of the words that followed it."""
    model = counted(4)
    generator = np.random.default_rng(1)
    agree = total = 0
    for _ in range(50):
        text = [0, *generator.integers(1, VOCABULARY, 8).tolist()]
        tables, stepped = NgramDraft(model.table.orders, 0.0), ModelDraft(model, 0.0)
        tables.append(text[:5])
        tables.append(text[5:])
        stepped.append(text)
        agree += tables.propose(1) == stepped.propose(1)
        total += 1
    assert agree >= 0.8 * total
    assert NgramDraft(model.table.orders, 1.0).propose(5) == []
    assert NgramDraft(counted(1).table.orders, 0.0).propose(2) == [0, 0]


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    model = network("convolution")
    draft = ModelDraft(model, 0.0)
    draft.append(PROMPT)
    expected = plain(model, PROMPT, Sampling(0), max_tokens=12)
    assert draft.propose(4) == expected[:4]
    draft.append(expected[:2])
    assert draft.propose(3) == expected[2:5]
    draft.append([expected[2], (expected[3] + 1) % VOCABULARY])
    draft.append(PROMPT)
    fresh = ModelDraft(model, 0.0)
    fresh.append([*PROMPT, *expected[:3], (expected[3] + 1) % VOCABULARY, *PROMPT])
    assert draft.propose(5) == fresh.propose(5)


def test_the_length_of_drafts_adapts() -> None:
    lengths = DraftLength()
    for _ in range(4):
        lengths.record(lengths.next(), lengths.length)
    assert lengths.next() == 8
    lengths.record(8, 5)
    assert lengths.next() == 5
    lengths.record(4, 1)
    assert [lengths.next(), lengths.next()] == [0, 1]
    lengths.record(1, 1)
    assert lengths.next() == 2
    waits = []
    for _ in range(6):
        lengths.record(lengths.length, 0)
        waits.append(sum(1 for _ in iter(lengths.next, 1)))  # calls that return 0
    assert waits == [1, 4, 16, 64, 64, 64]
