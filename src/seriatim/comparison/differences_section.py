"""The section of a comparison page on where models differ: by class, by token, and on single texts."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from ..core.json_object import JsonMapping
from ..evaluation.intervals import SIGNIFICANT, supported_digits
from ..inspection.mistakes import MAX_LABELS, confusion_figure
from ..pages.charts import end_labels, tall_figure
from ..pages.drawing import show
from ..pages.page import Cell, Folded, PageBlock, Plot, Plots, Prose, Table
from ..pages.strip import Strip, StripRow, StripToken, Values
from ..pages.theme import layer_style, plain
from ..pages.wording import cut, listed, percent, sentence_case
from .differences import LOSS, MAX_DIFFERING, MIN_SUPPORT, UNKNOWN_NAME
from .results import Results

# Figures of the quality of each layer in buckets of tokens or of items.


DODGE = 0.05  # distance of the intervals of two layers, where that of two buckets is 1
WIDEST = 0.5  # the largest distance of all intervals of a bucket


def bucket_figure(buckets: JsonMapping) -> Figure | None:
    """Draw the figure of each layer in each shown bucket, with 95 % intervals; None with fewer than two buckets.

    ``buckets`` is a result of `compare_buckets` or `compare_lengths`.
    """
    shown, names = list(buckets["shown"]), buckets["names"]
    values = {layer: [each[i] for i in shown] for layer, each in buckets["values"].items()}
    drawn = {layer: each for layer, each in values.items() if any(value is not None for value, *_ in each)}
    if len(shown) < 2 or not drawn:
        return None

    # Layers are moved apart within a bucket, so that their intervals do not cover each other.
    figure, axes = tall_figure(len(drawn))
    step, ends = min(DODGE, WIDEST / len(drawn)), []
    for i, (layer, each) in enumerate(drawn.items()):
        look = layer_style(layer)
        xs = np.arange(len(shown)) + step * (i - (len(drawn) - 1) / 2)
        ys = [np.nan if value is None else value for value, *_ in each]
        show(axes.plot(xs, ys, **look), layer, names=[names[bucket] for bucket in shown])
        for x, (_, low, high) in zip(xs.tolist(), each, strict=True):
            if low is not None and high is not None and low < high:
                show(axes.plot([x, x], [low, high], color=look["color"], linewidth=0.8), layer, is_interval=True)
        ends.append((layer, layer, next(y for y in reversed(ys) if not np.isnan(y))))

    # Long names of buckets would run into each other unless they are turned.
    crowded = sum(map(len, (names[bucket] for bucket in shown))) > 24
    labels = [plain(names[bucket]) for bucket in shown]
    axes.set_xticks(range(len(shown)), labels, rotation=40 if crowded else 0, ha="right" if crowded else "center")
    axes.set_xlabel(plain(buckets["name"]))
    axes.set_ylabel(plain(buckets["of"]))
    end_labels(axes, ends)
    return figure


# The table of F1 by class on a comparison page, and a sentence on the classes that differ.


MAX_CHARACTERS = 60  # of the name of a class
LOWER, HIGHER = "▼", "▲"


def class_sentence(classes: JsonMapping) -> str:
    """Return in how many classes each layer differs significantly from the best one."""
    rows, best, total = classes["rows"], classes["best"], f"{classes['tested_classes']:,}"
    others = [layer for layer in next((row["f1"] for row in rows), {}) if layer != best]
    if not others or not classes["tested_classes"]:
        return f"F1 of each class, measured on {_measured_items(classes)}."
    counts = classes["differing"]
    differing = [f"{layer} in {counts[layer]:,}" for layer in others if counts.get(layer)]
    same = [layer for layer in others if not counts.get(layer)]
    clauses = [
        f"F1 differs significantly from that of {best}: {listed(differing)} of {total} tested classes."
        if differing
        else f"No layer differs significantly from {best} in the F1 of one of the {total} tested classes."
    ]
    if differing and same:
        clauses.append(f"In no tested class: {listed(same)}.")
    return " ".join([*clauses, f"Measured on {_measured_items(classes)}."])


def class_table(classes: JsonMapping) -> Table:
    """Return one row for each class: how often it is true, and F1 of each layer with its interval."""
    rows, best, unit = classes["rows"], classes["best"], classes["unit"]
    layers = list(next((row["f1"] for row in rows), {}))
    cells: list[list[str | Cell]] = []
    for row in rows:
        figures = [_cell(row["f1"][layer], row["f1"][best][0], row["p_values"].get(layer)) for layer in layers]
        cells.append([cut(row["name"], MAX_CHARACTERS) or "(no name)", f"{row['support']:,}", *figures])

    # What is marked was selected by tests, so the caption says how many there were and which rows are missing.
    caption = f"F1 of each class, with 95 % intervals; the classes with the most {unit} first."
    if classes["tests"]:
        caption += (
            f" {LOWER} and {HIGHER}: significantly lower or higher than {best} in this class (random exchanges "
            f"of the answers of both, p ≤ {SIGNIFICANT}, adjusted for {classes['tests']:,} tests by Holm's method). "
            f"The {classes['tested_classes']:,} most frequent classes with at least {MIN_SUPPORT} {unit} are tested."
        )
    if hidden := classes["classes"] - len(rows):
        caption += (
            f" {hidden:,} of {classes['classes']:,} classes are left out: shown are up to {MAX_DIFFERING} of those "
            "that differ significantly, the largest differences first, and the most frequent ones."
        )
    return Table(["class", unit, *layers], cells, caption, range(1, 2 + len(layers)))


def _cell(figure: list[float | None], best: float, p_value: float | None) -> Cell:
    value, low, high = figure
    assert value is not None
    sign = ""
    if p_value is not None and p_value <= SIGNIFICANT:
        sign = f" {LOWER if value < best else HIGHER}"
    if low is None or high is None or low == high:
        return Cell(f"{value:.2f}{sign}", value=value)
    digits = max(1, supported_digits(low, high, 3))
    return Cell(f"{value:.{digits}f}{sign}", note=f"{low:.{digits}f} to {high:.{digits}f}", value=value)


def _measured_items(classes: JsonMapping) -> str:
    measured, total = classes["measured"], classes["total"]
    return f"all {total:,} test items" if measured == total else f"{measured:,} of {total:,} items, evenly spread"


MAX_LABEL = 24  # characters of a label in a figure


def differences_section(results: Results) -> list[PageBlock]:
    """Return the blocks, none of which exists where `results.json` has no ``differ``."""
    differ = results.section("differ")
    blocks: list[PageBlock] = []
    if classes := differ.get("classes"):
        blocks += [Prose(class_sentence(classes)), class_table(classes)]
    if confused := differ.get("confusions"):
        blocks += _confusions(confused)
    if buckets := differ.get("buckets"):
        blocks += _buckets(buckets, str(differ.get("measured", "")))
    if disagreement := differ.get("disagreement"):
        blocks += _disagreement(disagreement, results)
    return blocks


def _confusions(confused: JsonMapping) -> Iterator[PageBlock]:
    """Return what the best layer confuses, and what the others confuse, folded."""
    best, *others = [_confusion(layer, each) for layer, each in confused.items()]
    yield best
    if others:
        yield Folded("Confusions of the other layers", others)


def _confusion(layer: str, confused: JsonMapping) -> PageBlock:
    """Return the confusion matrix of a layer, or the most frequent confusions where there are many labels."""
    wrong = f"{confused['wrong']:,} of {confused['total']:,} labels are wrong"
    if "matrix" in confused:
        caption = (
            "Rows are true labels, columns predicted labels; each cell is a share of the true label. Correct "
            f"predictions are on the diagonal; {wrong}."
        )
        labels = [cut(label, MAX_LABEL) for label in confused["labels"]]
        figure = confusion_figure(np.array(confused["matrix"]), labels)
        return Plots([Plot(figure, f"Confusion matrix of {layer}", caption, f"Confusion matrix; {wrong}.")])
    pairs = [(*(cut(label, MAX_CHARACTERS) for label in labels), count) for *labels, count in confused["pairs"]]
    rows = [[true, predicted, f"{count:,}"] for true, predicted, count in pairs]
    caption = f"The most frequent confusions of {layer}; {wrong}. There are more than {MAX_LABELS} labels, so there is "
    return Table(["true", "predicted", "count"], rows, f"{caption}no matrix.", {2})


def _buckets(buckets: Sequence[JsonMapping], measured: str) -> Iterator[PageBlock]:
    """Return the quality by length of the input, or by position and frequency of a token, and what is significant."""
    plots, sentences = list[Plot](), list[str]()
    for each in buckets:
        figure = bucket_figure(each)
        if figure is None:
            continue
        counts = ", ".join(f"{each['names'][i]}: {each['counts'][i]:,}" for i in each["shown"])
        caption = f"{_explained(each)}Lines are 95 % intervals. Numbers of {each['counted']}: {counts}."
        name = _figure_of(each)
        title = f"{sentence_case(name)} by {each['name']}"
        plots.append(Plot(figure, title, caption, f"{title}, one line for each layer. Numbers: {counts}."))
        sentences += filter(None, [_bucket_sentence(each)])
    if plots:
        introduction = [f"The losses of single tokens are those of {measured}."] if measured else []
        yield Prose(" ".join([*introduction, *sentences]))
        yield Plots(plots)


def _explained(buckets: JsonMapping) -> str:
    if buckets["by"] == "position":
        return "The first token of a line has place 1; the line end is its last token. "
    if any(buckets["names"][i] == UNKNOWN_NAME for i in buckets["shown"]):
        return "Unknown are words outside the vocabulary, which are read and predicted as one word, <unk>. "
    return ""


def _bucket_sentence(buckets: JsonMapping) -> str:
    """Return in how many ranges the second layer differs significantly from the best one, and by how much at most."""
    tests = buckets.get("tests")
    if not tests:
        return ""
    clear = [each for each in tests["results"] if each["p_value"] <= SIGNIFICANT and each["low"] is not None]
    first, second, ranges = tests["first"], tests["second"], len(tests["results"])
    if not clear:
        return f"By {_unit_left_out(buckets['name'])}, no difference between {first} and {second} is significant."

    # Of many ranges only the largest difference in each direction is named; the figure shows all of them.
    clauses = []
    for sign, verb in ((1, "higher"), (-1, "lower")):
        chosen = [each for each in clear if sign * each["difference"] > 0]
        if chosen:
            largest = max(chosen, key=lambda each: sign * each["difference"])
            name = buckets["names"][largest["bucket"]]
            what = (
                f"for inputs of {name} token{'s' if name != '1' else ''}" if buckets["by"] == "length" else f"in {name}"
            )
            where = f"in {len(chosen)} of {ranges} range{'s' if ranges > 1 else ''} (the largest difference is {what}: "
            where += f"{_difference(largest, buckets)})"
            clauses.append(f"a significantly {verb} {_figure_of(buckets)} than {first} {where}")
    return f"By {_unit_left_out(buckets['name'])}, {second} has {listed(clauses)}."


def _unit_left_out(name: str) -> str:
    return name.partition(" (")[0]


def _figure_of(buckets: JsonMapping) -> str:
    return _unit_left_out(str(buckets["of"]))


def _difference(test: JsonMapping, buckets: JsonMapping) -> str:
    sign = 1 if test["difference"] > 0 else -1
    low, high = sorted((sign * test["low"], sign * test["high"]))
    digits = max(0, supported_digits(low, high, 3))
    unit = " nats" if "(nats" in buckets["of"] else ""
    size = f"by {abs(test['difference']):.{digits}f}{unit}"
    if low <= 0:  # the p-value is adjusted for the number of ranges, the interval is not
        return size
    return f"{size}, 95 % interval {low:.{digits}f} to {high:.{digits}f}"


def _disagreement(pair: JsonMapping, results: Results) -> Iterator[PageBlock]:
    """Return the texts on which two models differ most, in both directions, and how often each is better."""
    first, second = pair["first"], pair["second"]
    names = {figure.key: figure.name for figure in (results.metric, *results.figures)}
    figure = "loss" if pair["of"] == LOSS else names.get(pair["of"], str(pair["of"]))
    what = "pieces of text" if pair["kind"] == "tokens" else "items of the measured data"

    # The reader must know how the two models were chosen: they are not the two that differ most.
    rule = (
        f"{first} and {second} are the first two of the ranking by {results.metric.name}. Of {pair['items']:,} "
        f"{what}, {first} has the better {figure} on {_percent(pair['better'])}, {second} on {_percent(pair['worse'])}."
    )
    if pair["kind"] == "tokens":
        rule += (
            " Each token below is shaded by its surprisal, −log₂ of its probability; select a token to see it. Full "
            f"shade is {math.log2(max(2, _outcomes(pair, results))):.1f} bits, the cost if all tokens were equally "
            "likely."
        )
        if pair.get("spelled"):
            rule += " A word in brackets is not in the vocabulary, and is read as <unk>."
    yield Prose(rule)

    # Both directions are shown, because the worse model on the whole may still be better on some texts.
    for better, worse, key in ((first, second, "for_first"), (second, first, "for_second")):
        title = f"Texts on which {better} is better than {worse} by the largest difference in {figure}"
        if not pair[key]:
            yield Prose(f"There is no text on which {better} is better than {worse}.")
        elif pair["kind"] == "tokens":
            yield from _token_texts(pair, key, title, _outcomes(pair, results))
        else:
            yield _answer_table(pair, key, title, figure, tags=bool(results.values.get("tags_words")))


def _outcomes(pair: JsonMapping, results: Results) -> int:
    return int(results.section("tokenizer").get("vocabulary_size") or pair["outcomes"])


def _token_texts(pair: JsonMapping, key: str, title: str, outcomes: int) -> Iterator[PageBlock]:
    """Return each text under both models, below each other."""
    yield Prose(f"{title}:")
    for text in pair[key]:
        rows, values = list[StripRow](), list[float]()
        for layer, bits, nats in zip((pair["first"], pair["second"]), text["bits"], text["figures"], strict=True):
            values += [math.inf if value is None else value for value in bits]
            total = "infinite" if nats is None else f"{nats / math.log(2):.1f} bits"
            rows.append(StripRow(layer, [StripToken(name) for name in text["tokens"]], total))
        yield Strip(rows, [Values("surprisal", values, math.log2(max(2, outcomes)), "bits")])


def _answer_table(pair: JsonMapping, key: str, title: str, figure: str, *, tags: bool) -> Table:
    """Return the texts with the right answers, and the answer of each model with its figure."""
    layers, rows = (pair["first"], pair["second"]), list[list[str | Cell]]()
    for item in pair[key]:
        truth = _marked_words(item["text"], item["truth"]) if tags else item["truth"]
        cells: list[str | Cell] = [item["text"], truth]
        for answer, value, right in zip(item["answers"], item["figures"], item["right"], strict=True):
            note = f"{figure} {'infinite' if value is None else f'{value:.2f}'}"
            shown = (
                answer if not tags else "no wrong tag" if right else _wrong_tags(item["text"], item["truth"], answer)
            )
            cells.append(Cell(shown, "right" if right else "wrong", note))
        rows.append(cells)
    caption = f"{title}." + (" Of the answers, only the wrong tags are shown, with their words." if tags else "")
    return Table(["text", "right answer", *layers], rows, caption, stacked=True)


def _marked_words(text: str, truth: str) -> str:
    """Return the words with their tags, without those that are outside of all chunks."""
    return " ".join(
        f"{word}/{tag}" for word, tag in zip(_complete_words(text), _complete_words(truth), strict=False) if tag != "O"
    )


def _wrong_tags(text: str, truth: str, answer: str) -> str:
    """Return the words whose tags are wrong, with these tags, as far as the shortened texts go."""
    aligned = zip(_complete_words(text), _complete_words(truth), _complete_words(answer), strict=False)
    return ", ".join(f"{word}/{given}" for word, true, given in aligned if true != given) or "wrong further on"


def _complete_words(shortened: str) -> list[str]:
    """Return the words of a text, without the last one of a text that is cut."""
    return shortened.split()[: -1 if shortened.endswith("…") else None]


def _percent(fraction: Sequence[float | None]) -> str:
    """Write a fraction with its interval: ``62 % (58 to 66 %)``."""
    value, low, high = fraction
    if value is None or low is None or high is None or low == high:
        return percent(value or 0.0)
    return f"{percent(value)} ({100 * low:.0f} to {100 * high:.0f} %)"
