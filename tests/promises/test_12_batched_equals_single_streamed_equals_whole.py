"""A batch answers as its rows one by one, and a text in pieces is the text whole: models, tasks, decoders, whole runs.

For layers, with gradients, in float64, `tests/laws/test_laws.py` proves it; that compiled loops, which these models
leave aside to save the time of compiling, do as the reference does for any batch, `tests/recurrence`. For the tables
of n-grams see also `tests/models/test_ngrams.py`, for the windows of `evaluate` `tests/runs/test_run.py`.
"""

import functools
import itertools
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import seriatim
from seriatim.core.state import State, join_states, select_state
from seriatim.decoding.beam import Beam, beam_search
from seriatim.decoding.sampling import Sampling, sample
from seriatim.recurrence import uncompiled
from seriatim.runs.ensembles import ensemble
from seriatim.runs.run import Run
from seriatim.tasks import TASKS
from seriatim.tasks.ngram import Options as Counted

from ..exhaustive import parameters
from ..golden.recipes import POOLINGS, TRANSLATORS
from ..laws.eight_laws import DEAF, assert_states_close
from .untrained import untrained

pytestmark = pytest.mark.filterwarnings("ignore:too few")
EXACT = {"rel": 1e-9, "abs": 1e-9}
SMOOTHINGS = Counted.model_json_schema()["properties"]["smoothing"]["enum"]
LANGUAGE_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in seriatim.layers.names()},
    "mixed": ("gru,transformer,mamba", {"window": 5}),
    "window-attention": ("attention", {"window": 5}),
    **{f"ngram-{name}": ("ngram", {"order": 3, "smoothing": name}) for name in SMOOTHINGS},
    "ngram-cache": ("ngram", {"order": 3, "cache": 0.2, "cache_size": 7}),
    "ngram-cache-alike": ("ngram", {"order": 2, "smoothing": "maximum-likelihood", "cache": 0.5, "cache_size": 1}),
    "ngram-of-one": ("ngram", {"order": 1}),
}
TEXT = "the cat sees the sea .\nnobody paints it .\na dog forgets our friend .\n" * 3
LINES = ["the cat sees the sea .", "", "nobody", "zebra paints it .", "she likes the moon . " * 4, "the", "nobody"]
LONG = "our friend follows it . " * 11
"""More than is read at once."""
GAPS = [
    "the [MASK] sees [MASK] sea .",
    "",
    "[MASK]",
    "no gap",
    "she likes [MASK] moon . " * 6,
    "[MASK]",
    "zebra [MASK]",
]


@pytest.fixture(autouse=True, scope="module")
def without_compiling() -> Iterator[None]:
    with uncompiled():
        yield


@functools.cache
def language_model(name: str, kind: str = "char", unit: str = "stream") -> Run:
    if name == "ensemble":
        return ensemble([untrained("lm", "lstm", kind=kind, unit=unit, seed=seed) for seed in (0, 1)])
    return untrained("lm", *LANGUAGE_MODELS[name], kind=kind, unit=unit)


