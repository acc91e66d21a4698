"""Results in words, by rules: nothing is said of a layer that its own figures do not say."""

import math
from statistics import median

from ..evaluation.intervals import written
from ..report.number_formats import in_bytes, in_time, listed, percent, rounded, times
from .ranking import Row, Rows, distance_of, ranked, tested, told_apart, value_of

NOTABLE = 1.5
"""How many times the median a cost must be to be called a limit."""
PLACES = 200
"""Of a text, from which an accuracy is known, where results do not say from how many."""


def finding(results: Row) -> str:
    """What came out, in a sentence or two: the best layer, by how much, and which cannot be told from it."""
    metric, rows = results["metric"], ranked(results)
    measured = [row for row in rows if value_of(row, metric["key"]) is not None]
    failed = [row["layer"] for row in rows if row.get("failed")]
    if not measured:
        return f"No layer has a {metric['name']}{': all failed' if len(failed) == len(rows) else ''}."
    best, key, digits = measured[0], metric["key"], metric["digits"]
    low, high = (value_of(best, f"{key}_{end}") for end in ("low", "high"))
    interval = (
        "" if low is None or high is None else f" (95 % interval {written(low, digits)} to {written(high, digits)})"
    )
    way = "highest" if metric["more_is_better"] else "lowest"
    said = [
        f"The {way} {metric['name']} is that of {best['layer']}: {written(best['metrics'][key], digits)}{interval}."
    ]
    if len(measured) > 1:
        said.append(_lead(measured, metric))
    if failed:
        said.append(f"Failed: {listed(failed)}.")
    return " ".join(said)


def _lead(measured: Rows, metric: Row) -> str:
    """By how much the first is ahead of the second, and which others are as good for all that is known."""
    key, digits = metric["key"], metric["digits"]
    best, second = measured[0]["metrics"][key], measured[1]["metrics"][key]
    equal_to = "the same value, " if second == best else ""
    said = [f"Next is {measured[1]['layer']} with {equal_to}{written(second, digits)}{_apart(second, best)}."]
    others = [row for row in measured[1:] if tested(row)]
    alike = [row["layer"] for row in others if not told_apart(row)]
    if alike:
        said.append(f"Not significantly different from the best (paired bootstrap): {listed(alike)}.")
    elif len(others) == len(measured) - 1:
        rest = "all others are" if len(others) > 1 else "it is"
        said.append(f"By the paired bootstrap {rest} significantly worse.")
    return " ".join(said)


def equal(results: Row) -> str:
    """What was held equal, and who is an exception."""
    ran = [row for row in results["rows"] if not row.get("failed")]
    trained = [row for row in ran if not row.get("counted")]
    counted = [row["layer"] for row in ran if row.get("counted")]
    tokenizer, seeds, data = results.get("tokenizer") or {}, results.get("seeds") or [], results.get("data") or {}
    measured = ", ".join(filter(None, [data.get("measured_on"), (data.get("described") or {}).get("measured")]))
    said = [f"{budget(results)} of training each", _parameters(results, trained)]
    if tokenizer:
        size = tokenizer.get("vocabulary_size")
        said.append(f"the tokenizer ({tokenizer.get('kind')}{f', {size:,} entries' if size else ''})")
    said += ["the order of the data", f"the text it is measured on ({measured or 'held out'})"]
    text = f"Held equal: {'; '.join(filter(None, said))}. {_rates(results, trained)}"
    text += f" Figures are means over {len(seeds)} seeds." if len(seeds) > 1 else " One seed was run."
    if any(row.get("width") for row in trained):
        text += " The widths are given, so that the numbers of parameters differ."
    if counted:
        text += f" The budget and the number of parameters do not apply to what is counted: {listed(counted)}."
    return text


def budget(results: Row) -> str:
    """``2 minutes``, ``1,000,000 tokens`` or ``60 steps``."""
    for name, amount in (results.get("budget") or {}).items():
        if amount is not None:
            return f"{amount:,.10g} {name.removesuffix('s') if amount == 1 else name}"
    return "no budget"


