"""The tagger: it learns, a batch is its rows one by one, and a random field keeps to BIO."""

import itertools
import random

import numpy as np
import pytest
import torch

import seriatim
from seriatim.data.conll import Sentence
from seriatim.data.tagging import LONGEST, NO_TAG, UNKNOWN, TaggedBatch, TaggedCorpus, TaggingVocabulary
from seriatim.errors import InputError
from seriatim.models.characters import CharacterModel, ConvolutionalCharacters, RecurrentCharacters
from seriatim.models.crf import CRF, bio_transitions
from seriatim.models.tagger import Tagger

CHARACTERS = {"none": None, "convolution": ConvolutionalCharacters, "recurrent": RecurrentCharacters}
TAGS = ["B-PER", "I-PER", "O"]


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


def make(
    vocabulary: TaggingVocabulary, *, characters: str = "convolution", crf: bool = True, layer: str = "lstm", **options
) -> Tagger:
    torch.manual_seed(0)
    kind = CHARACTERS[characters]
    spelled: CharacterModel | None = kind(1 + len(vocabulary.characters)) if kind else None
    width = 12 + (spelled.output_size if spelled else 0)
    num_tags = len(vocabulary.tags)
    return Tagger(
        seriatim.layer(layer, width, 16, bidirectional=True),
        1 + len(vocabulary.words),
        num_tags=num_tags,
        characters=spelled,
        crf=CRF(num_tags, bio_transitions(vocabulary.tags)) if crf else None,
        **options,
    )


@pytest.fixture(scope="module")
def corpus() -> tuple[TaggingVocabulary, TaggedCorpus]:
    vocabulary = TaggingVocabulary.fit(people(40))
    return vocabulary, TaggedCorpus(people(40), vocabulary)


@pytest.mark.parametrize("crf", [True, False], ids=["crf", "softmax"])
@pytest.mark.parametrize("characters", ["convolution", "recurrent"])
def test_it_learns_to_tag_names_it_has_not_seen(corpus, characters: str, crf: bool) -> None:
    vocabulary, trained = corpus
    rare = torch.from_numpy(vocabulary.rare_words())
    tagger = make(vocabulary, characters=characters, crf=crf, dropout=0.1, word_dropout=0.5, rare=rare)
    optimizer = torch.optim.Adam(tagger.parameters(), lr=0.02)
    for epoch in range(12):
        for batch in trained.read(trained.shuffled(8, seed=1, epoch=epoch)):
            optimizer.zero_grad()
            (tagger.loss(batch) / batch.lengths.sum()).backward()
            optimizer.step()
    tagger.eval()
    unseen = TaggedCorpus(people(30, seed=9), vocabulary)
    assert unseen.unknown_words > 30
    for batch in unseen.read(unseen.in_order(8)):
        for found, tags, length in zip(tagger.decode(batch), batch.tags.tolist(), batch.lengths.tolist(), strict=True):
            assert found == tags[:length]


