"""What a row keeps of single items and tokens, from which a comparison computes where its models differ.

Labels are kept as numbers, beside the statistics of the row; a part of the texts is kept, shortened, in the row itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core.errors import InputError
from ..core.json_object import JsonMapping, JsonObject
from ..evaluation.error_analysis import evenly
from ..evaluation.token_scores import TokenLosses
from ..pages.wording import cut
from ..runs.run import Run
from ..tasks.explainer import NotOfferedError
from ..tasks.task import TaskData
from .plan import FIGURE_OF_SUMS
from .results import TrainingRow

PREFIX = "items."
"""The beginning of the names of these arrays in the file of a row, which also has the statistics for paired tests."""
MAX_ITEMS = 100_000  # items that are read
MAX_UNITS = 100_000  # labels that are kept
MAX_TEXTS, MAX_CHARACTERS = 5_000, 300
"""Items whose texts are kept, and characters of each."""
ARRAYS = ("rows", "sizes", "lengths", "truth", "predicted")
Arrays = dict[str, np.ndarray]
Item = tuple[str, Sequence[str]]
"""An input with its right answers, of which every one is right."""


@dataclass(frozen=True)
class ItemAnswers:
    """The answers of one model to some items of the measured data.

    Attributes:
        total: number of items in the data.
        rows: the index of each item in the data, in ascending order ``(items,)``.
        unit: plural noun for what has a label.
        names: the labels; empty if answers are no labels.
        sizes: numbers of labels of each item ``(items,)``.
        lengths: numbers of tokens of each input ``(items,)``.
        truth, predicted: the label of each text or word, as its index in ``names`` ``(sum of sizes,)``.
        texts: ``row``, ``text``, ``truth`` and ``answer`` of some items, shortened, and whether it is ``right``.
    """

    total: int
    rows: np.ndarray
    unit: str
    names: Sequence[str]
    sizes: np.ndarray
    lengths: np.ndarray
    truth: np.ndarray
    predicted: np.ndarray
    texts: Sequence[JsonMapping]

    @classmethod
    def read(cls, row: TrainingRow, arrays: Arrays) -> "ItemAnswers | None":
        """Return what `answer_items` has kept, given the result of `read_arrays`; None if there is nothing."""
        kept: JsonObject = {**row.answers, **{name: arrays.get(name) for name in ARRAYS}}
        return cls(**kept) if row.answers else None

    def flat_labels(self) -> tuple[list[str], list[str]]:
        """Return all true and all predicted labels."""
        true, predicted = ([self.names[label] for label in labels.tolist()] for labels in (self.truth, self.predicted))
        return true, predicted

    def labels(self) -> tuple[list[list[str]], list[list[str]]]:
        """Return the true and the predicted labels of each item."""
        ends = self.sizes.cumsum().tolist()
        spans = list(zip([0, *ends[:-1]], ends, strict=True))
        true, predicted = ([labels[start:end] for start, end in spans] for labels in self.flat_labels())
        return true, predicted


def answer_items(run: Run, items: Sequence[Item]) -> tuple[JsonObject, Arrays]:
    """Answer inputs that are evenly spread over the data, given with their right answers.

    Returns:
        The fields of the row, and the arrays beside it; both are empty for tasks without answers.
    """
    predictor = run.task.predictor
    if predictor is None:
        return {}, {}
    try:
        chosen = evenly(range(len(items)), _count(run, items))
        answers: list[str] = []
        for start in range(0, len(chosen), predictor.batch_size):
            batch = [items[i][0] for i in chosen[start : start + predictor.batch_size]]
            answers += [str(answer["text"]) for answer in predictor.answer(run.model, run.vocabulary, batch)]
    except InputError:  # a task that does not answer
        return {}, {}
    if not answers:
        return {}, {}

    # Answers are compared label by label where all of them are labels; a tagger may give fewer tags than words.
    labels = [
        (predictor.labels_of(items[i][1][0]), predictor.labels_of(answer))
        for i, answer in zip(chosen, answers, strict=True)
    ]
    labelled = all(true is not None and given is not None for true, given in labels)
    usable = [i for i, (true, given) in enumerate(labels) if not labelled or len(true or ()) == len(given or ())]
    true, predicted = ([list(labels[i][side] or ()) if labelled else [] for i in usable] for side in (0, 1))
    names = sorted({label for row in (*true, *predicted) for label in row})
    numbers = {name: i for i, name in enumerate(names)}

    # The texts of a part of the items are enough for a page, and keep the file of a row small.
    texts = []
    for i in evenly(usable, MAX_TEXTS):
        text, truths = items[chosen[i]]
        shown = {"text": text, "truth": listed(truths), "answer": answers[i]}
        shortened = {name: cut(value, MAX_CHARACTERS) for name, value in shown.items()}
        texts.append({"row": chosen[i], **shortened, "right": answers[i] in truths})
    fields = {"total": len(items), "unit": predictor.label_unit, "names": names, "texts": texts}
    arrays = {
        "rows": np.array([chosen[i] for i in usable], np.int64),
        "sizes": np.array([len(row) for row in true], np.int64),
        "lengths": np.array([len(run.tokenizer.encode(items[chosen[i]][0])) for i in usable], np.int64),
        "truth": np.array([numbers[label] for row in true for label in row], np.int64),
        "predicted": np.array([numbers[label] for row in predicted for label in row], np.int64),
    }
    return {"answers": fields}, arrays


def stored(arrays: Arrays) -> Arrays:
    """Return arrays as the file of a row has them: with their names there, and whole numbers in 16 or 32 bits."""
    return {f"{PREFIX}{name}": _small(array) if array.dtype.kind == "i" else array for name, array in arrays.items()}


def _small(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.int16 if numbers.max(initial=0) <= np.iinfo(np.int16).max else np.int32)


def read_arrays(tensors: Mapping[str, np.ndarray]) -> Arrays:
    """Return the arrays of single items among those of a row."""
    return {
        name.removeprefix(PREFIX): array.astype(np.int64) if array.dtype.kind == "i" else array
        for name, array in tensors.items()
        if name.startswith(PREFIX)
    }


def has_all(statistics: Arrays, key: str, total: int) -> bool:
    """Return whether there are statistics of a figure for each of the ``total`` items that were read."""
    return key in statistics and key in FIGURE_OF_SUMS and min(MAX_ITEMS, len(statistics[key])) == total


def with_equal_names(answers: Mapping[str, ItemAnswers]) -> dict[str, ItemAnswers]:
    """Return the answers of several layers with labels that have the same numbers."""
    names = sorted({name for each in answers.values() for name in each.names})
    numbers = {name: i for i, name in enumerate(names)}

    def renumbered(each: ItemAnswers) -> ItemAnswers:
        table = np.array([numbers[name] for name in each.names], np.int64)
        return replace(each, names=names, truth=table[each.truth], predicted=table[each.predicted])

    return {layer: renumbered(each) for layer, each in answers.items()}


def listed(truths: Sequence[str]) -> str:
    """Return the right answers to one input as a text."""
    return " or ".join(truths)


def _count(run: Run, items: Sequence[Item]) -> int:
    """Return how many items are answered: fewer if they have many labels."""
    some = evenly(items, MAX_TEXTS)
    sizes = [len(run.predictor.labels_of(truths[0]) or ()) for _, truths in some]
    mean = sum(sizes) / max(1, len(sizes))
    return max(1, min(run.predictor.max_compared, int(MAX_UNITS / max(1.0, mean))))


# Losses of single tokens, as a row keeps them: the losses in an array, and the names of tokens in the row itself.


LARGEST = 1 << 14  # positions and frequencies that are kept; larger ones are alike
TOKEN_ARRAYS = ("nats", "ids", "positions", "frequencies", "piece_ends", "piece_blocks")


def measure_tokens(run: Run, data: TaskData, train: TaskData) -> tuple[JsonObject, Arrays]:
    """Return the fields of a row and the arrays beside it; both are empty for tasks without losses of tokens."""
    try:
        explainer = run.task.explainer(run.model, run.vocabulary, run.answering)
        losses = explainer.require(explainer.token_losses)(data, train)
    except NotOfferedError:
        return {}, {}
    names = {str(token): name for token, name in losses.names.items()}
    spelled = {str(index): word for index, word in losses.spelled.items()}
    fields = {"token_losses": {"names": names, "spelled": spelled, "measured": losses.measured}}
    arrays = {name: getattr(losses, name) for name in TOKEN_ARRAYS}
    small = {name: np.minimum(arrays[name], LARGEST) for name in ("positions", "frequencies")}
    return fields, arrays | small | {"nats": losses.nats.astype(np.float32)}


def read_tokens(row: TrainingRow, arrays: Arrays) -> TokenLosses | None:
    """Return what `measure_tokens` has kept, given the result of `read_arrays`; None if there is nothing."""
    fields = row.token_losses
    if not fields:
        return None
    names = {int(token): name for token, name in fields["names"].items()}
    spelled = {int(index): word for index, word in fields["spelled"].items()}
    kept = {name: arrays[name] for name in TOKEN_ARRAYS} | {"nats": arrays["nats"].astype(float)}
    return TokenLosses(**kept, names=names, spelled=spelled, measured=str(fields["measured"]))