def _parameters(results: Row, trained: Rows) -> str:
    target = results.get("parameters")
    sizes = {row["layer"]: row["parameters"] for row in trained if row.get("parameters")}
    if not sizes or any(row.get("width") for row in trained):
        return ""
    low, high = min(sizes.values()), max(sizes.values())
    span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    if not target:
        return "" if high > 1.02 * low else f"the number of parameters within 2 % ({span})"
    off = [layer for layer, size in sizes.items() if abs(size - target) > 0.02 * target]
    return f"{target:,} parameters within 2 %{f', but for {listed(off)}' if off else ''} ({span})"


def _rates(results: Row, trained: Rows) -> str:
    rates = {row["learning_rate"] for row in trained if row.get("learning_rate") is not None}
    if results.get("tune") and any(row.get("tried") for row in trained):
        return "Each layer has the best of the learning rates tried for it."
    if len(rates) == 1:
        return f"All have the learning rate {rates.pop():g}."
    return "Each layer has a learning rate of its own." if rates else ""


def keeping(row: Row) -> str:
    """What is kept, in how many bytes, and whether their number grows."""
    sizes = {int(count): size for count, size in (row.get("state_bytes") or {}).items() if size is not None}
    kept = str(row.get("keeps") or "not known")
    if not sizes or not max(sizes.values()):
        return kept
    counts = sorted(sizes)
    first, last = counts[0], counts[-1]
    if len(counts) == 1:
        return f"{kept}: {in_bytes(sizes[last])} after {last:,} token{'s' if last > 1 else ''}"
    if sizes[last] == sizes[first]:
        return f"{kept}: {in_bytes(sizes[last])} however long the text"
    before = counts[-2]
    if sizes[last] > sizes[before]:
        grown = (sizes[last] - sizes[before]) / (last - before)
        return f"{kept}: {in_bytes(grown)} more for every token, {in_bytes(sizes[last])} at {last:,}"
    full = min(count for count in counts if sizes[count] == sizes[last])
    return f"{kept}: grows to {in_bytes(sizes[last])}, reached within {full:,} tokens"


def training(row: Row, ran: Rows) -> str:
    """Whether it trains on a text at once, and how fast, as a share of the fastest that is trained."""
    way = "a text at once" if row.get("parallel") else "one token after another"
    way = "counted, not trained" if row.get("counted") else way
    speed = row.get("tokens_per_second")
    fastest = _best([each for each in ran if not each.get("counted")], "tokens_per_second", more=True)
    if not speed or not fastest or row.get("counted"):
        return f"{way}: {rounded(speed)} tokens/s" if speed else way
    share = "the fastest here" if speed == fastest else f"{rounded(speed / fastest, 2)} of the fastest"
    return f"{way}: {rounded(speed)} tokens/s, {share}"


def generating(row: Row, ran: Rows) -> str:
    """How long a token takes, and how much longer late in a text."""
    each, quickest = row.get("milliseconds_per_token"), _best(ran, "milliseconds_per_token")
    said = []
    if each and quickest:
        share = f"{times(each / quickest)} the quickest" if each > 1.05 * quickest else "the quickest here"
        said.append(f"{in_time(each)} a token, {share}")
    steps = sorted((int(count), time) for count, time in (row.get("step_milliseconds") or {}).items() if time)
    if len(steps) > 1 and steps[-1][1] > NOTABLE * steps[0][1]:
        grown = times(steps[-1][1] / steps[0][1])
        said.append(f"after {steps[-1][0]:,} tokens a step takes {grown} as long as the first")
    return "; ".join(said) or "–"


def seeing(row: Row) -> str:
    """How far back it makes use of what it saw, or how well it does at the nearest and the farthest."""
    reach = reach_of(row)
    if reach is not None:
        needed, longest, best = reach
        if _stateless(row):
            return f"uses no context (accuracy {best:.3f})"
        if needed == longest:
            return f"gains up to the {longest:,} tokens that were the most it was shown (accuracy {best:.3f})"
        few = "the last token brings" if needed == 1 else f"the last {needed:,} tokens bring"
        return f"{few} its accuracy, {best:.3f}, to within a standard error"
    for kind in ("distance", "length"):
        found = distance_of(row, kind)
        if found:
            (near, first), (far, last) = found[0], found[-1]
            distance = row["distance"]
            return f"{distance['of']} {first:.3f} at {near:,} and {last:.3f} at {far:,} {distance['unit']}"
    return "–"


