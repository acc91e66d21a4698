"""The tagger: it learns, a batch is its rows one by one, and a random field keeps to BIO."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import seriatim
from seriatim.config import Tokenizer
from seriatim.core.lengths import valid_mask
from seriatim.data.batches import Buckets
from seriatim.data.conll import Sentence
from seriatim.data.tagged_corpus import NO_TAG, TaggedBatch, TaggedCorpus, fit_vocabulary, word_ids
from seriatim.data.vocabulary import Vocabulary
from seriatim.data.word_forms import MAX_CHARACTERS
from seriatim.models.characters import CharacterModel, ConvolutionalCharacters, RecurrentCharacters
from seriatim.models.crf import CRF, bio_transitions
from seriatim.models.tagger import Tagger

from ..refusals import refused

CHARACTERS = {"none": None, "convolution": ConvolutionalCharacters, "recurrent": RecurrentCharacters}
TAGS = ["B-PER", "I-PER", "O"]
UNKNOWN = 1


def sentence(words: list[str], tags: list[str]) -> Sentence:
    return Sentence(words, tags, words, list(range(len(words))), 1, "here", 1)


def people(count: int, seed: int = 0) -> list[Sentence]:
    """Names are one to three capitalised words, most of them seen once: what they are shows in their characters."""
    choose = random.Random(seed)
    found = []
    for _ in range(count):
        words, tags = [], []
        for _ in range(choose.randrange(1, 4)):
            words += choose.choices(["saw", "the", "a", "met", "and", "."], k=choose.randrange(1, 3))
            tags += ["O"] * (len(words) - len(tags))
            name = ["".join(choose.choices("abcdefgh", k=4)).title() for _ in range(choose.randrange(1, 4))]
            words, tags = [*words, *name], [*tags, "B-PER", *["I-PER"] * (len(name) - 1)]
        found.append(sentence(words, tags))
    return found


def learn(sentences: list[Sentence], *, characters: bool = True, **settings) -> Vocabulary:
    return fit_vocabulary(sentences, Tokenizer(kind="word", **settings), characters=characters)


def make(
    vocabulary: Vocabulary, *, characters: str = "convolution", crf: bool = True, layer: str = "lstm", **options
) -> Tagger:
    torch.manual_seed(0)
    kind = CHARACTERS[characters]
    spelled: CharacterModel | None = kind(vocabulary.tokenizers["characters"].vocabulary_size) if kind else None
    width = 12 + (spelled.output_size if spelled else 0)
    num_tags = len(vocabulary.labels)
    return Tagger(
        seriatim.layer(layer, width, 16, bidirectional=True),
        vocabulary.tokenizer.vocabulary_size,
        num_tags=num_tags,
        characters=spelled,
        crf=CRF(num_tags, bio_transitions(vocabulary.labels)) if crf else None,
        **options,
    )


def in_order(corpus: TaggedCorpus) -> Iterator[TaggedBatch]:
    batches = Buckets(corpus.lengths, 8, corpus.batch)
    return batches.read(batches.in_order())


@pytest.fixture(scope="module")
def corpus() -> tuple[Vocabulary, TaggedCorpus]:
    vocabulary = learn(people(40))
    return vocabulary, TaggedCorpus(people(40), vocabulary)


@pytest.mark.parametrize(
    ("characters", "crf"),
    [
        ("convolution", True),
        ("recurrent", False),
        pytest.param("convolution", False, marks=pytest.mark.exhaustive),
        pytest.param("recurrent", True, marks=pytest.mark.exhaustive),
    ],
)
def test_it_learns_to_tag_names_it_has_not_seen(corpus, characters: str, crf: bool) -> None:
    vocabulary, trained = corpus
    tagger = make(vocabulary, characters=characters, crf=crf, dropout=0.1, word_dropout=0.5)
    optimizer = torch.optim.Adam(tagger.parameters(), lr=0.02)
    for epoch in range(12):
        batches = Buckets(trained.lengths, 8, lambda rows: trained.batch(rows, trained.seen_once()))
        for batch in batches.read(batches.shuffled(1, epoch)):
            optimizer.zero_grad()
            (tagger.loss(batch) / batch.lengths.sum()).backward()
            optimizer.step()
    tagger.eval()
    unseen = TaggedCorpus(people(30, seed=9), vocabulary)
    assert unseen.unknown_words() > 30
    for batch in in_order(unseen):
        best = tagger.decode(tagger(batch), batch.lengths)
        for found, tags, length in zip(best, batch.tags.tolist(), batch.lengths.tolist(), strict=True):
            assert found == tags[:length]


@pytest.mark.parametrize("layer", ["lstm", pytest.param("transformer", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("crf", [True, False], ids=["crf", "softmax"])
@pytest.mark.parametrize("characters", CHARACTERS)
def test_a_batch_gives_what_its_rows_give(corpus, characters: str, crf: bool, layer: str) -> None:
    vocabulary, encoded = corpus
    tagger = make(vocabulary, characters=characters, crf=crf, layer=layer).double().eval()
    rows = np.array([7, 0, 31, 12, 3])
    whole = encoded.batch(rows)
    parts = [encoded.batch(rows[i : i + 1]) for i in range(len(rows))]
    scores = tagger(whole)
    for row, part in enumerate(parts):
        one = tagger(part)[0]
        torch.testing.assert_close(scores[row, : len(one)], one, rtol=1e-10, atol=1e-10)
    tags = tagger.decode(scores, whole.lengths)
    assert tags == [tagger.decode(tagger(part), part.lengths)[0] for part in parts]
    losses = torch.stack([tagger.loss(part) for part in parts])
    torch.testing.assert_close(tagger.losses(scores, whole), losses, rtol=1e-10, atol=1e-10)
    shares = tagger.probabilities(scores, whole.lengths, tags)
    for part, own, best in zip(parts, shares, tags, strict=True):
        assert own == pytest.approx(tagger.probabilities(tagger(part), part.lengths, [best])[0])
    found = torch.autograd.grad(tagger.loss(whole), list(tagger.parameters()))
    expected = torch.autograd.grad(sum(tagger.loss(part) for part in parts), list(tagger.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_a_field_keeps_to_bio_untrained(corpus) -> None:
    vocabulary, encoded = corpus
    tagger = make(vocabulary).eval()
    torch.nn.init.normal_(tagger.output.weight, std=20)
    assert vocabulary.labels == TAGS
    for batch in in_order(encoded):
        for row in tagger.decode(tagger(batch), batch.lengths):
            tags = ["O", *(TAGS[tag] for tag in row)]
            assert all(tag != "I-PER" or before != "O" for before, tag in itertools.pairwise(tags))


def test_the_loss_of_a_softmax_leaves_unknown_tags_and_padding_out(corpus) -> None:
    vocabulary, encoded = corpus
    tagger = make(vocabulary, crf=False).double().eval()
    batch = encoded.batch(np.array([0, 1, 2]))
    batch.tags[0, 1] = NO_TAG
    logs = tagger(batch).log_softmax(2)
    expected = sum(
        -logs[row, t, batch.tags[row, t]]
        for row, length in enumerate(batch.lengths.tolist())
        for t in range(length)
        if (row, t) != (0, 1)
    )
    torch.testing.assert_close(tagger.loss(batch), expected)


def test_only_rare_words_are_dropped_and_only_in_training(corpus) -> None:
    vocabulary, encoded = corpus
    tagger = make(vocabulary, characters="none", word_dropout=0.99)
    tagger.embedding.weight.data[UNKNOWN] = 1e3
    batch = encoded.batch(np.arange(40), encoded.seen_once())
    counts = Counter(word for one in people(40) for word in one.words)
    rare = {word_ids([word], vocabulary.tokenizer)[0] for word, count in counts.items() if count == 1}
    assert [word in rare for word in batch.words[batch.words > 0].tolist()] == batch.once[batch.words > 0].tolist()
    seen = []
    tagger.layer.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    tagger(batch)
    tagger.eval()(batch)
    dropped, whole = ((inputs == 1e3).all(2) for inputs in seen)
    valid = torch.arange(batch.words.shape[1]) < batch.lengths.unsqueeze(1)
    assert not (dropped & valid & ~batch.once).any()
    assert (dropped & batch.once).sum() > 0.9 * batch.once.sum()
    assert not (whole & valid).any()


def test_vectors_made_elsewhere(corpus) -> None:
    vocabulary, _ = corpus
    tagger = make(vocabulary)
    before = tagger.embedding.weight.detach().clone()
    vectors = torch.randn(2, 12)
    tagger.set_vectors(torch.tensor([3, 1]), vectors)
    torch.testing.assert_close(tagger.embedding.weight[[3, 1]], vectors)
    torch.testing.assert_close(tagger.embedding.weight[4:], before[4:])


def test_batches_hold_what_the_sentences_hold(corpus) -> None:
    vocabulary, encoded = corpus
    source = people(40)
    assert encoded.truth() == [one.tags for one in source]
    for batch in in_order(encoded):
        assert len(batch.spellings.characters) == len({word for row in batch.rows for word in source[row].words})
        for row, original in enumerate(source[i] for i in batch.rows):
            assert batch.lengths[row] == len(original.words)
            for t, word in enumerate(original.words):
                assert vocabulary.tokenizer.describe(int(batch.words[row, t])) == word
                assert vocabulary.labels[batch.tags[row, t]] == original.tags[t]
                place = batch.spellings.indices[row, t]
                letters = batch.spellings.characters[place, : batch.spellings.lengths[place]]
                assert vocabulary.tokenizers["characters"].decode(letters) == word


def test_words_are_words_whatever_they_hold() -> None:
    words = ["New York", "é\u00a0b", "\u2028", "<unk>", "</s>", "_", "a"]
    known = [sentence(words, list("ABCDEFG"))]
    encoded = TaggedCorpus(known, learn(known))
    assert encoded.words.tolist()[3] == UNKNOWN
    assert len({*encoded.words.tolist()}) == len(words) - 1  # a lone space and _ are taken for one another
    assert encoded.unknown_words() == 1


def test_what_the_vocabulary_does_not_know_is_told() -> None:
    known = [sentence(["The", "the", "cat", "cat", "sat"], ["D", "D", "N", "N", "V"])]
    once = TaggedCorpus(known, learn(known)).seen_once()
    assert sorted(learn(known).tokenizer.describe(i) for i in np.flatnonzero(once)) == ["The", "sat", "the"]
    lower = learn(known, lowercase=True, min_count=2)
    assert not TaggedCorpus(known, lower).seen_once().any()
    long = "ab" * MAX_CHARACTERS
    other = TaggedCorpus([sentence(["THE", "Cat", long], ["D", "X", "N"])], lower)
    batch = other.batch(np.array([0]))
    assert [lower.tokenizer.describe(word) for word in batch.words[0].tolist()] == ["the", "cat", "<unk>"]
    assert batch.tags.tolist() == [[0, NO_TAG, 1]]
    assert batch.spellings.characters.shape == (3, MAX_CHARACTERS)
    assert (other.unknown_words(), other.unseen_tags(), other.unseen) == (1, 1, {"X": "here:2"})
    assert other.truth() == [["D", "X", "N"]]
    assert learn(known, vocabulary_size=3).tokenizer.vocabulary_size == 3
    plain = TaggedCorpus(known, learn(known, characters=False), labelled=False).batch(np.array([0]))
    assert plain.tags is plain.spellings is plain.once is None
    with refused("empty", "here:1"):
        learn([sentence(["a", "b"], ["N", "N"])])


def test_hidden_words_are_not_read_but_predicted(corpus) -> None:
    vocabulary, sentences = corpus
    rate, weight = 0.5, 0.3
    model = make(vocabulary, hidden=(rate, weight)).double()
    batch = sentences.batch(np.arange(8))
    torch.manual_seed(5)
    loss = model.loss(batch)
    torch.manual_seed(5)
    is_hidden = model.hidden_words.choose(batch.words, batch.lengths)
    assert is_hidden.any()
    assert not is_hidden[~valid_mask(batch.lengths, batch.words.shape[1])].any()

    # Whatever stands at a hidden position, its word and its characters, changes nothing.
    indices = batch.spellings.indices.masked_fill(is_hidden, 0)
    words, spellings = batch.words.masked_fill(is_hidden, 3), batch.spellings._replace(indices=indices)
    changed = batch._replace(words=words, spellings=spellings)
    outputs = model.outputs(batch, is_hidden)
    assert torch.equal(model.outputs(changed, is_hidden), outputs)
    assert not torch.equal(model.outputs(changed), model.outputs(batch))

    logits = model.hidden_words.map(outputs[is_hidden]) @ model.embedding.weight[2:].mT
    expected = F.cross_entropy(logits, batch.words[is_hidden] - 2, reduction="sum")
    torch.testing.assert_close(loss, model.losses(model.scores(outputs), batch).sum() + weight / rate * expected)
    model.eval()
    assert torch.equal(model.loss(batch), model.losses(model(batch), batch).sum())


def test_what_does_not_fit_is_refused(corpus) -> None:
    vocabulary, _ = corpus
    layer = seriatim.layer("gru", 30, 4)
    with refused("range"):
        Tagger(layer, 5, num_tags=2, characters=ConvolutionalCharacters(9))
    with refused("range"):
        Tagger(layer, 5, num_tags=2, word_dropout=1.0)
    with refused("range"):
        Tagger(layer, 5, num_tags=2, dropout=1.0)
    with refused("unsupported", "model.options.memory_size"):
        Tagger(seriatim.layer("transformer", 8, 8, memory_size=4), 5, num_tags=2)
    with pytest.raises(ValueError, match="odd"):
        ConvolutionalCharacters(9, width=2)
    untagged = TaggedCorpus(people(2), vocabulary, labelled=False)
    with pytest.raises(ValueError, match="labelled=True"):
        make(vocabulary).loss(untagged.batch(np.array([0])))


def test_convolution_is_torchs_own() -> None:
    torch.manual_seed(0)
    ours = ConvolutionalCharacters(9, embedding_size=4, filters=5, width=3).double()
    theirs = torch.nn.Conv1d(4, 5, 3, padding=1).double()
    theirs.weight.data = ours.filters.weight.data.view(5, 3, 4).transpose(1, 2)
    theirs.bias.data = ours.filters.bias.data
    characters, lengths = torch.randint(0, 9, (6, 7)), torch.tensor([7, 1, 3, 2, 7, 5])
    for row, length in enumerate(lengths.tolist()):
        embedded = ours.embedding(characters[row : row + 1, :length]).transpose(1, 2)
        torch.testing.assert_close(ours(characters, lengths)[row], torch.tanh(theirs(embedded).amax(2))[0])


def test_recurrence_is_torchs_own() -> None:
    torch.manual_seed(0)
    ours = RecurrentCharacters(9, embedding_size=4, hidden_size=5).double()
    theirs = torch.nn.LSTM(4, 5, bidirectional=True, batch_first=True).double()
    for name, parameter in theirs.named_parameters():
        direction = ours.layer.backwards if name.endswith("_reverse") else ours.layer.forwards
        parameter.data = direction.cell.get_parameter(name.removesuffix("_reverse")).data
    characters, lengths = torch.randint(0, 9, (6, 7)), torch.tensor([7, 1, 3, 2, 7, 5])
    found = ours(characters, lengths)
    for row, length in enumerate(lengths.tolist()):
        _, (hidden, _) = theirs(ours.embedding(characters[row : row + 1, :length]))
        torch.testing.assert_close(found[row], hidden.flatten())