@pytest.mark.parametrize("layer", ["lstm", "transformer"])
@pytest.mark.parametrize("crf", [True, False], ids=["crf", "softmax"])
@pytest.mark.parametrize("characters", CHARACTERS)
def test_a_batch_gives_what_its_rows_give(corpus, characters: str, crf: bool, layer: str) -> None:
    vocabulary, encoded = corpus
    tagger = make(vocabulary, characters=characters, crf=crf, layer=layer).double().eval()
    rows = np.array([7, 0, 31, 12, 3])
    whole = encoded.batch(rows)
    parts = [encoded.batch(rows[i : i + 1]) for i in range(len(rows))]
    scores = tagger.scores(whole)
    for row, part in enumerate(parts):
        one = tagger.scores(part)[0]
        torch.testing.assert_close(scores[row, : len(one)], one, rtol=1e-10, atol=1e-10)
    assert tagger.decode(whole) == [tagger.decode(part)[0] for part in parts]
    losses = torch.stack([tagger.loss(part) for part in parts])
    torch.testing.assert_close(tagger.loss(whole), losses.sum(), rtol=1e-10, atol=1e-10)
    found = torch.autograd.grad(tagger.loss(whole), list(tagger.parameters()))
    expected = torch.autograd.grad(sum(tagger.loss(part) for part in parts), list(tagger.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_a_field_keeps_to_bio_untrained(corpus) -> None:
    vocabulary, encoded = corpus
    tagger = make(vocabulary).eval()
    torch.nn.init.normal_(tagger.output.weight, std=20)
    assert vocabulary.tags == TAGS
    for batch in encoded.read(encoded.in_order(16)):
        for row in tagger.decode(batch):
            tags = ["O", *(TAGS[tag] for tag in row)]
            assert all(tag != "I-PER" or before != "O" for before, tag in itertools.pairwise(tags))


def test_the_loss_of_a_softmax_leaves_unknown_tags_and_padding_out(corpus) -> None:
    vocabulary, encoded = corpus
    tagger = make(vocabulary, crf=False).double().eval()
    batch = encoded.batch(np.array([0, 1, 2]))
    batch.tags[0, 1] = NO_TAG
    logs = tagger.scores(batch).log_softmax(2)
    expected = sum(
        -logs[row, t, batch.tags[row, t]]
        for row, length in enumerate(batch.lengths.tolist())
        for t in range(length)
        if (row, t) != (0, 1)
    )
    torch.testing.assert_close(tagger.loss(batch), expected)


def test_only_rare_words_are_dropped_and_only_in_training(corpus) -> None:
    vocabulary, encoded = corpus
    rare = torch.from_numpy(vocabulary.rare_words())
    tagger = make(vocabulary, characters="none", word_dropout=0.99, rare=rare)
    tagger.embedding.weight.data[UNKNOWN] = 1e3
    batch = encoded.batch(np.arange(40))
    seen = []
    tagger.layer.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    tagger.scores(batch)
    tagger.eval().scores(batch)
    dropped, whole = ((inputs == 1e3).all(2) for inputs in seen)
    valid = torch.arange(batch.words.shape[1]) < batch.lengths.unsqueeze(1)
    assert not (dropped & valid & ~rare[batch.words]).any()
    assert (dropped & rare[batch.words]).sum() > 0.9 * rare[batch.words].sum()
    assert not (whole & valid).any()


def test_vectors_made_elsewhere(corpus) -> None:
    vocabulary, _ = corpus
    tagger = make(vocabulary)
    before = tagger.embedding.weight.detach().clone()
    vectors = torch.randn(2, 12)
    tagger.set_vectors(torch.tensor([3, 1]), vectors)
    torch.testing.assert_close(tagger.embedding.weight[[3, 1]], vectors)
    torch.testing.assert_close(tagger.embedding.weight[4:], before[4:])
    with pytest.raises(InputError, match="12, but the vectors have 5"):
        tagger.set_vectors(torch.tensor([1]), torch.zeros(1, 5))


def test_batches_hold_what_the_sentences_hold(corpus) -> None:
    vocabulary, encoded = corpus
    source = people(40)
    groups = encoded.shuffled(7, seed=3, epoch=2)
    assert sorted(np.concatenate(groups)) == sorted(np.concatenate(encoded.in_order(7))) == list(range(40))
    assert [group.tolist() for group in groups] == [group.tolist() for group in encoded.shuffled(7, 3, 2)]
    batches = list(encoded.read(groups))
    assert len(list(encoded.read(groups, skip=2))) == len(batches) - 2
    for group, batch in zip(groups, batches, strict=True):
        assert len(batch.characters) == len({word for row in group for word in source[row].words})
        for row, original in enumerate(source[i] for i in group):
            assert batch.lengths[row] == len(original.words)
            for t, word in enumerate(original.words):
                assert vocabulary.words[batch.words[row, t] - 1] == word
                assert vocabulary.tags[batch.tags[row, t]] == original.tags[t]
                place = batch.distinct[row, t]
                letters = batch.characters[place, : batch.character_lengths[place]]
                assert "".join(vocabulary.characters[letter - 1] for letter in letters) == word


def test_a_vocabulary_says_what_it_does_not_know() -> None:
    known = [sentence(["The", "the", "cat", "cat", "sat"], ["D", "D", "N", "N", "V"])]
    vocabulary = TaggingVocabulary.fit(known, more_words=["dog", "sat"])
    assert set(vocabulary.words) == {"The", "the", "cat", "sat", "dog"}
    rare = [word for word, once in zip(["", *vocabulary.words], vocabulary.rare_words(), strict=True) if once]
    assert sorted(rare) == ["The", "sat", "the"]
    assert TaggingVocabulary.from_json(vocabulary.to_json()) == vocabulary
    lower = TaggingVocabulary.fit(known, lowercase=True, min_count=2)
    assert (lower.words, lower.characters, lower.rare) == (["cat", "the"], "Tacehst", 0)
    long = "ab" * LONGEST
    other = TaggedCorpus([sentence(["THE", "Cat", long], ["D", "X", "N"])], lower)
    batch = other.batch(np.array([0]))
    assert batch.words.tolist() == [[2, 1, UNKNOWN]]
    assert batch.tags.tolist() == [[0, NO_TAG, 1]]
    assert batch.characters.shape == (3, LONGEST)
    assert (other.unknown_words, other.unknown_tags) == (1, 1)
    assert TaggedCorpus([sentence(["a"], ["_"])], lower, labelled=False).batch(np.array([0])).tags is None


def test_what_does_not_fit_is_refused(corpus) -> None:
    vocabulary, _ = corpus
    layer = seriatim.layer("gru", 30, 4)
    with pytest.raises(InputError, match="30 features, all of them of characters"):
        Tagger(layer, 5, num_tags=2, characters=ConvolutionalCharacters(9))
    with pytest.raises(InputError, match="word_dropout"):
        Tagger(layer, 5, num_tags=2, word_dropout=0.5)
    with pytest.raises(InputError, match="dropout"):
        Tagger(layer, 5, num_tags=2, dropout=1.0)
    with pytest.raises(InputError, match="memory"):
        Tagger(seriatim.layer("transformer", 8, 8, memory_size=4), 5, num_tags=2)
    with pytest.raises(ValueError, match="odd"):
        ConvolutionalCharacters(9, width=2)
    empty = torch.zeros(1, 1, dtype=torch.long)
    batch = TaggedBatch(empty, torch.ones(1, dtype=torch.long), empty, torch.ones(1), empty, None)
    with pytest.raises(ValueError, match="labelled=True"):
        make(vocabulary).loss(batch)


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
        way = ours.layer.backwards if name.endswith("_reverse") else ours.layer.forwards
        parameter.data = way.get_parameter(name.removesuffix("_reverse")).data
    characters, lengths = torch.randint(0, 9, (6, 7)), torch.tensor([7, 1, 3, 2, 7, 5])
    found = ours(characters, lengths)
    for row, length in enumerate(lengths.tolist()):
        _, (hidden, _) = theirs(ours.embedding(characters[row : row + 1, :length]))
        torch.testing.assert_close(found[row], hidden.flatten())
