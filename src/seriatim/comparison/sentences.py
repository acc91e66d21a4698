"""Sentences about single rows of a comparison, and about what was equal for all; each follows from the figures."""

from collections.abc import Sequence

from ..core.json_object import JsonMapping
from ..evaluation.intervals import interval_digits, written
from ..pages.wording import in_bytes, in_time, listed, percent, rounded, short_name, times
from .results import SMALLEST_GAIN, ResultRow, Results, excludes_zero
from .verdict import MIN_VALIDATIONS, TOO_RARELY, conditions, held_out, last_gain, missed_budgets, same_conditions

NOTABLE = 1.5  # the ratio from which a step late in a text counts as slower than the first
TOLERANCE = 0.02  # relative difference up to which numbers of parameters are called equal
NEAR = 0.1  # relative difference from the best value up to which another value is near to it


def controlled_variables(results: Results) -> str:
    """Return what was equal for all layers, and the exceptions."""
    trained = [row for row in results.ran if not row.counted]
    counted = [row.layer for row in results.ran if row.counted]
    tokenizer, data = results.section("tokenizer"), results.section("data")
    size = tokenizer.get("vocabulary_size")
    measured_on = short_name(data["measured_on"]) if data.get("measured_on") else ""
    measured = ", ".join(filter(None, [measured_on, (data.get("described") or {}).get("measured")]))
    equal = [
        f"a budget of {_budget(results)} of training",
        _equal_parameters(results, trained),
        f"the tokenizer ({', '.join(filter(None, [tokenizer.get('kind'), f'{size:,} entries' if size else '']))})"
        if tokenizer
        else "",
        "the order of the data",
        f"the data that they are measured on ({measured or 'held out'})",
    ]

    # The exceptions follow at once, so that no reader takes unequal conditions for equal ones.
    sentences = [
        f"Equal for all layers: {'; '.join(filter(None, equal))}.",
        missed_budgets(results),
        conditions(results),
        _learning_rates(results, trained),
        _means(results),
        "The widths are set, so the numbers of parameters differ." if any(row.width for row in trained) else "",
    ]

    # Counted models have no budget and no size to be made equal.
    if counted:
        are = "is" if len(counted) == 1 else "are"
        sentences.append(f"{listed(counted)} {are} not trained by steps, so budget and size do not apply.")
    return " ".join(filter(None, sentences))


def _means(results: Results) -> str:
    """Return which figures are means over seeds, and the layers of which fewer seeds were trained."""
    if len(results.seeds) < 2:
        return ""
    fewer = [f"{row.layer} ({row.lacking})" for row in results.ran if row.lacking]
    return (
        f"Metrics, training times and speeds are means over {len(results.seeds)} seeds"
        f"{f', except those of {listed(fewer)}' if fewer else ''}; memory is the largest, and other costs are those of "
        "the first seed."
    )


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


def kept_state(row: ResultRow) -> str:
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
    how = "in parallel over a text" if row.parallel else "token by token"
    how = ", ".join(filter(None, [row.learned, "not trained by steps"])) if row.counted else how
    if not speed:
        return how
    others = [each for each in results.ran if not each.counted and not each.lacking]
    if row.counted or row.lacking or not same_conditions(others):
        return f"{how}: {rounded(speed)} tokens/s"
    fastest = max(each.tokens_per_second or 0 for each in others)
    compared = "the fastest here" if speed == fastest else f"{percent(speed / fastest)} of the fastest"
    return f"{how}: {rounded(speed)} tokens/s, {compared}"


def generating(row: ResultRow, results: Results) -> str:
    """Return the time of a token, and how much longer a step takes late in a text."""
    clauses = []
    if time := row.milliseconds_per_token:
        others = [each for each in results.ran if not each.lacking]
        fastest = min(filter(None, (each.milliseconds_per_token for each in others)), default=time)
        compared = f"{times(time / fastest)} the fastest" if time > 1.05 * fastest else "about as fast as the fastest"
        compared = "the fastest here" if time == fastest else compared
        is_compared = not row.lacking and same_conditions(others)
        clauses.append(f"{in_time(time)} per token" + (f", {compared}" if is_compared else ""))
    steps = sorted((int(count), step) for count, step in row.step_milliseconds.items() if step)
    if len(steps) > 1 and steps[-1][1] > NOTABLE * steps[0][1]:
        longer = times(steps[-1][1] / steps[0][1])
        clauses.append(f"after {steps[-1][0]:,} tokens a step takes {longer} as long as the first")
    return "; ".join(clauses) or "–"


