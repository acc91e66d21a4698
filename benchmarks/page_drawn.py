"""Recomputes the points of charts, the items and the samples on the page of a comparison."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from page_results import Comparison, figure, seconds
from page_text import Checked, Node

MAX_WORDS = 60  # of a tagged sentence that a page shows

# Charts


def lines_of(figure: Node) -> list[tuple[str, list[tuple[str, Mapping[str, Any]]]]]:
    """Return each drawing of a figure: its name, and its lines by the name of their series."""
    found = []
    options = figure.all(kind="option") or [figure]
    for each in options:
        name = each.all("b", "name") or each.all("b")
        title = name[0].text.rstrip(".")
        for data in each.data():
            lines = [(data["series"][line["series"]], line) for plot in data["plots"] for line in plot["lines"]]
            found += [(title, lines)]
    return found


def check_charts(page: Checked, of: Comparison) -> None:
    for figure_node in page.body.all("figure", "chart"):
        title = figure_node.all("figcaption")[0].all("b")[0].text
        for name, lines in lines_of(figure_node):
            for series, line in lines:
                check_drawn(page, f"{title}, {name}: {series}", line)
                expected = points(of, title, name, series, line)
                if expected is None:
                    page.unknown[f"chart {title!r}"] += len(line["y"])
                    continue
                shown = list(zip(line["x"], line["y"], line.get("y_intervals") or [None] * len(line["x"]), strict=True))
                page.same(f"{title}, {name}: points of {series}", len(shown), len(expected))
                for a, b in zip(shown, expected, strict=False):
                    for i, (left, right) in enumerate(zip(a[:2], b[:2], strict=True)):
                        if right is not ...:
                            page.close(f"{title}, {name}: {series}, {'xy'[i]}", left, right)
                    if len(b) > 2 and b[2] is not None and (a[2] or b[2][0] != b[2][1]):
                        for left, right in zip(a[2] or (None, None), b[2], strict=True):
                            page.close(f"{title}, {name}: {series}, interval", left, right)


def check_drawn(page: Checked, where: str, line: Mapping[str, Any]) -> None:
    """Compare where points are drawn with a linear or a logarithmic axis through the first and the last of them."""
    for axis in (0, 1):
        known = [
            (value, at[axis])
            for value, at in zip(line["xy"[axis]], line["at"], strict=True)
            if value is not None and at[axis] is not None
        ]
        if len({value for value, _ in known}) < 3:
            continue
        (a, at), (b, end) = min(known), max(known)
        scales = [lambda x: x, *([math.log] if a > 0 else [])]
        errors = [max(abs(at + (f(x) - f(a)) / (f(b) - f(a)) * (end - at) - y) for x, y in known) for f in scales]
        page.count += 1
        if min(errors) > 0.3:
            page.wrong.append((f"{where}: drawn at", min(errors), "at most 0.3 points from its value"))


def points(of: Comparison, title: str, name: str, series: str, line: Mapping[str, Any]) -> list[tuple[Any, ...]] | None:
    """Return what a series must show: x, y and the interval of each point; None if this is not known."""
    layer = series.removesuffix(" (baseline)")
    row = of.rows.get(layer)
    if row is None:
        return None
    if "while training" in title:
        against = {"Training time (s)": "seconds", "Tokens read": "tokens", "Steps": "step"}[
            name.removesuffix(", smoothed")
        ]
        key = "loss" if title.startswith("Loss") else of.values["metric"]["key"]
        held_out = [(point, point["value"] if point["key"] == key else point.get(key)) for point in row["held_out"]]
        held_out = [(point, value) for point, value in held_out if value is not None]
        values = [value for _, value in held_out]
        if row["counted"]:
            return [(..., values[-1])]
        if "smoothed" in name:
            values = [float(np.mean(values[max(0, i - 2) : i + 1])) for i in range(len(values))]
        return [(point[against], value) for (point, _), value in zip(held_out, values, strict=True)]
    if title == "Bits a token that more context saves":
        gains = row["distance"]["gains"]
        whole = row["distance"]["whole"]
        values = row["distance"]["values"]
        for gain in gains if whole is not None else ():  # a perplexity of a diverged row can be infinite
            value = values[str(gain["beyond"])]
            assert value is None or abs(math.log2(value / whole) - gain["bits"]) < 1e-3, (layer, value, gain)
        return [(gain["beyond"], gain["bits"], (gain["low"], gain["high"])) for gain in gains]
    if title.endswith("by distance"):
        distance = row["distance"]
        return [
            (int(far), value, distance["bounds"].get(far))
            for far, value in sorted(distance["values"].items(), key=lambda each: int(each[0]))
            if value is not None
        ]
    if title.endswith("against cost"):
        cost = {
            "training time (s)": seconds(row),
            "milliseconds per token": row["milliseconds_per_token"],
            "peak memory in training": row["memory_bytes"],
            "state": (row["state_by_source"] or row["state_bytes"] or {}).get("1000"),
            "parameters": row["parameters"],
            "size on disk": row["disk_bytes"],
        }[name]
        value, *ends = of.of(row)
        return [(cost, value, tuple(ends) or None)]
    if title == "Cost and length of the text":
        is_by_source = any(each["state_by_source"] for each in of.rows.values())
        field, spread = {
            "state": ("state_by_source" if is_by_source else "state_bytes", ""),
            "time of a step": ("step_milliseconds", "step_spread"),
            "time of a text": ("reading_milliseconds", "reading_spread"),
        }[name]
        return [
            (int(at), value, row[spread].get(at) if spread else None)
            for at, value in sorted(row[field].items(), key=lambda each: int(each[0]))
            if value
        ]
    if line.get("names") and "differ" in of.values:
        return bucket_points(of, name, layer)
    return None


def bucket_points(of: Comparison, name: str, layer: str) -> list[tuple[Any, ...]] | None:
    """Recompute a figure in buckets from the statistics of items, or from the losses of tokens."""
    found = of.values["differ"].get("buckets") or ()
    buckets = next((each for each in found if each["name"] == name or name.endswith(f"by {each['name']}")), None)
    if buckets is None:
        return None
    arrays, right = of.arrays[layer], []
    for i in buckets["shown"]:
        span = [int(end.replace(",", "")) for end in re.findall(r"[\d,]+", buckets["names"][i])]
        low, high = span[0] if span else 0, span[-1] if span else 0
        if buckets["names"][i].startswith("over"):
            low, high = low + 1, 1 << 40
        if buckets["by"] == "length":
            chosen = (arrays["items.lengths"] >= low) & (arrays["items.lengths"] <= high)
            statistics = arrays[of.key][arrays["items.rows"].astype(int)][chosen]
            value = float(figure(statistics.sum(0), of.key)) if statistics.shape[1] == 2 else ...
        else:
            kept = arrays["items.positions" if buckets["by"] == "position" else "items.frequencies"].astype(int)
            chosen = (kept >= low) & (kept <= high) if buckets["names"][i] != "unknown" else kept < 0
            value = float(arrays["items.nats"][chosen].astype(float).mean() / math.log(2))
        assert int(chosen.sum()) == buckets["counts"][i], (
            layer,
            buckets["names"][i],
            int(chosen.sum()),
            buckets["counts"][i],
        )
        known = buckets["values"][layer][i]
        right.append((..., value, tuple(known[1:]) if known[1] is not None else None))
    return right


# Items and samples


def check_items(page: Checked, of: Comparison) -> None:
    for node in page.body.all(kind="items"):
        data = node.data()[0]
        names = ("text", "truth", "answers", "figures", "right")
        data["items"] = [dict(zip(names, item, strict=False)) for item in data["items"]]
        page.done |= {id(each) for each in node.walk()}
        kept = of.values["differ"]["items"]
        shown_of = re.search(r"([\d,]+) of ([\d,]+), evenly", node.all("p", "over")[0].text)
        if shown_of:
            page.same(
                "items: kept",
                [int(each.replace(",", "")) for each in shown_of.groups()],
                [len(data["items"]), kept["total"]],
            )
        if data["kind"] == "tokens":
            check_tokens(page, of, data)
            continue
        texts = {layer: of.kept[layer]["answers"]["texts"] for layer in data["models"]}
        is_tags = data["kind"] == "tags"
        kept_texts = [shown_text(each["text"], is_tags=is_tags) for each in texts[data["models"][0]]]
        known = [i for i, each in enumerate(kept_texts) if each and texts[data["models"][0]][i]["truth"]]
        for i, item in enumerate(data["items"]):
            at = known[i * len(known) // len(data["items"])]
            page.same(f"item {i}: text", item["text"], kept_texts[at])
            text = " ".join(item["text"]) if is_tags else item["text"]
            for number, layer in enumerate(data["models"]):
                answer = texts[layer][at]
                page.same(f"item {text[:30]!r}: right, {layer}", item["right"][number], answer["right"])
                if is_tags:
                    wrong = sum(a != b for a, b in zip(answer["answer"].split(), answer["truth"].split(), strict=False))
                    if not answer["answer"].endswith("…") and len(item["text"]) < 60:
                        page.close(f"item {text[:30]!r}: wrong tags, {layer}", item["figures"][number], wrong)
                else:
                    page.same(f"item {text[:30]!r}: answer, {layer}", item["answers"][number], answer["answer"][:300])
                    if data["figure"] == "chrF":
                        sums = of.arrays[layer]["chrf"][answer["row"]]
                        page.close(f"item {text[:30]!r}: chrF, {layer}", item["figures"][number], chrf(sums), 1e-3)
                    if data["figure"] == "loss in nats":
                        loss = of.arrays[layer]["loss"][answer["row"], 0]
                        page.close(
                            f"item {text[:30]!r}: loss, {layer}", item["figures"][number], round(float(loss), 3), 1e-3
                        )
        figures = [value for item in data["items"] for value in item["figures"] if value is not None]
        if data["figure"] not in ("loss in nats", "wrong tags", "chrF") and figures:
            page.unknown[f"items: {data['figure']}"] += len(figures)


def shown_text(kept: str, *, is_tags: bool) -> str | list[str]:
    """Return what a page shows of a text that is kept: all of it, or its first words."""
    return kept.split()[:MAX_WORDS] if is_tags else kept


def chrf(sums: np.ndarray) -> float:
    """Return chrF of the counts of characters in an answer, in the right one and in both, n = 1 to 6."""
    counts = [(given, right, both) for given, right, both in sums.reshape(6, 3) if given and right]
    precision, recall = (sum(each[2] / each[side] for each in counts) / max(1, len(counts)) for side in (0, 1))
    return 500 * precision * recall / (4 * precision + recall) if precision + recall else 0.0


def check_tokens(page: Checked, of: Comparison, data: Mapping[str, Any]) -> None:
    """Compare the surprisals of the tokens of each piece with the losses that are kept."""
    for number, layer in enumerate(data["models"]):
        ends, nats = of.arrays[layer]["items.piece_ends"].tolist(), of.arrays[layer]["items.nats"].astype(float)
        pieces = list(zip([0, *ends[:-1]], ends, strict=True))
        count = len(data["items"])
        for i, item in enumerate(data["items"]):
            start, end = pieces[i * len(pieces) // count]
            right = nats[start:end] / math.log(2)
            page.close(f"item {i}: bits of {layer}", item["figures"][number], round(float(right.sum()), 2), 1e-3)
            for shown, one in zip(item["answers"][number], right, strict=True):
                page.close(f"item {i}: a token of {layer}", shown, one, 0.006 / max(one, 0.006))


def check_samples(page: Checked, of: Comparison) -> None:
    answers = {str(each["text"]) for row in of.rows.values() for each in row["samples"] or ()}
    answers |= {str(each.get("truth")) for row in of.rows.values() for each in row["samples"] or ()}
    squeezed = {re.sub(r"[\s⋮✗]+", "", each) for each in answers}
    for node in page.body.all("section"):
        if node.attributes.get("id") != "samples":
            continue
        for article in node.all("article"):
            text = article.all("p")[0].text.removeprefix("".join(each.text for each in article.all("span", "lead")))
            page.same("sample", re.sub(r"[\s⋮✗]+", "", text) in squeezed, True)
            wrong = re.search(r": (\d+) of (\d+) wrong", article.all("div", "name")[0].text)
            if wrong:
                page.same("sample: wrong tags", [int(wrong[1]), int(wrong[2])], [text.count("✗"), len(text.split())])
        page.done |= {id(each) for each in node.walk()}