def assert_same(found: Any, expected: Any) -> None:
    """Numbers but for rounding, all else exactly."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == (pytest.approx(expected, **EXACT) if isinstance(expected, float) else expected)


EVERY = [*LANGUAGE_MODELS, "ensemble"]


@pytest.mark.parametrize("name", EVERY)
def test_ragged_texts_are_read_as_each_alone(name: str) -> None:
    """Logits, losses and states, over two calls, rows without tokens among them."""
    model, rows = language_model(name).model, 5
    torch.manual_seed(3)
    state, alone = model.initial_state(rows), [model.initial_state(1) for _ in range(rows)]
    for lengths in ([9, 0, 4, 1, 7], [0, 3, 5, 5, 2]):
        tokens, targets = torch.randint(0, model.vocabulary_size, (2, rows, 9))
        losses, _ = model.token_losses(tokens, targets, state, lengths=torch.tensor(lengths))
        logits, state = model(tokens, state, lengths=torch.tensor(lengths))
        for row, size in enumerate(lengths):
            one = tokens[row : row + 1, :size], targets[row : row + 1, :size]
            expected, _ = model.token_losses(*one, alone[row])
            torch.testing.assert_close(losses[row : row + 1, :size], expected, rtol=1e-9, atol=1e-9)
            assert losses[row, size:].eq(0).all()
            expected, alone[row] = model(one[0], alone[row])
            torch.testing.assert_close(logits[row : row + 1, :size], expected, rtol=1e-9, atol=1e-9)
        assert_states_close(state, join_states(alone))


def fed(run: Run, pieces: list[str]) -> list[Any]:
    """How likely a text is, and where it leads."""
    stream = run.stream()
    scores = [stream.feed(piece) for piece in pieces]
    return [*map(sum, zip(*scores, strict=True)), stream.last, stream.logits, stream.state]


@functools.cache
def fed_whole(name: str, kind: str, unit: str) -> list[Any]:
    return fed(language_model(name, kind, unit), [text_of(unit)])


def text_of(unit: str) -> str:
    return TEXT if unit == "stream" else TEXT.replace("\n", " ")


def check_pieces(name: str, kind: str, unit: str, cuts: list[int]) -> None:
    run, text = language_model(name, kind, unit), text_of(unit)
    places = [0, *sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    tokens = np.concatenate([run.tokenizer.encode(piece) for piece in pieces])
    assume(np.array_equal(tokens, run.tokenizer.encode(text)))  # of subwords the cuts decide what the tokens are
    *scores, logits, state = fed(run, pieces)
    *expected, whole_logits, whole_state = fed_whole(name, kind, unit)
    assert_same(scores, expected)
    torch.testing.assert_close(logits, whole_logits, rtol=1e-9, atol=1e-9)
    assert_states_close(state, whole_state)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=4, deadline=None)
@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=5))
def test_a_text_in_any_pieces_is_the_text_whole(name: str, cuts: list[int]) -> None:
    check_pieces(name, "char", "stream", cuts)


@functools.cache
def cuttable(kind: str, unit: str) -> list[int]:
    """Where a text can be cut so that its tokens stay what they are."""
    encode, text = language_model("gru", kind, unit).tokenizer.encode, text_of(unit)
    whole = encode(text).tolist()
    return [i for i in range(len(text) + 1) if [*encode(text[:i]), *encode(text[i:])] == whole]


@pytest.mark.parametrize("unit", ["stream", "line"])
@pytest.mark.parametrize("kind", ["byte", "char", "word", "bpe", "unigram"])
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_and_so_it_is_with_every_tokenizer_where_it_can_be_cut(kind: str, unit: str, data: st.DataObject) -> None:
    check_pieces("gru", kind, unit, data.draw(st.lists(st.sampled_from(cuttable(kind, unit)), max_size=5)))


@pytest.mark.parametrize("name", EVERY)
def test_lines_are_scored_as_each_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim.evaluation.perplexity.LINES_TOGETHER", 4)
    run = language_model(name, "char", "line")
    lines = [*LINES, LONG]
    assert_same(run.score(lines), [run.score([line])[0] for line in lines])


def check_samples(run: Run, **settings: Any) -> None:
    found = run.samples(4, "the", max_tokens=20, seed=7, **settings)
    assert found == ["".join(run.generate("the", max_tokens=20, seed=7 + i, **settings)) for i in range(4)]


@pytest.mark.parametrize("name", EVERY)
def test_samples_are_the_texts_of_their_seeds(name: str) -> None:
    check_samples(language_model(name, "char", "line"))
    check_samples(language_model(name), temperature=0.7, top_k=9, top_p=0.9, min_p=0.01)


@pytest.mark.parametrize("unit", ["stream", "line"])
@pytest.mark.parametrize("kind", ["byte", "word", "bpe", "unigram"])
def test_and_so_they_are_with_every_tokenizer(kind: str, unit: str) -> None:
    check_samples(language_model("gru", kind, unit))


def under_way(model: Any) -> State:
    """The states of six texts of different lengths."""
    torch.manual_seed(5)
    tokens = torch.randint(0, model.vocabulary_size, (6, 7))
    return model(tokens, model.initial_state(6), lengths=torch.tensor([7, 0, 3, 1, 5, 7]))[1]


@pytest.mark.parametrize("name", EVERY)
def test_searches_and_draws_of_a_row_do_not_know_of_others(name: str) -> None:
    model = language_model(name).model
    state = under_way(model)
    rows = [select_state(state, torch.tensor([row])) for row in range(6)]
    for width, alpha in ((1, 0.0), (3, 0.6), (5, 2.0)):
        beam = Beam(width, n_best=min(2, width), length_penalty=alpha, banned=(1,))
        found = beam_search(model, state, beam, max_length=6)
        expected = [beam_search(model, row, beam, max_length=6)[0] for row in rows]
        # Where nothing is read, two orders of the same tokens are as likely, and the last digit chooses.
        keys = ("score",) if name in DEAF else ("tokens", "score", "log_probability")
        of = operator.attrgetter(*keys)
        assert_same([[of(one) for one in row] for row in found], [[of(one) for one in row] for row in expected])
    assert drawn(model, state, range(6)) == [drawn(model, row, [seed])[0] for seed, row in enumerate(rows)]


def drawn(model: Any, state: State, seeds: Any) -> list[list[int]]:
    """What is drawn for each row until token 2 comes."""
    logits, state = model.step(torch.zeros(len(seeds), dtype=torch.long), state)
    found: list[list[int]] = [[] for _ in seeds]
    for step in sample(model, logits, state, Sampling(1.3), max_tokens=12, seeds=seeds, stop=2, banned=(0,)):
        for row, token in zip(found, step.tokens, strict=True):
            row.extend([] if token is None else [token])
    return found


SEARCHES: list[dict[str, Any]] = [
    {},
    {"beam": 4, "n_best": 3, "length_penalty": 0.7, "alignments": True},
    {"beam": 2, "min_length": 3},
    {"seed": 1, "n_best": 2, "temperature": 1.5},
    {"seed": 2, "top_k": 3},
]
CHARACTERS = {"character_size": 4, "filters": 3}
TAGGERS = [
    {"characters": kind, "output": output, **CHARACTERS}
    for kind in ("convolution", "recurrent", "none")
    for output in ("crf", "softmax")
]
SHORT = {"max_target_length": 9}
"""So that an untrained model comes to an end."""
ANSWERING: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{f"classify {name}": ("classify", name, {}) for name in seriatim.layers.names()},
    **{f"classify {pooling}": ("classify", name, {"pooling": pooling}) for pooling, name in POOLINGS.items()},
    **{f"tag {name}": ("tag", name, CHARACTERS) for name in seriatim.layers.names()},
    **{f"tag {i}": ("tag", "gru", options) for i, options in enumerate(TAGGERS)},
    **{f"mlm {name}": ("mlm", name, {}) for name in seriatim.layers.names()},
    **{f"seq2seq {name}": ("seq2seq", name, SHORT) for name in seriatim.layers.names()},
    **{
        f"seq2seq {name}": ("seq2seq", model["layer"], {**SHORT, **model.get("options", {})})
        for name, model in TRANSLATORS.items()
    },
}
SEVERAL = {"classify": ("gru", {}), "tag": ("lstm", {**CHARACTERS, "output": "crf"}), "seq2seq": ("gru", SHORT)}


@functools.cache
def answering(name: str) -> Run:
    if name.startswith("several "):
        task = name.removeprefix("several ")
        run = ensemble([untrained(task, *SEVERAL[task], seed=seed) for seed in (0, 1)])
        run.model.double()
        return run
    task, layer, options = ANSWERING[name]
    return untrained(task, layer, options, bidirectional=False if options.get("bridge") == "copy" else None)


def check_answers(run: Run, lines: list[str], **how: Any) -> None:
    """Together, in two parts of which one is turned around, and one by one."""

    def answers(together: list[list[str]]) -> list[dict[str, Any]]:
        found = run.predict_batches([part for part in together if part], **how)
        return [{key: value for key, value in answer.items() if key != "seconds"} for answer in found]

    alone = answers([[line] for line in lines])
    assert_same(answers([lines]), alone)
    assert_same(answers([lines[3:], lines[2::-1]]), [*alone[3:], *alone[2::-1]])


def ways(name: str) -> list[dict[str, Any]]:
    """How answers are asked for."""
    task, form = name.split()
    if "seq2seq" not in (task, form):
        return [{}]
    if form == "ctc":
        return [{}, {"beam": 4, "n_best": 2}]
    if form in DEAF:
        return SEARCHES[3:]  # two orders of the same tokens are as likely, and the last digit chooses
    return SEARCHES if form in TRANSLATORS else SEARCHES[1:4:2]


TYPICAL = ("lstm", "mamba", "transformer", "convolution", "self-attention")
OFTEN = [name for name in ANSWERING if name.split()[1] not in seriatim.layers.names() or name.split()[1] in TYPICAL]
SEVERAL_TASKS = [f"several {task}" for task in SEVERAL]


@pytest.mark.parametrize("name", parameters([*ANSWERING, *SEVERAL_TASKS], everyday=[*OFTEN, *SEVERAL_TASKS]))
def test_lines_are_answered_as_each_alone(name: str) -> None:
    for how in ways(name):
        check_answers(answering(name), GAPS if name.startswith("mlm") else LINES, **how)


def test_every_task_is_asked() -> None:
    assert {answering(name).config.task for name in ANSWERING} | {"lm"} == set(TASKS)
