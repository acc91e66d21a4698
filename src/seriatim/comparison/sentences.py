"""The results of a comparison in words, by fixed rules: every sentence follows from the figures of the rows."""

import math
from collections.abc import Callable, Sequence
from statistics import median

from ..report.number_formats import in_bytes, in_time, listed, percent, rounded, times
from .results import SIGNIFICANT, ResultRow, Results

NOTABLE = 1.5  # the ratio to the median from which a cost is named as a limit
TOLERANCE = 0.02  # relative difference up to which numbers of parameters are called equal
NEAR = 0.1  # relative difference from the best value up to which another value is near to it
POSITIONS = 200  # predictions behind an accuracy, where the results do not tell their number


def finding(results: Results) -> str:
    """Return the main result: the best layer, by how much, and which layers cannot be told from it."""
    metric, measured = results.metric, results.measured
    failed = [row.layer for row in results.rows if row.failed]
    if not measured:
        return f"No layer has a {metric.name}{': all failed' if len(failed) == len(results.rows) else ''}."
    best, *others = measured
    value, interval = results.of(best), best.interval(metric.key)
    bounds = f" (95 % interval {' to '.join(map(metric.written, interval))})" if interval else ""
    degree = "highest" if metric.more_is_better else "lowest"
    sentences = [f"{best.layer} has the {degree} {metric.name}: {metric.written(value)}{bounds}."]
    if others:
        second = results.of(others[0])
        same = "the same value, " if second == value else ""
        sentences.append(f"Next is {others[0].layer} with {same}{metric.written(second)}{_apart(second, value)}.")
        if tied := [row.layer for row in others if row.is_tied]:
            sentences.append(f"Not significantly different from the best (paired bootstrap): {listed(tied)}.")
        elif all(row.is_tested for row in others):
            they_are = "All others are" if len(others) > 1 else "It is"
            sentences.append(f"{they_are} significantly worse (paired bootstrap).")
    sentences += [beside_baseline(results), f"Failed: {listed(failed)}." if failed else ""]
    return " ".join(filter(None, sentences))


def beside_baseline(results: Results) -> str:
    """Return which layers are worse than the simple baseline, or cannot be told from it; empty if it was not run."""
    simple = next((row for row in results.measured if row.baseline), None)
    if simple is None:
        return ""
    worse, tied, better = list[str](), list[str](), list[str]()
    for row in results.measured:
        p_value = row.beside_baseline.get("p_value")
        if row.baseline or p_value is None:
            continue
        above = results.of(row) > results.of(simple)
        kind = tied if p_value > SIGNIFICANT else better if above == results.metric.more_is_better else worse
        kind.append(row.layer)
    parts = [
        f"The simple baseline is {simple.layer}: {results.metric.name} {results.metric.written(results.of(simple))}."
    ]
    parts += [f"Worse than the baseline: {listed(worse)}."] * bool(worse)
    parts += [f"Not significantly different from the baseline: {listed(tied)}."] * bool(tied)
    parts += ["All other layers are better than the baseline."] * (bool(better) and not worse + tied)
    return " ".join(parts)


def held_equal(results: Results) -> str:
    """Return what was equal for all layers, and the exceptions."""
    trained = [row for row in results.ran if not row.counted]
    counted = [row.layer for row in results.ran if row.counted]
    tokenizer, data, seeds = results.section("tokenizer"), results.section("data"), len(results.seeds)
    size = tokenizer.get("vocabulary_size")
    measured = ", ".join(filter(None, [data.get("measured_on"), (data.get("described") or {}).get("measured")]))
    equal = [
        f"{_budget(results)} of training",
        _equal_parameters(results, trained),
        f"the tokenizer ({tokenizer.get('kind')}{f', {size:,} entries' if size else ''})" if tokenizer else "",
        "the order of the data",
        f"the data that they are measured on ({measured or 'held out'})",
    ]
    sentences = [
        f"Equal for all layers: {'; '.join(filter(None, equal))}.",
        _learning_rates(results, trained),
        f"Figures are means over {seeds} seeds." if seeds > 1 else "One seed was run.",
        "The widths are set, so the numbers of parameters differ." if any(row.width for row in trained) else "",
    ]
    if counted:
        sentences.append(f"The budget and the number of parameters do not apply to counted models: {listed(counted)}.")
    return " ".join(filter(None, sentences))


def _budget(results: Results) -> str:
    """Return the budget: ``2 minutes``, ``1,000,000 tokens`` or ``60 steps``."""
    for name, amount in results.section("budget").items():
        if amount is not None:
            return f"{amount:,.10g} {name.removesuffix('s') if amount == 1 else name}"
    return "no budget"


