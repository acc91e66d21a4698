"""Word order, path lengths and embeddings."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import seriatim
from seriatim.comparison.comparing import Comparison
from seriatim.core.contract import SequenceLayer
from seriatim.core.errors import InputError
from seriatim.inspection.embeddings import chance_similarity, embeddings, embeddings_section
from seriatim.inspection.inspected_run import prepare
from seriatim.inspection.inspection import inspect
from seriatim.inspection.word_order import SAME, STATEMENTS, OrderEffect, order_effect
from seriatim.layers.path_lengths import direct_paths, joined_paths
from seriatim.models import LanguageModel
from seriatim.pages.page import Folded, Prose, Table
from seriatim.pages.statements import told
from seriatim.recurrence import uncompiled
from seriatim.tasks.explainer import Example

from ..conftest import randn
from ..exhaustive import parameters
from ..refusals import refused
from .inspected import MODELS, SENTENCE, TEXTS

EVERYDAY = ("self-attention", "prior", "lstm", "transformer", "mamba", "convolution", "window")
LAYERS = parameters(seriatim.layers.names(), everyday=EVERYDAY)


@pytest.fixture(autouse=True)
def _uncompiled():
    with uncompiled():
        yield


def untrained(name: str, **options: object) -> SequenceLayer:
    """Return a layer whose matrices are not zero, as that of the outputs of RWKV-7 is at first."""
    torch.manual_seed(0)
    layer = seriatim.layer(name, 8, 8, **options)
    for parameter in layer.parameters():
        if parameter.dim() > 1 and not parameter.any():
            torch.nn.init.normal_(parameter)
    return layer


def effect_of(inspected, layer: str, monkeypatch: pytest.MonkeyPatch, **options) -> OrderEffect:
    """Return the effect of word order on an untrained language model with one layer."""
    run = inspected["lm-words"]
    model = LanguageModel(untrained(layer, **options), run.tokenizer.vocabulary_size).eval()
    monkeypatch.setattr(run, "model", model)
    return order_effect(run, f"{SENTENCE} {SENTENCE}", permutations=4)


def test_saturated_attention_gives_earlier_tokens_no_effect(inspected, monkeypatch: pytest.MonkeyPatch) -> None:
    """The score of bare self-attention is x·x: with long vectors, a token attends to its equals alone."""
    run, text = inspected["lm-words"], f"{SENTENCE} {SENTENCE}"
    torch.manual_seed(0)
    model = LanguageModel(seriatim.layer("self-attention", 8, 8), run.tokenizer.vocabulary_size).eval()
    monkeypatch.setattr(run, "model", model)
    spread = order_effect(run, text, permutations=4)
    model.embedding.weight.data.mul_(30)
    saturated = order_effect(run, text, permutations=4)
    assert spread.without > 1e-3
    assert saturated.without <= SAME
    assert (saturated.has_none, spread.has_none) == (True, False)
    assert len(told(STATEMENTS, saturated)) == len(told(STATEMENTS, spread)) == 1


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_measured(inspected, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    effect = effect_of(inspected, name, monkeypatch)
    assert len(effect.changes) == 4
    assert np.isfinite(effect.changes).all()
    assert sorted(effect.tokens) == sorted(effect.shuffled)
    assert effect.tokens[-1] == effect.shuffled[-1]
    assert effect.invariant == (name in ("self-attention", "linear-attention", "prior"))


def test_bare_attention_reads_a_set_and_a_recurrence_does_not(inspected, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = effect_of(inspected, "self-attention", monkeypatch, scaled=True)
    assert bare.changes.max() <= SAME
    assert bare.without > 1e-3, "it is the order that has no effect, not the words"
    placed = effect_of(inspected, "attention", monkeypatch, position="rotary", block=False)
    assert placed.changes.min() > SAME
    unplaced = effect_of(inspected, "attention", monkeypatch, position="none", block=False)
    assert unplaced.changes.max() <= SAME
    stacked = effect_of(inspected, "attention", monkeypatch, position="none", block=False, num_layers=2)
    assert stacked.changes.min() > SAME, "the second layer sees what the first made of every prefix"
    recurrent = effect_of(inspected, "rnn", monkeypatch)
    assert recurrent.changes.min() > 1e-6
    assert recurrent.changes.min() < recurrent.changes.max()


@pytest.mark.parametrize("name", [name for name in MODELS if name != "ctc"])
def test_every_task_is_measured(inspected, name: str) -> None:
    run, text = inspected[name], TEXTS.get(name, f"{SENTENCE} {SENTENCE}")
    effect = order_effect(run, text, permutations=3)
    again = order_effect(run, text, permutations=3)
    assert np.array_equal(effect.changes, again.changes), "the same seed tries the same orders"
    assert ((effect.changes >= 0) & (effect.changes <= 1 + SAME)).all()


def test_texts_without_another_order(inspected) -> None:
    for text in ("the", "the cat", "the the the cat"):
        with refused("empty"):
            order_effect(inspected["lm-words"], text)
    two = order_effect(inspected["lm-words"], "the cat .")
    assert len(two.changes) == 1, "two tokens before the last have one other order"
    with pytest.raises(InputError, match="ctc run"):
        order_effect(inspected["ctc"], "axbx")
    example = Example((5, 6, 7), (), ("a", "b", "c"))
    assert example.at([1, 0, 2]).tokens == ("b", "a", "c")


@pytest.mark.parametrize("name", LAYERS)
def test_a_path_exists_wherever_a_gradient_flows(name: str) -> None:
    """A layer declares a path exactly where a gradient flows."""
    layer = untrained(name).double().eval()
    inputs = randn(1, 40, 8).requires_grad_()
    outputs, _ = layer(inputs)
    (gradient,) = torch.autograd.grad(outputs[0, -1].sum(), inputs, allow_unused=True)
    flows = torch.zeros(40) if gradient is None else gradient[0].norm(dim=1).flip(0)
    assert torch.equal(torch.isfinite(layer.path_lengths(39)), flows > 0)


def test_path_lengths_equal_their_formulas() -> None:
    def paths(name: str, distance: int, **options) -> torch.Tensor:
        return seriatim.layer(name, 8, 8, **options).path_lengths(distance)

    for distance in (0, 1, 9, 100):
        assert paths("lstm", distance)[-1] == distance
        assert paths("transformer", distance)[-1] == min(distance, 1)
        for layers, context in ((1, 3), (4, 3), (3, 5)):
            hops = math.ceil(distance / (context - 1))
            expected = hops if hops <= layers else math.inf
            assert paths("window", distance, num_layers=layers, context=context)[-1] == expected
            assert paths("attention", distance, num_layers=layers, window=context, block=False)[-1] == expected
    assert paths("gru", 7, bidirectional=True)[-1] == 7
    assert paths("gru", 7, num_layers=3)[-1] == 7, "layers above add no steps in time"
    assert paths("gru,transformer", 7)[-1] == 1, "the shortest way is taken"
    convolution = paths("convolution", 40, kernel_size=2, depth=5)
    assert convolution[:32].tolist() == [bin(back).count("1") for back in range(32)], "one hop for every binary digit"
    assert convolution[32:].isinf().all()


def test_joined_paths_are_the_best_split() -> None:
    first, second = direct_paths(12, 4, dilation=2), direct_paths(12, 3)
    joined = joined_paths([first, second])
    for back in range(13):
        assert joined[back] == min(first[back - i] + second[i] for i in range(back + 1))


def test_neighbours_are_the_nearest_of_the_tokens_that_occur(inspected) -> None:
    run, data = inspected["lm-words"], [f"{SENTENCE} a the"]
    found = embeddings(run, f"{SENTENCE} unseen-word", data=data)
    table = run.model.embedding.weight.detach().double()
    assert [one.token for one in found.neighbours] == list(dict.fromkeys(SENTENCE.split()))
    tokens = {run.tokenizer.describe(i): i for i in range(2, run.tokenizer.vocabulary_size)}
    occurring = sorted(set(data[0].split()))
    assert len(occurring) == found.candidates < len(tokens), "most of the vocabulary does not occur"
    for one in found.neighbours:
        others = [name for name in occurring if name != one.token]
        ids = [tokens[name] for name in others]
        similar = torch.cosine_similarity(table[tokens[one.token]], table[ids], dim=1)
        best = similar.topk(len(one.nearest)).indices.tolist()
        assert [near.token for near in one.nearest] == [others[i] for i in best]
        assert one.nearest[0].similarity == pytest.approx(similar.max().item())


@pytest.mark.parametrize("name", [name for name in MODELS if name != "ngram"])
def test_every_model_with_embeddings_has_neighbours(inspected, name: str) -> None:
    found = embeddings(inspected[name], TEXTS.get(name, SENTENCE))
    assert all(one.nearest for one in found.neighbours)
    assert 0 <= found.chance <= 1


def test_neighbours_are_shown_at_once_only_if_they_are_more_similar_than_by_chance(inspected, monkeypatch) -> None:
    subject = prepare(inspected["lm-words"], SENTENCE, beam=1, data=None, file_format=None)
    monkeypatch.setattr("seriatim.inspection.embeddings.chance_similarity", lambda *_: 1.0)
    assert [type(part) for part in embeddings_section(subject).blocks] == [Prose, Folded]
    monkeypatch.setattr("seriatim.inspection.embeddings.chance_similarity", lambda *_: 0.0)
    assert [type(part) for part in embeddings_section(subject).blocks] == [Table]


def test_random_vectors_are_similar_only_by_chance() -> None:
    """Of 20 tokens, the most similar one is above the bound in 1 % of the cases, although any of them may be."""

    def above_chance(vectors: np.ndarray) -> float:
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        similar = (units @ units.T - 2 * np.eye(len(units))).max(1)
        return float((similar.reshape(-1, 20).max(1) > chance_similarity(vectors, 20)).mean())

    vectors = np.random.default_rng(1).normal(size=(1000, 16))
    assert above_chance(vectors) <= 0.04
    pairs = np.concatenate([vectors, vectors + 0.1])
    assert above_chance(pairs) > 0.95
    assert chance_similarity(vectors[:1], 1) == 0.0


def test_ngrams_and_unknown_words_have_no_embeddings(inspected) -> None:
    with pytest.raises(InputError, match="n-gram model has no embeddings"):
        embeddings(inspected["ngram"], SENTENCE)
    with pytest.raises(InputError, match="no token of the text"):
        embeddings(inspected["lm-words"], "entirely unseen")


def test_a_notebook_shows_the_page_and_its_figures(inspected, tmp_path: Path) -> None:
    result = inspect(inspected["ngram"], SENTENCE, out=tmp_path / "a.html")
    shown = result._repr_html_()
    assert shown.startswith("<iframe")
    assert "&lt;!DOCTYPE html&gt;" in shown
    assert "<script" not in shown, "the page is inside the attribute, escaped"
    (tmp_path / "report.html").write_text("<!DOCTYPE html><title>report</title>")
    assert "&lt;title&gt;report" in Comparison(tmp_path, {})._repr_html_()
    result.path.unlink()
    assert "<li>" in result._repr_html_()


@pytest.mark.parametrize("name", ["seq2seq", "seq2seq-heads"])
def test_an_answer_stays_the_same_for_all_orders_of_its_source(inspected, name: str) -> None:
    run, answer = inspected[name], TEXTS[name][:3]
    given, greedy = order_effect(run, (TEXTS[name], answer)), order_effect(run, TEXTS[name])
    assert sorted(given.shuffled) == sorted(greedy.shuffled)
    assert not np.allclose(given.changes, greedy.changes), "the distributions after another answer differ"