def using_context(row: ResultRow) -> str:
    """Return what the context gains a layer, or its figure at the nearest and at the farthest distance."""
    distance = row.distance
    if distance.kind == "context" and distance.gains:
        return _context_gains(row)
    if distance.kind in ("distance", "length") and distance.points:
        near, far = distance.points[0][0], distance.points[-1][0]
        first, last = (f"{text} ({ends})" if ends else text for text, ends in map(distance.written, (near, far)))
        if distance.kind == "distance":
            return f"{distance.of} {first} at {near:,} and {last} at {far:,} {distance.unit}"
        shortest, longest = (f"up to {tokens:,} tokens" for tokens in (near, far))
        return f"{distance.of} {first} on the shortest inputs ({shortest}), {last} on the longest ({longest})"
    return "–"


def _context_gains(row: ResultRow) -> str:
    """Return the gains from context that differ clearly from 0: beyond 4 tokens, and the farthest."""
    if row.is_stateless:
        return "uses no context"
    significant = row.distance.clear_gains
    if not significant:
        return _no_gain(row.distance.gains[0])
    shown = {gain["beyond"]: gain for gain in (row.distance.gain_beyond(4), significant[-1]) if gain in significant}
    clauses = [
        f"context beyond {_tokens(size)} {'saves' if gain['bits'] > 0 else 'costs'} {in_bits(gain)} a token"
        for size, gain in shown.items()
        if gain
    ]
    rest = [gain for gain in row.distance.gains if gain["beyond"] > significant[-1]["beyond"]]
    return "; ".join([*clauses, *([_no_gain(rest[0])] if rest else [])])


def _no_gain(gain: JsonMapping) -> str:
    beyond = f"of context beyond {_tokens(gain['beyond'])}"
    if excludes_zero(gain) or gain["low"] == gain["high"]:
        return f"the effect {beyond} is under {SMALLEST_GAIN:g} bits a token"
    return f"no significant effect {beyond}"


def in_bits(gain: JsonMapping) -> str:
    """Write a gain with its interval: ``0.18 bits (0.14 to 0.22)``; a negative one without its sign."""
    low, high = gain["low"], gain["high"]
    low, high = sorted((abs(low), abs(high))) if low * high > 0 else (low, high)
    digits = interval_digits(low, high, 3)
    size, *ends = (written(value, digits).replace("-", "−") for value in (abs(gain["bits"]), low, high))
    return f"{size} bits ({ends[0]} to {ends[1]})"


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count:,} tokens"


def metric_in_words(row: ResultRow, results: Results) -> str:
    """Return the metric of a layer, and its distance from the best."""
    if row not in results.measured:
        known = row.value(results.metric.key) is not None
        return f"{results.text(row)}, not ranked: {row.lacking}" if known else "not measured"
    best = results.measured[0]
    tied = ", not significantly different from the best" if row.is_tied else _apart(results.of(row), results.of(best))
    return f"{results.text(row)}{', the best here' if row is best else tied}"


def _apart(value: float, best: float) -> str:
    """Return the relative difference from the best: ``, 16 % more``, ``, 9 % less`` or ``, 11 times as much``."""
    if not best or not value or value == best:
        return ""
    relative = (value - best) / abs(best)
    if relative > 1:
        return f", {times(value / best)} as much"
    return f", {percent(abs(relative))} {'more' if relative > 0 else 'less'}"


def training_remarks(row: ResultRow, results: Results) -> str:
    """Return what is known about the training of a layer: how often it read the data, and whether it had ended."""
    clauses = []
    if row.epochs is not None:
        clauses.append(f"read the training data {rounded(row.epochs, 2)} times")
    gain = last_gain(row, results)
    if gain is not None:
        change = f"still improving: {percent(gain)} better" if gain > 0 else f"got worse: {percent(-gain)} worse"
        clauses.append(f"{change} at the last validation than on average at the others in the last third of all")
    elif not row.counted and len(held_out(row)) < MIN_VALIDATIONS:
        clauses.append(f"{TOO_RARELY} it was still improving")
    if row.missed_budget:
        run = row.trainings[0]
        spent, planned = (in_time(1000 * run[key]) for key in ("training_seconds", "planned_seconds"))
        clauses.append(f"trained for {spent} instead of {planned}")
    return "; ".join(clauses) or "–"


def state_sizes(results: Results) -> list[str]:
    """Return which small states come near to the best metric, where layers were trained at several widths."""
    groups, metric = results.by_width(), results.metric
    best, *others = [row for row in results.measured if row.width and row.state]
    value = results.of(best)
    sentences = [
        f"The best {metric.name} is {metric.written(value)}: {best.architecture} at width {best.width}, with a state "
        f"of {in_bytes(best.state)}."
    ]

    # Where nothing differs significantly, a list of small states would suggest an effect.
    if others and all(row.is_tied for row in others):
        return [*sentences, "No other row differs significantly from it, so no effect of the state size is shown."]

    # The best may be the best by chance, so that a state whose metric comes near it counts as well.
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