def _equal_parameters(results: Results, trained: Sequence[ResultRow]) -> str:
    target = results.values.get("parameters")
    sizes = {row.layer: row.parameters for row in trained if row.parameters}
    if not sizes or any(row.width for row in trained):
        return ""
    low, high = min(sizes.values()), max(sizes.values())
    span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    if not target:
        return "" if high > (1 + TOLERANCE) * low else f"the number of parameters within 2 % ({span})"
    off = [layer for layer, size in sizes.items() if abs(size - target) > TOLERANCE * target]
    return f"{target:,} parameters within 2 %{f', except {listed(off)}' if off else ''} ({span})"


def _learning_rates(results: Results, trained: Sequence[ResultRow]) -> str:
    rates = {row.learning_rate for row in trained if row.learning_rate is not None}
    if results.values.get("tune") and any(row.tried for row in trained):
        return "Each layer uses the best of the learning rates that were tried for it."
    if len(rates) == 1:
        return f"All layers use the learning rate {rates.pop():g}."
    return "Each layer uses its own learning rate." if rates else ""


def keeping(row: ResultRow) -> str:
    """Return what a layer keeps of a text, in how many bytes, and whether they grow."""
    keeps = row.keeps or "not known"
    sizes = {int(count): size for count, size in row.state_bytes.items() if size is not None}
    if not any(sizes.values()):
        return keeps
    *earlier, last = sorted(sizes)
    size = in_bytes(sizes[last])
    if not earlier:
        return f"{keeps}: {size} after {last:,} token{'s' if last > 1 else ''}"
    if sizes[last] == sizes[earlier[0]]:
        return f"{keeps}: {size} for a text of any length"
    if sizes[last] > sizes[earlier[-1]]:
        growth = (sizes[last] - sizes[earlier[-1]]) / (last - earlier[-1])
        return f"{keeps}: {in_bytes(growth)} more for every token, {size} after {last:,} tokens"
    full = min(count for count in sizes if sizes[count] == sizes[last])
    return f"{keeps}: grows to {size}, which it reaches within {full:,} tokens"


def training(row: ResultRow, results: Results) -> str:
    """Return whether a layer trains in parallel over a text, and its speed beside the fastest trained layer."""
    speed = row.tokens_per_second
    how = "counted, not trained" if row.counted else "in parallel over a text" if row.parallel else "token by token"
    if not speed:
        return how
    if row.counted:
        return f"{how}: {rounded(speed)} tokens/s"
    fastest = max(each.tokens_per_second or 0 for each in results.ran if not each.counted)
    share = "the fastest here" if speed == fastest else f"{percent(speed / fastest)} of the fastest"
    return f"{how}: {rounded(speed)} tokens/s, {share}"


def generating(row: ResultRow, results: Results) -> str:
    """Return the time of a token, and how much longer a step takes late in a text."""
    clauses = []
    if time := row.milliseconds_per_token:
        fastest = min(each.milliseconds_per_token for each in results.ran if each.milliseconds_per_token)
        share = f"{times(time / fastest)} the fastest" if time > 1.05 * fastest else "the fastest here"
        clauses.append(f"{in_time(time)} per token, {share}")
    steps = sorted((int(count), step) for count, step in row.step_milliseconds.items() if step)
    if len(steps) > 1 and steps[-1][1] > NOTABLE * steps[0][1]:
        longer = times(steps[-1][1] / steps[0][1])
        clauses.append(f"after {steps[-1][0]:,} tokens a step takes {longer} as long as the first")
    return "; ".join(clauses) or "–"


def using_context(row: ResultRow) -> str:
    """Return how much context a layer uses, or its figure at the nearest and at the farthest distance."""
    distance = row.at_distance
    if reach := _reach(row):
        needed, longest, best = reach
        if row.is_stateless:
            return f"uses no context (accuracy {best:.3f})"
        if needed == longest:
            return f"improves up to the longest context tested, {longest:,} tokens (accuracy {best:.3f})"
        few = "the last token" if needed == 1 else f"the last {needed:,} tokens"
        return f"with {few} it comes within a standard error of its best accuracy, {best:.3f}"
    if distance.kind in ("distance", "length") and distance.points:
        (near, first), (far, last) = distance.points[0], distance.points[-1]
        return f"{distance.of} {first:.3f} at {near:,} and {last:.3f} at {far:,} {distance.unit}"
    return "–"


