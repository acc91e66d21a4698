"""Recomputes the numbers on the page of a comparison from its results and from the statistics of its rows."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from page_drawn import check_charts, check_items, check_samples
from page_results import (
    SLACK,
    Comparison,
    differs,
    figure,
    gap,
    names_after,
    others,
    resampled,
    seconds,
    style,
)
from page_text import Checked, Node, numbers


def check_intervals(page: Checked, of: Comparison) -> None:
    """Compare each metric, its interval, and its difference from the best with resamples of this script."""
    best = of.measured[0]["layer"] if of.measured else ""
    drawn = {}
    for row in of.measured:
        layer, statistics = row["layer"], of.arrays[row["layer"]].get(of.key)
        if statistics is None or statistics.shape[1] != 2 or len(row["runs"]) > 1 or len(statistics) < 2:
            continue
        value, *ends = of.of(row)
        page.close(f"{layer}: {of.key} of its items", value, float(figure(statistics.sum(0), of.key)), 1e-5)
        drawn[layer] = resampled(statistics, of.key)
        near(page, f"{layer}: interval", ends, drawn[layer])
        test = row.get("difference")
        if test and test.get("low") is not None and best in drawn and test["key"] == of.key:
            page.close(f"{layer}: difference", test["difference"], value - of.of(of.measured[0])[0], 1e-5)
            near(page, f"{layer}: interval of the difference", (test["low"], test["high"]), drawn[layer] - drawn[best])

    # A rank begins with the first row that differs from the leader before it.
    leader, rank = None, 0
    for at, row in enumerate(of.measured, 1):
        layer = row["layer"]
        if layer not in drawn or row["rank"] is None:
            continue
        apart = drawn[layer] - drawn[leader] if leader in drawn else None
        if apart is None or np.quantile(apart, 0.025) > 0 or np.quantile(apart, 0.975) < 0:
            leader, rank = layer, at
        page.same(f"{layer}: rank", row["rank"], rank)


def near(page: Checked, where: str, ends: Sequence[float | None], drawn: np.ndarray) -> None:
    known = [end for end in ends if end is not None]
    if drawn.min() == drawn.max():  # of equal items, whose interval is Wilson's
        return
    for end, right in zip(known, np.quantile(drawn, (0.025, 0.975)), strict=False):
        page.count += 1
        if abs(end - right) > SLACK * (known[1] - known[0]):
            page.wrong.append((where, known, right))


# The first screen


def check_opening(page: Checked, of: Comparison) -> None:
    body, rows = page.body, of.rows
    lead = body.all("p", "finding")[0]
    best = of.measured[0] if of.measured else None
    expected: list[float | None] = []
    if best:
        cost = [1000 * seconds(best)] if seconds(best) else []
        cost += [best["milliseconds_per_token"], *(best["milliseconds_spread"] or ())]
        trained = of.trained[0] if of.trained else None
        ahead = best["counted"] and trained and differs(trained["difference"])
        expected = [*([of.values["simplest"][of.key]] * ("No layer clearly beats" in lead.text)), *of.of(best)]
        if ahead or of.is_equal:
            expected += cost
            after = trained if ahead else next((row for row in of.measured if differs(row["difference"])), None)
            tied = [row for row in of.measured[1:] if row["difference"] and not differs(row["difference"])]
            if after is not None and (ahead or not tied):
                expected += gap(of, after["difference"])
            if tied and not ahead:  # the fastest of the equals may follow
                fastest = [each for each in [best, *tied] if f"Fastest of these: {each['layer']}" in lead.text]
                expected += [
                    x
                    for row in fastest
                    if row is not best
                    for x in (row["milliseconds_per_token"], *row["milliseconds_spread"])
                ]
                slower = [each for each in [best, *tied] if each not in fastest]
                page.same(
                    "the fastest is told from the others",
                    all(
                        row["milliseconds_spread"][1] < each["milliseconds_spread"][0]
                        for row in fastest
                        for each in slower
                    ),
                    True,
                )
        described = (of.values["data"].get("described") or {}).get("measured") or ""
        expected = [*expected, len(of.values["seeds"]), *(value for value, *_ in numbers(described))]
    page.text("headline", lead, expected)

    for banner in body.all("div", "banner"):
        text, right = banner.text, []
        if not of.is_equal or "trainings took" in text:
            right += [min(of.spent()), max(of.spent())]
            scale = 1000 if of.values["equal"]["of"] == "seconds" else 1
            right = [scale * each for each in right]
            right += [6e4 * of.values["budget"]["minutes"]] * ("instead of" in text)
            right += [min(run["tokens"] for row in of.trained for run in row["runs"])] * ("--tokens" in text)
        right += [of.values["simplest"][of.key]] * text.count("simplest prediction")
        if "Trained layers have read" in text:
            right.insert(0, max(row["epochs"] for row in of.trained))
        if "Other programs" in text:
            right += [max(others(row) for row in of.trained), of.values["machine"]["processors"]]
        for sentence, worst in (("Not clearly better than", max), ("Worse than", min)):
            for layer in names_after(text, f"{sentence} the simplest prediction"):
                value, ends = of.values["simplest"][of.key], of.of(rows[layer])
                losses = [end if not of.up else -end for end in ends]
                right_side = worst(losses) >= (value if not of.up else -value)
                page.same(f"{layer}: {sentence} the simplest", right_side, True)
        for layer in names_after(text, "Worse than the baseline"):
            if layer in rows and not rows[layer]["baseline"]:
                page.same(f"{layer} is worse than the baseline", differs(rows[layer]["beside_baseline"]), True)
        page.text(
            "warning",
            re.sub(
                r"--tokens (\d+)",
                lambda found: f"{f'{int(found[1]):,}'} tokens",
                re.sub(r"\([^()]*\bp(?=\b)", "(", text),
            ),
            right,
        )
        page.done |= {id(each) for each in banner.walk()}
    check_ranking(page, of)
    check_facts(page, of)


def check_ranking(page: Checked, of: Comparison) -> None:
    costs = {
        "training (s)": lambda row: seconds(row) and 1000 * seconds(row),
        "ms per token": lambda row: row["milliseconds_per_token"],
        "memory": lambda row: row["memory_bytes"],
        "state": lambda row: (row["state_by_source"] or row["state_bytes"] or {}).get("1000"),
    }
    scale = {"training (s)": 1000.0}
    figure_node = page.body.all("figure", "ranking")[0]
    known = [value for row in of.measured for value in of.of(row) if value is not None and math.isfinite(value)]
    values = [of.of(row)[0] for row in of.measured]
    is_log = not of.up and bool(values) and 0 < 3 * min(values) < max(values)
    known = [math.log(value) if is_log else value for value in known]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    margin = 0.04 * (high - low) or 0.5 * max(1.0, abs(high))
    largest = {
        name: max(
            [cost(row) or 0 for row in of.rows.values() if not row["failed"]]
            + [end for row in of.rows.values() for end in (row["milliseconds_spread"] or ()) if name == "ms per token"]
            + [
                1000 * run["training_seconds"]
                for row in of.rows.values()
                if len(row["runs"]) > 1
                for run in row["runs"]
                if name == "training (s)"
            ]
        )
        for name, cost in costs.items()
    }

    def place(value: float) -> float:
        return 100 * ((math.log(value) if is_log else value) - low + margin) / (high - low + 2 * margin)

    for node in figure_node.all(kind="row"):
        layer = node.all("bdi")[0].text
        row = of.rows[layer]
        for track in node.all(kind="track"):
            page.text(f"ranking: {layer}", re.sub(r", rank.*", "", track.attributes["aria-label"]), of.of(row))
            rank = re.search(r"rank (\d+)", track.attributes["aria-label"])
            page.same(f"ranking: rank of {layer}", int(rank[1]) if rank else None, row["rank"])
            page.close(f"ranking: dot of {layer}", style(track.all(kind="dot")[0], "left"), place(of.of(row)[0]), 0.01)
            for line in track.all(kind="interval"):
                ends = [place(end) for end in of.of(row)[1:]]
                shown = [style(line, "left"), style(line, "left") + style(line, "width")]
                for a, b in zip(shown, ends, strict=True):
                    page.close(f"ranking: interval of {layer}", round(a, 1), round(b, 1), 0.06)
        for node_value in node.all(kind="value"):
            page.text(f"ranking: {layer}", node_value, of.of(row))
        for cell in node.all(kind="cost"):
            name = cell.attributes["data-cost"]
            value = costs[name](row)
            unit = scale.get(name, 1.0)
            page.text(f"ranking: {name} of {layer}", cell, [] if value is None else [value / unit])
            for bar in cell.all(kind="bar"):
                page.same(
                    f"ranking: bar of {name}, {layer}",
                    abs(style(bar, "width") - 100 * value / largest[name]) < 0.06,
                    True,
                )
    page.done |= {id(each) for each in figure_node.all("figcaption")}


def check_facts(page: Checked, of: Comparison) -> None:
    described = of.values["data"].get("described") or {}
    sizes = [
        row["parameters"] for row in of.rows.values() if row["parameters"] and not row["counted"] and not row["failed"]
    ]
    for pair in page.body.all("dl", "facts")[0].all("div"):
        name, node = pair.all("dt")[0].text, pair.all("dd")[0]
        if name == "Budget":
            unit = 1000 ** ((len(str(min(sizes))) - 1) // 3)  # a page rounds the number before its unit
            ends = sorted({f"{end / unit:.3g}": end for end in (min(sizes), max(sizes))}.values())
            epochs = [row["epochs"] for row in of.trained if row["epochs"] is not None]
            read = sorted({float(f"{end:.2g}") for end in (min(epochs), max(epochs))}) if epochs else []
            page.text("fact: budget", node, [*of.values["budget"].values(), *read, *ends])
        elif name in ("Trained on", "Measured on"):
            part = described.get("train" if name == "Trained on" else "measured") or ""
            page.same(f"fact: {name}", node.text.endswith(part), True)
            page.done |= {id(each) for each in node.walk()}
        elif name == "Baseline":
            page.text("fact: baseline", node, [next(row for row in of.measured if row["baseline"])["parameters"]])
        elif name == "Seeds":
            page.text("fact: seeds", node, [len(of.values["seeds"])])
        elif name == "Simplest":
            page.text("fact: simplest", node, [of.values["simplest"][of.key]])


# Tables


def check_tables(page: Checked, of: Comparison) -> None:
    for table in page.body.all("table"):
        heads = [each.text for each in table.all("thead")[0].all("th")]
        rows = [[each for each in row.children if isinstance(each, Node)] for row in table.all("tbody")[0].all("tr")]
        if "class" in heads[:1]:
            check_classes(page, of, heads, rows)
        elif heads[:1] == ["layer"]:
            for cells in rows:
                check_row(page, of, heads, cells)


def check_row(page: Checked, of: Comparison, heads: Sequence[str], cells: Sequence[Node]) -> None:
    """Compare the cells of one row of the tables of layers."""
    layer = next(each if isinstance(each, str) else each.text for each in cells[0].children).strip()
    row = of.rows[layer]
    figures = {each["name"]: each["key"] for each in (of.metric, *of.values["figures"])}
    run = next(iter(row["runs"]), {})
    test = row["difference"] or {}
    gains = {gain["beyond"]: gain for gain in (row["distance"] or {}).get("gains") or ()}
    page.done |= {id(each) for each in cells[0].walk()}
    for head, cell in zip(heads[1:], cells[1:], strict=False):
        where, right, raw = f"table: {head} of {layer}", list[float | None](), None
        if cell.text.strip() in ("", "–") or cell.text.startswith(("failed", "not ")):
            continue
        if head in figures:
            right = of.of(row, figures[head])
        elif head == "rank":
            right = [row["rank"]]
        elif head.startswith("difference"):
            scale = 100 if "(points)" in head else 1
            right = [scale * test[name] for name in ("difference", "low", "high") if test.get(name) is not None]
            raw = test["difference"]
        elif head == "training (s)":
            right = [seconds(row), *([] if row["epochs"] is None else [row["epochs"]])]
        elif head == "training tokens/s":
            right = [row["tokens_per_second"]]
        elif head == "ms per token":
            right = [row["milliseconds_per_token"], *(row["milliseconds_spread"] or ())]
        elif head == "memory":
            right = [row["memory_bytes"]]
        elif head == "state":
            right = [(row["state_by_source"] or row["state_bytes"])["1000"]]
        elif head == "on disk":
            right = [row["disk_bytes"]]
        elif head == "parameters":
            right = [row["parameters"]]
        elif head.startswith("bits a token from context beyond"):
            gain = gains[int(head.rsplit(" ", 1)[1])]
            right, raw = [gain["bits"], gain["low"], gain["high"]], gain["bits"]
        elif ", at " in head:
            far = head.split(", at ")[1].split()[0]
            right = [row["distance"]["values"][far], *(row["distance"]["bounds"].get(far) or ())]
            right = right[:1] if len(numbers(cell.text)) == 1 else right
        elif head in ("embedding", "hidden", "layers"):
            right = [row[{"embedding": "embedding_size", "hidden": "hidden_size", "layers": "num_layers"}[head]]]
        elif head in ("steps", "tokens"):
            right = [run[head]]
        elif head == "learning rate":
            right = [row["learning_rate"]]
        elif head == "options":
            options = ", ".join(f"{name} {option(value)}" for name, value in row["options"].items())
            page.same(where, cell.text, options)
        elif head.startswith("seed "):
            right = [each["metrics"][of.key] for each in row["runs"] if each["seed"] == int(head[5:])]
        elif head == "range":
            known = [each["metrics"][of.key] for each in row["runs"]]
            right = [max(known) - min(known)]
        elif re.fullmatch(r"[\d.e-]+", head):
            right = [trial["value"] for trial in row["tried"] if trial["learning_rate"] == float(head)]
        if right:
            page.text(where, cell, right)
        elif head in ("options", "keeps", "paper"):
            page.done |= {id(each) for each in cell.walk()}
        if "data-value" in cell.attributes:
            value = float(cell.attributes["data-value"])
            page.close(f"{where}, for sorting", value, raw if raw is not None else right[0])
        if "best" in cell.classes and right:
            column = [
                float(each.attributes["data-value"]) for each in column_of(cell) if "data-value" in each.attributes
            ]
            best = max(column) if head == "training tokens/s" or (head in figures and of.up) else min(column)
            page.same(f"{where} is the best", float(cell.attributes["data-value"]), best)


def column_of(cell: Node) -> list[Node]:
    body, row = cell.parent.parent, [each for each in cell.parent.children if isinstance(each, Node)]
    at = next(i for i, each in enumerate(row) if each is cell)
    rows = [[each for each in one.children if isinstance(each, Node)] for one in body.all("tr")]
    return [each[at] for each in rows if at < len(each)]


def option(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def labels_of(of: Comparison, layer: str) -> tuple[list[str], list[str]]:
    """Return the true labels and those of a layer, which the file of its row keeps."""
    names, arrays = of.kept[layer]["answers"]["names"], of.arrays[layer]
    return tuple([names[i] for i in arrays[f"items.{side}"].tolist()] for side in ("truth", "predicted"))


def check_classes(page: Checked, of: Comparison, heads: Sequence[str], rows: Sequence[Sequence[Node]]) -> None:
    """Compare F1 of each class with that of the labels that are kept."""
    known = {row["name"]: row for row in of.values["differ"]["classes"]["rows"]}
    labels = {layer: labels_of(of, layer) for layer in heads[2:]}
    unit = of.values["differ"]["classes"]["unit"]
    for cells in rows:
        name = cells[0].text
        page.done |= {id(each) for each in cells[0].walk()}
        if unit != "chunks":
            page.text(f"class {name}: support", cells[1], [labels[heads[2]][0].count(name)])
        for layer, cell in zip(heads[2:], cells[2:], strict=True):
            value, *ends = known[name]["f1"][layer]
            if unit != "chunks":
                pairs = list(zip(*labels[layer], strict=True))
                both, either = sum(a == b == name for a, b in pairs), sum((a == name) + (b == name) for a, b in pairs)
                page.close(f"class {name}: F1 of {layer}", value, 2 * both / either if either else 0.0)
            shown = [value, *([] if None in ends or ends[0] == ends[1] else ends)]
            page.text(f"class {name}: {layer}", cell, shown)
            page.close(f"class {name}: {layer}, for sorting", float(cell.attributes["data-value"]), value)
            marked = cell.text.count("▼") - cell.text.count("▲")
            p_value = known[name]["p_values"].get(layer, 1.0) if of.is_equal or known[name] is None else 1.0
            best = known[name]["f1"][of.values["differ"]["classes"]["best"]][0]
            if of.is_equal:
                page.same(f"class {name}: mark of {layer}", marked, 0 if p_value > 0.05 else 1 if value < best else -1)


def check_confusions(page: Checked, of: Comparison) -> None:
    for over, table in zip(page.body.all("p", "over"), [None] * 999, strict=False):
        title = re.match(r"Confusions of (\S+)\.", over.text)
        if not title:
            continue
        truth, given = labels_of(of, title[1])
        table = next(
            each
            for each in over.parent.all(kind="confusion")
            if each.attributes["aria-labelledby"] == over.attributes["id"]
        )
        names = [each.attributes["title"] for each in table.all("thead")[0].all("th") if "title" in each.attributes]
        pairs, wrong = list(zip(truth, given, strict=True)), sum(a != b for a, b in zip(truth, given, strict=True))
        extra = [len(names), len({*truth, *given})] if "with the most errors" in over.text else []
        page.text(f"confusions of {title[1]}", over.text.split(".", 1)[1], [wrong, len(truth), *extra])
        page.done |= {id(each) for each in (*over.walk(), *table.walk())}
        has_others = len(names) < len({*truth, *given})
        groups = [*names, *[None] * has_others]
        for row, name in zip(table.all("tbody")[0].all("tr"), [*groups, "all"], strict=True):
            cells = [each for each in row.children if isinstance(each, Node)][1:]
            for cell, other in zip(cells, [*groups, "all"], strict=True):
                count = sum(
                    (name == "all" or (a == name if name else a not in names))
                    and (other == "all" or (b == other if other else b not in names))
                    for a, b in pairs
                )
                if name is None and other is None:
                    continue
                page.same(f"confusions of {title[1]}: {name}, {other}", int((cell.text or "0").replace(",", "")), count)


def check_compared(page: Checked, of: Comparison) -> None:
    """Compare everything on the page of a comparison."""
    check_intervals(page, of)
    check_opening(page, of)
    check_tables(page, of)
    if "differ" in of.values:
        check_confusions(page, of)
    check_charts(page, of)
    if page.body.all(kind="items"):
        check_items(page, of)
    check_samples(page, of)
    page.rest(
        [
            *numbers_in(of.values),
            *of.spent(),
            *(1000 * each for each in of.spent()),
            1000 * of.values["seconds"],
            *CONSTANTS,
            *counts_of(of),
        ]
    )


CONSTANTS = [0.95, 0.05, 0, 1, 1000, 5, 10]
"""Constants of tests, and the lengths for which costs are stated: 95 % intervals, p of 0.05, 1,000 tokens."""


def counts_of(of: Comparison) -> list[float]:
    differ = of.values.get("differ") or {}
    shown = [len(each["shown"]) for each in differ.get("buckets") or ()]
    tested = [len((each["tests"] or {}).get("results") or ()) for each in differ.get("buckets") or ()]
    return [len(of.rows), len(of.values["rows"]), *shown, *tested]


def numbers_in(values: Any) -> list[float]:
    """Return every number of the results, and those within its texts."""
    if isinstance(values, Mapping):
        return [each for value in values.values() for each in numbers_in(value)]
    if isinstance(values, list):
        return [each for value in values for each in numbers_in(value)]
    if isinstance(values, str):
        return (
            [float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*(?:\.\d+)?", values)]
            if len(values) < 300
            else []
        )
    return [float(values)] if isinstance(values, int | float) else []