def _stateless(row: Row) -> bool:
    """Whether a layer keeps nothing of a text."""
    sizes = row.get("state_bytes") or {}
    return bool(sizes) and not any(sizes.values())


def reach_of(row: Row) -> tuple[int, int, float] | None:
    """The fewest last tokens that bring its best accuracy, less a standard error; the most it was shown; that best."""
    seen = distance_of(row, "context")
    if len(seen) < 2:
        return None
    best = max(value for _, value in seen)
    error = math.sqrt(best * (1 - best) / (row["distance"].get("count") or PLACES))
    return next(count for count, value in seen if value >= best - error), seen[-1][0], best


def standing(row: Row, results: Row) -> str:
    """Where its metric stands, as a distance from the best."""
    metric, best = results["metric"], ranked(results)[0]
    value, first = value_of(row, metric["key"]), value_of(best, metric["key"])
    if value is None or first is None:
        return "not measured"
    written = f"{value:,.{metric['digits']}f}"
    if row is best:
        return f"{written}, the best here"
    if tested(row) and not told_apart(row):
        return f"{written}, not significantly different from the best"
    return f"{written}{_apart(value, first)}"


def _apart(value: float, best: float) -> str:
    """``, 16 % more``, ``, 9 % less`` or ``, 11 times as much``: than the best."""
    if not best or not value or value == best:
        return ""
    share = (value - best) / abs(best)
    return (
        f", {times(value / best)} as much"
        if share > 1
        else f", {percent(abs(share))} {'more' if share > 0 else 'less'}"
    )


def limits(row: Row, results: Row) -> str:
    """What holds it back: how far it sees, where the best sees further, and its largest cost against the median."""
    ran = [each for each in results["rows"] if not each.get("failed")]
    return "; ".join(filter(None, [_short_sight(row, ranked(results)[0]), _dearest(row, ran)])) or "–"


def _short_sight(row: Row, best: Row) -> str:
    """Where it sees less than half as far as the best, or falls a tenth behind it at the greatest distance."""
    mine, other = reach_of(row), reach_of(best)
    if mine and other and row is not best and _stateless(row):
        return f"it uses no context; {best['layer']} makes use of {other[0]:,} tokens"
    if mine and other and row is not best and 2 * mine[0] <= other[0] and mine[2] < other[2]:
        return f"how far it sees: {mine[0]:,} of the {other[0]:,} tokens of which {best['layer']} makes use"
    at, theirs = distance_of(row, "distance"), dict(distance_of(best, "distance"))
    if at and at[-1][1] < 0.9 * theirs.get(at[-1][0], 0.0):
        far, value = at[-1]
        return (
            f"distance: {value:.3f} at {far:,} {row['distance']['unit']}, where {best['layer']} has {theirs[far]:.3f}"
        )
    return ""


def _dearest(row: Row, ran: Rows) -> str:
    way = "training" if row.get("parallel") or row.get("counted") else "training one token after another"
    state = "a state that grows" if len(set((row.get("state_bytes") or {}).values())) > 1 else "its state"
    said = {
        "training": f"{way}: {{}} the time of the median layer",
        "generating": "generating: {} the time of the median layer",
        "state": f"{state}: {{}} the median at 1,000 tokens",
        "memory": "memory in training: {} the median",
    }
    ratio, cost = max((_over_median(row, ran, cost), cost) for cost in said)
    return said[cost].format(times(ratio)) if ratio >= NOTABLE else ""


def _over_median(row: Row, ran: Rows, cost: str) -> float:
    """A cost as a multiple of the median of all layers; 0 where it is not known."""
    known = [value for each in ran if (value := _cost(each, cost)) is not None]
    mine, middle = _cost(row, cost), median(known) if known else 0
    return mine / middle if mine and middle else 0.0


def _cost(row: Row, cost: str) -> float | None:
    speed = row.get("tokens_per_second")
    found: float | None = {
        "training": 1 / speed if speed else None,
        "generating": row.get("milliseconds_per_token"),
        "state": (row.get("state_bytes") or {}).get("1000"),
        "memory": row.get("memory_bytes"),
    }[cost]
    return found


def _best(rows: Rows, key: str, *, more: bool = False) -> float | None:
    return (max if more else min)((row[key] for row in rows if row.get(key)), default=None)