def _reach(row: ResultRow) -> tuple[int, int, float] | None:
    """Return the shortest context within a standard error of the best accuracy, the longest context, and the best."""
    accuracies = row.distances("context")
    if len(accuracies) < 2:
        return None
    best = max(value for _, value in accuracies)
    error = math.sqrt(best * (1 - best) / (row.at_distance.count or POSITIONS))
    return next(count for count, value in accuracies if value >= best - error), accuracies[-1][0], best


def standing(row: ResultRow, results: Results) -> str:
    """Return the metric of a layer, and its distance from the best."""
    if row not in results.measured:
        return "not measured"
    value, best = results.of(row), results.measured[0]
    tied = ", not significantly different from the best" if row.is_tied else _apart(value, results.of(best))
    return f"{results.metric.written(value)}{', the best here' if row is best else tied}"


def _apart(value: float, best: float) -> str:
    """Return the relative difference from the best: ``, 16 % more``, ``, 9 % less`` or ``, 11 times as much``."""
    if not best or not value or value == best:
        return ""
    share = (value - best) / abs(best)
    if share > 1:
        return f", {times(value / best)} as much"
    return f", {percent(abs(share))} {'more' if share > 0 else 'less'}"


def limits(row: ResultRow, results: Results) -> str:
    """Return what limits a layer: its use of context, beside that of the best layer, and its largest cost."""
    return "; ".join(filter(None, [_limited_context(row, results.ranked[0]), _largest_cost(row, results)])) or "–"


def _limited_context(row: ResultRow, best: ResultRow) -> str:
    """Return where a layer uses less than half the context of the best, or falls a tenth behind at a distance."""
    reach, of_best = _reach(row), _reach(best)
    if reach and of_best and row is not best:
        if row.is_stateless:
            return f"it uses no context; {best.layer} uses {of_best[0]:,} tokens"
        if 2 * reach[0] <= of_best[0] and reach[2] < of_best[2]:
            return f"context: it uses {reach[0]:,} tokens, {best.layer} uses {of_best[0]:,}"
    points, points_of_best = row.distances("distance"), dict(best.distances("distance"))
    if points and points[-1][1] < 0.9 * points_of_best.get(points[-1][0], 0.0):
        far, value = points[-1]
        return f"distance: {value:.3f} at {far:,} {row.at_distance.unit}; {best.layer} has {points_of_best[far]:.3f}"
    return ""


def _largest_cost(row: ResultRow, results: Results) -> str:
    """Return the cost that is largest beside the median of all layers, if it is notable."""
    way = "training" if row.parallel or row.counted else "training token by token"
    state = "growing state" if len(set(row.state_bytes.values())) > 1 else "state"
    costs: dict[str, Callable[[ResultRow], float | None]] = {
        f"{way}: {{}} the time of the median layer": lambda each: (
            1 / speed if (speed := each.tokens_per_second) else None
        ),
        "generating: {} the time of the median layer": lambda each: each.milliseconds_per_token,
        f"{state}: {{}} the median at 1,000 tokens": lambda each: each.state_bytes.get("1000"),
        "memory in training: {} the median": lambda each: each.memory_bytes,
    }
    ratios = {}
    for sentence, cost in costs.items():
        middle = median([value for each in results.ran if (value := cost(each)) is not None] or [0])
        ratios[sentence] = (cost(row) or 0.0) / middle if middle else 0.0
    largest = max(ratios, key=lambda sentence: ratios[sentence])
    return largest.format(times(ratios[largest])) if ratios[largest] >= NOTABLE else ""


def state_sizes(results: Results) -> list[str]:
    """Return which small states come near to the best metric, where layers were trained at several widths."""
    groups, metric = results.by_width(), results.metric
    best, *others = [row for row in results.measured if row.width and row.state]
    value = results.of(best)
    sentences = [
        f"The best {metric.name} is {metric.written(value)}: {best.architecture} at width {best.width}, with a state "
        f"of {in_bytes(best.state)}."
    ]
    if others and all(row.is_tied for row in others):
        return [*sentences, "No other row differs significantly from it, so no effect of the state size is shown."]
    bound = value + (-NEAR if metric.more_is_better else NEAR) * abs(value)
    near, far = [], []
    for layer, group in groups.items():
        reached = [row for row in group if metric.best([results.of(row), bound]) == results.of(row)]
        if reached:
            near.append(f"{layer} with {in_bytes(reached[0].state)} (width {reached[0].width})")
        else:
            far.append(layer)
    limit = f"{metric.written(bound)} or {'more' if metric.more_is_better else 'less'}"
    sentences.append(f"The smallest states that reach {limit}, within {percent(NEAR)} of the best: {listed(near)}.")
    return [*sentences, *([f"No width of {listed(far)} reaches it."] if far else [])]
