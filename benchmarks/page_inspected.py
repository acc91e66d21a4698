"""Recomputes the numbers on the page of a run from the run, its summary, and the results of its comparison."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page_compared import numbers_in
from page_drawn import lines_of
from page_text import Checked, Node, numbers

import seriatim
from seriatim.data.sources import builtin_text

BASE = "0123456789abcdefghijklmnopqrstuvwxyz"
ANSWERED = 40
"""Items of labelled data that the run answers again."""
ISOLATES = str.maketrans("", "", "\u2066\u2067\u2068\u2069\u200e\u200f")


class Inspected:
    """A run, the text that was read, and what its page has shown of them."""

    def __init__(self, folder: Path, body: Node) -> None:
        self.run = seriatim.load(folder)
        self.task = self.run.config.task
        self.text = read_text(body)
        self.lenses = [each for found in body.data("lenses") for each in found]
        file = folder.absolute().parent.parent / "results.json"
        self.row = self.data = self.values = None
        if file.is_file() and folder.absolute().parent.name == "runs":
            values = json.loads(file.read_text(encoding="utf-8"))
            self.values = values
            names = {Path(run["path"]).name: row for row in values["rows"] for run in row["runs"]}
            self.row, self.data = names.get(folder.name), Path(values["data"]["measured_on"]).name

    @property
    def surprisals(self) -> list[float]:
        """The surprisals of the tokens of the text under the run; of a masked model, each token is masked alone."""
        if self.task == "mlm":
            model, ids = self.run.model, torch.from_numpy(self.run.tokenizer.encode(self.text)).long()
            masked = ids.repeat(len(ids), 1)
            masked.fill_diagonal_(model.mask)
            with torch.inference_mode():
                nats = model(masked, torch.arange(len(ids)) * (len(ids) + 1)).log_softmax(1)
            return (-nats[torch.arange(len(ids)), ids] / math.log(2)).tolist()
        return [each.bits for each in next(iter(self.run.surprisal([self.text], by="token")))]

    def parameter_count(self) -> int:
        return sum(each.numel() for each in self.run.model.parameters())


def read_text(body: Node) -> str:
    """Return the text that was read, from the tokens of the strip, without symbols and tags."""
    found = ""
    for row in (row for strip in body.all("figure", "strip")[:1] for row in strip.all("div", "tokens")[:1]):
        for each in row.children:
            if isinstance(each, str):
                found += each
            elif each.attributes.get("dir") != "ltr":
                found += each.attributes.get("data-text", each.text)
    if "Outside the vocabulary" in body.text:  # such words stand in brackets
        found = re.sub(r"\[(\S+)\]", r"\1", found)
    for article in articles(body, "Text"):  # under no lens
        found = article.all("p")[0].text.translate(ISOLATES)
    return found.replace("␣", " ").replace("↵", "\n").replace("\N{NO-BREAK SPACE}", " ").strip()


def articles(body: Node, heading: str) -> list[Node]:
    """Return the texts of a page with a heading."""
    return [each for each in body.all("article") if each.all("div", "name")[0].text.startswith(heading)]


def check_inspected(page: Checked, of: Inspected) -> None:
    """Compare everything on the page of a run."""
    summary = of.run.summary
    check_strip(page, of)
    check_tiles(page, of)
    check_answers(page, of)
    check_steppers(page, of)
    check_orders(page, of)
    check_embeddings(page, of)
    check_charts(page, of)
    check_errors(page, of)
    if of.row and not of.row["counted"]:
        page.close("parameters", summary["parameters"], of.parameter_count())
    for name in (each for option in page.body.all(kind="option") for each in option.all("b", "name")):
        page.done |= {id(each) for each in name.walk()}  # a unit, which its stepper names
    page.rest(
        [
            *numbers_in(summary),
            *numbers_in(json.loads(of.run.config.model_dump_json())),
            *numbers_in(of.values or {}),
            *CONSTANTS,
            *inner(page),
        ]
    )


CONSTANTS = [0.95, 0.9, 0.1, 0.01, 0, 1, 2, 4, 10, 16]
"""Constants that the page names: 95 % intervals, open and closed gates, 1 % of a gradient, 16 tokens of a table."""


def inner(page: Checked) -> Iterator[float]:
    """Return sizes of what the page itself holds: tokens of the text, units, names in tables."""
    for found in page.body.data("lenses"):
        yield len(found[0].get("values") or ())
    for node in page.body.all("figure", "stepper"):
        yield len(node.all("span", "step"))
        yield len(node.all("option"))


# The strip


def check_strip(page: Checked, of: Inspected) -> None:
    tokens = [
        each
        for strip in page.body.all("figure", "strip")
        for row in strip.all("div", "tokens")
        for each in row.all("span", "token")
    ]
    for number, lens in enumerate(of.lenses):
        name = lens["sentence"][:40]
        for ends in lens["scale"]:
            page.count += len(numbers(ends))
        if "values" in lens:
            for i, value in enumerate(lens["values"]):
                known = math.inf if value == "Infinity" else value
                if number == 0:
                    shade = 0.0 if known is None else min(1.0, max(0.0, known / lens["full"]))
                    page.same(
                        f"strip: shade of token {i}",
                        round(float(re.findall(r"--shade: ([\d.]+)", tokens[i].attributes["style"])[0]), 2),
                        round(shade + 1e-9, 2)
                        if abs(100 * shade % 1 - 0.5) > 0.01
                        else round(float(re.findall(r"--shade: ([\d.]+)", tokens[i].attributes["style"])[0]), 2),
                    )
            for i, level in enumerate(numbers(" ".join(lens["scale"]))[: len(lens["scale"])]):
                page.same(
                    f"strip: scale of {name!r}",
                    abs(level[0] - lens["full"] * i / 4) < 0.006 * lens["full"] * max(1, i / 4) + 1e-9,
                    True,
                )
            if lens["sentence"].startswith("Each token is shaded by −log₂") and of.task in ("lm", "mlm"):
                shown = [value for value in lens["values"] if value is not None]
                right = of.surprisals
                page.same("strip: tokens", len(shown), len(right[: len(shown)]))
                for i, (a, b) in enumerate(zip(shown, right, strict=False)):
                    page.close(f"strip: surprisal of token {i}", math.inf if a == "Infinity" else a, b, 2e-3)
                for i, (details, _bits) in enumerate(
                    zip([each for each in lens["details"] if each], right, strict=False)
                ):
                    names = {each[0]: each[1] for each in details}
                    page.same(f"strip: expected at {i}", sum(names.values()) <= 1.001, True)
            elif lens["unit"] == "%":
                page.close(
                    f"strip: {name!r} sums to 100 %",
                    sum(value for value in lens["values"] if value is not None),
                    100.0,
                    1e-2,
                )
        if "weights" in lens:
            sums: dict[int, float] = {}
            for block in lens["weights"]:
                for i, row in enumerate(block["rows"]):
                    cells = [row[at : at + 3] for at in range(0, len(row), 3)]
                    weights = [(int(cell, 36) / (36**3 - 1)) ** 2 for cell in cells if cell.strip()]
                    if weights:
                        sums[block["row"] + i] = sums.get(block["row"] + i, 0.0) + sum(weights)
                        page.count += len(weights)
            for row, total in sums.items():
                page.close(f"strip: weights of token {row} in {name!r}", total, 1.0, 5e-3)
    for strip in page.body.all("figure", "strip"):
        page.done |= {id(each) for kind in ("legend", "rows") for node in strip.all(kind=kind) for each in node.walk()}


def check_tiles(page: Checked, of: Inspected) -> None:
    valid, base = of.run.summary.get("valid") or {}, of.run.summary.get("baseline") or {}
    metrics = {figure.name.lower(): figure.key for figure in of.run.task.evaluator.metrics_for(of.run.vocabulary)}
    charts = {title: lines for figure in page.body.all("figure", "chart") for title, lines in lines_of(figure)}
    tiles = {
        each.all("dt")[0].text: each.all("dd")[0] for tile in page.body.all("dl", "tiles") for each in tile.all("div")
    }
    for name, node in tiles.items():
        where = f"tile: {name}"
        if name in ("Bits of this text", "Bits of the answer"):
            bits = np.array([value for value in of.lenses[0]["values"] if value is not None], float)
            if of.task in ("lm", "mlm"):
                bits = np.array(of.surprisals[: len(bits)])
            right = [float(bits.mean())]
            interval = re.search(r"95 % interval ([\d.]+) to ([\d.]+)", node.text)
            if interval:
                drawn = np.random.default_rng(3).choice(bits, (4000, len(bits))).mean(1)
                low, high = np.quantile(drawn, (0.025, 0.975))
                for end, other in zip(map(float, interval.groups()), (low, high), strict=True):
                    page.same(f"{where}: end of the interval", abs(end - other) < 0.15 * (high - low) + 0.05, True)
            text = re.sub(r"95 % interval [\d.]+ to [\d.]+;", "", node.text)
            if "bits a byte" in text:
                right.append(float(bits.sum()) / len(of.text.encode()))
            page.text(where, text, [*right, float(bits.sum()), len(bits)])
            page.done |= {id(each) for each in node.walk()}
        elif name == "Context used" and "not known" not in node.text:
            line = charts["What a shorter context costs"][0][1]
            at = line["x"].index(4)
            ends = line["y_intervals"][at] if "95 % interval" in node.text else []
            page.text(where, re.sub("95 % interval|than 4 tokens.*", "", node.text), [line["y"][at], *(ends or [])])
            page.done |= {id(each) for each in node.walk()}
        elif name == "Reach" and "not known" not in node.text:
            check_reach(page, where, node, charts["What a shorter context costs"][0][1])
        elif name == "Gradient reach, steps back":
            found = {"after training": 0, "before training": 0}
            most = 0
            for title, lines in charts.items():
                for series, line in lines if title.startswith(("layer", "encoder", "decoder")) or True else []:
                    if series in found and line.get("y_intervals"):
                        most = max(most, len(line["x"]))
                        known = [
                            int(x)
                            for x, ends in zip(line["x"], line["y_intervals"], strict=True)
                            if ends and ends[0] > 0.01
                        ]
                        found[series] = max([found[series], *known])
            page.text(
                where, re.sub(r"the largest.*;", "", node.text), [found["after training"], found["before training"]]
            )
            page.done |= {id(each) for each in node.walk()}
        elif name.lower().removesuffix(", validation data") in metrics:
            key = metrics[name.lower().removesuffix(", validation data")]
            known = [valid[key], *(valid[f"{key}_{end}"] for end in ("low", "high") if "95 % interval" in node.text)]
            others = [base, *(each for each in base.values() if isinstance(each, Mapping))]
            known += [other[key] for other in others if key in other and f"{other.get('name')}: " in node.text]
            page.text(where, node.text.replace("95 % interval", ""), known)
            page.done |= {id(each) for each in node.walk()}
        elif name == "Tags right in this text":
            wrong = len(page.body.all("figure", "strip")[0].all("rt", "wrong"))
            count = len(page.body.all("figure", "strip")[0].all("rt"))
            page.text(where, node.all("strong")[0], [count - wrong, count])


def check_reach(page: Checked, where: str, node: Node, line: Mapping[str, Any]) -> None:
    """Compare the reach with the chart of what shorter contexts cost."""
    points = list(zip(line["x"], line["y"], line.get("y_intervals") or [None] * len(line["x"]), strict=True))
    helped = enough = None
    for x, _, ends in points:
        if ends is None or ends[0] <= 0.005:
            break
        helped = x
    for x, y, ends in reversed(points):
        low, high = ends or (y, y)
        if max(-low, high) > 0.02:
            break
        enough = x
    right: list[float] = [enough] if enough is not None else [helped] if helped is not None else []
    right += [0.02] if enough is not None else []
    right += [helped, next(y for x, y, _ in points if x == helped)] if helped is not None else []
    page.text(where, node, right)


# Answers, units, n-grams and embeddings


def check_answers(page: Checked, of: Inspected) -> None:
    """Compare the answer, and what the removal of single tokens does to it, with what the run answers."""
    if of.task in ("lm", "mlm"):
        return
    answer = next(iter(of.run.predict([of.text])))
    if of.task == "tag":
        strip = page.body.all("figure", "strip")[0]
        page.same(
            "answer: tags",
            [re.sub(r"[✗ ]|wrong:|→.*", "", each.text).strip() for each in strip.all("rt")],
            answer.split(),
        )
        page.done |= {id(each) for each in strip.walk()}
        return
    heading = "Label" if of.task == "classify" else "Answer"
    shown = articles(page.body, heading)[0].all("p")[0].text.translate(ISOLATES)
    page.same("answer", shown.startswith(answer), True)
    if of.task == "classify" and of.lenses:
        lens = of.lenses[0]
        details = [dict(each) for each in lens["details"]]
        full = next(value for value, _, _ in numbers(shown))
        for i, (value, without) in enumerate(zip(lens["values"], details, strict=True)):
            if answer in without:
                page.same(
                    f"answer: effect of token {i}",
                    abs(value - (math.log2(full) - math.log2(without[answer]))) < 0.12,
                    True,
                )
        words = of.text.split()
        if len(words) == len(details):  # the label without a word is what the run answers without it
            again = list(of.run.predict([" ".join([*words[:i], *words[i + 1 :]]) for i in range(len(words))]))
            for i, (label, without) in enumerate(zip(again, details, strict=True)):
                page.same(f"answer: label without token {i}", max(without, key=without.get), label)
        strongest = min(range(len(details)), key=lambda i: details[i].get(answer, 0.0))
        for tile in page.body.all("dl", "tiles")[0].all("div"):
            if tile.all("dt")[0].text == "Strongest token":
                page.text("tile: strongest token", tile.all("small")[0], [details[strongest].get(answer), full])
    page.done |= {id(each) for article in page.body.all("article") for each in article.walk()}


def check_steppers(page: Checked, of: Inspected) -> None:
    """Compare equations with the products of their factors, and the numbers of units with their charts."""
    for node in page.body.all("figure", "stepper"):
        data, columns = node.data()[0], {}
        layer = node.all("b")[0].text.removeprefix("One unit of ").removesuffix(", token by token")
        for name in data["names"]:
            columns[name] = np.array([[row[data["names"].index(name)] for row in unit] for unit in data["units"]])
        for equation in node.all("div", "equation"):
            left = equation.all("b")[0].attributes["data-name"]
            terms = [each.attributes["data-product"].split("|") for each in equation.all("b", "result")]
            total = sum(np.prod([columns[factor] for factor in term], axis=0) for term in terms)
            page.count += total.size
            if np.abs(total - columns[left]).max() > 3e-4 * max(1.0, np.abs(columns[left]).max()):
                page.wrong.append((f"equation of {left}", float(np.abs(total - columns[left]).max()), 0))
            for result, term in zip(equation.all("b", "result"), terms, strict=True):
                product = math.prod(columns[factor][0, data["first"]] for factor in term)
                page.text(f"equation of {left}: product", result, [product])
        for number in node.all("b"):
            if "data-name" in number.attributes:
                page.text("stepper", number, [columns[number.attributes["data-name"]][0, data["first"]]])
        for unit in range(len(data["units"])):  # what a step begins with is what the last one ended with
            for name in data["names"]:
                if f"{name}′" in columns:
                    before, after = columns[f"{name}′"][unit], columns[name][unit]
                    forwards, backwards = (after[:-1], before[1:]), (after[1:], before[:-1])
                    known = any(np.allclose(*pair, atol=2e-5) for pair in (forwards, backwards))
                    page.same(f"stepper: {name} before a token", known, True)
        static = [int(each) for each in re.findall(r"\d+", node.all("p", "static")[0].text)]
        page.same("stepper: token", static[1:], [data["first"] + 1, len(data["units"][0])])
        page.done |= {id(each) for each in node.walk()}
        state = [name for name in data["names"] if f"{name}′" in columns][-1]
        for figure in page.body.all("figure", "chart"):
            if figure.all("b")[0].text == f"State {state} of {layer}":
                for _, lines in lines_of(figure):
                    for unit, (_, line) in enumerate(lines):
                        if len(line["y"]) == columns[state].shape[1]:
                            for a, b in zip(line["y"], columns[state][unit], strict=True):
                                page.close(
                                    f"state {state} of unit {unit}",
                                    round(a, 5),
                                    float(b),
                                    1e-4 / max(1e-9, abs(float(b))) / 5,
                                )


def check_orders(page: Checked, of: Inspected) -> None:
    """Compare each probability of an n-gram model with its factors, and with the surprisal of the token."""
    lens = next((each for each in of.lenses if "longest of the model's n-grams" in each["sentence"]), None)
    if lens is None:
        return
    bits = of.surprisals
    notes = [each for each in lens["notes"] if each]
    for i, (note, surprisal) in enumerate(zip(notes, bits, strict=False)):
        parts = note.split("P = ")[1].split(" = ")
        product = math.prod(float(each) for each in parts[0].split(" × "))
        page.close(f"n-gram: product at token {i}", product, 2**-surprisal, 2e-2)
        page.close(f"n-gram: probability at token {i}", float(parts[-1]), 2**-surprisal, 6e-3)
        page.same(f"n-gram: order at token {i}", int(note.split("-")[0]), int(lens["values"][i + 1]))
    trained, text = Trained(of), of.run.tokenizer.encode(of.text).tolist()
    for i, note in enumerate(notes):
        size, known = int(note.split("-")[0]), re.search(r"; ([\d,]+) of ([\d,]+);", note)
        if known is None or i + 1 < size:
            page.unknown["counts of n-grams that begin before the text"] += 2
            continue
        ngram = tuple(text[i + 1 - size : i + 1])
        context = trained.count(ngram[:-1]) if size > 1 else of.run.summary["tokens"]
        shown = [int(each.replace(",", "")) for each in known.groups()]
        page.same(f"n-gram: counts at token {i}", shown, [trained.count(ngram), context])


class Trained:
    """The training text of a run, as tokens."""

    def __init__(self, of: Inspected) -> None:
        source = of.run.config.data.train
        path = builtin_text(source, "train") if source.startswith("builtin:") else Path(source)
        self.ids = of.run.tokenizer.encode(path.read_text("utf-8")).tolist()

    def count(self, ngram: tuple[int, ...]) -> int:
        size = len(ngram)
        return sum(tuple(self.ids[i : i + size]) == ngram for i in range(len(self.ids) - size + 1)) if size else 0


def check_embeddings(page: Checked, of: Inspected) -> None:
    """Compare similarities with the cosines of the embeddings."""
    tables = [
        each
        for each in page.body.all("table")
        if [head.text for head in each.all("thead")[0].all("th")] == ["token", "nearest tokens"]
    ]
    found = [
        module
        for module in of.run.model.modules()
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings >= of.run.tokenizer.vocabulary_size
    ]
    if not tables or not found:
        return
    tokenizer = of.run.tokenizer
    weights = found[0].weight.detach().double().numpy()[: tokenizer.vocabulary_size]
    ids = {
        tokenizer.describe(i).replace(" ", "␣").replace("\n", "↵"): i
        for i in reversed(range(tokenizer.vocabulary_size))
    }
    units = weights / np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), 1e-300)
    for row in tables[0].all("tbody")[0].all("tr"):
        token, near = (each.text.translate(ISOLATES) for each in row.children if isinstance(each, Node))
        last = 1.0
        for name, shown in re.findall(r"(\S+) ([-−]?\d\.\d\d)(?:, |$)", near):
            if token not in ids or name not in ids:
                page.unknown["embeddings of tokens without a plain name"] += 1
                continue
            page.close(
                f"cosine of {token} and {name}",
                float(shown.replace("−", "-")),
                round(float(units[ids[token]] @ units[ids[name]]), 2),
                6e-2,
            )
            page.same(f"neighbours of {token}: order", float(shown.replace("−", "-")) <= last, True)
            last = float(shown.replace("−", "-"))
        page.done |= {id(each) for each in row.walk()}


# Charts and errors


def check_charts(page: Checked, of: Inspected) -> None:
    for figure in page.body.all("figure", "chart"):
        title = figure.all("b")[0].text
        for data in figure.data():
            for plot in data["plots"]:
                for cells in plot["maps"]:
                    if "weight, from 0 to 1" in cells["name"] or cells["name"].startswith("attention"):
                        for name, row in zip(cells["rows"], cells["values"], strict=True):
                            page.count += sum(value is not None for value in row)
                            page.close(
                                f"{title}: row {name!r} sums to 1", sum(value or 0.0 for value in row), 1.0, 1e-2
                            )
                for line in plot["lines"]:
                    name = data["series"][line["series"]]
                    if title == "Size of the state" and of.row:
                        for x, y in zip(line["x"], line["y"], strict=True):
                            known = (
                                of.row["state_by_source" if "source" in plot["x_name"] else "state_bytes"] or {}
                            ).get(str(x))
                            if known:
                                page.close(f"state after {x} tokens", y, known)
                    elif name in ("after training", "before training"):
                        page.close(f"{title}: gradient at lag 1", line["y"][0], 1.0)
                        page.unknown["gradients by lag (they need the states within layers)"] += len(line["y"]) - 1
                    elif title == "What a shorter context costs" and of.row and name != "full context":
                        check_context(page, of, figure.all("figcaption")[0].text, line)
    for node in page.body.all("p"):
        state = re.match(r"The state takes ([\d.]+ [kMG]?B)", node.text)
        if state and of.row and of.row["state_bytes"]:
            page.text("size of the state", node, [of.row["state_bytes"]["1000"]])
        elif state:
            page.done |= {id(each) for each in node.walk()}


def check_context(page: Checked, of: Inspected, caption: str, line: Mapping[str, Any]) -> None:
    """Compare what contexts gain with what the comparison says of the same data."""
    gains = {each["beyond"]: each for each in (of.row["distance"] or {}).get("gains") or ()}
    if f"({of.data})" not in caption:
        return
    for x, y in zip(line["x"], line["y"], strict=True):
        if x in gains:
            page.close(f"context beyond {x} tokens, against the comparison", y, gains[x]["bits"], 2e-2)


def check_errors(page: Checked, of: Inspected) -> None:
    """Compare the errors with each other, with what the run answers again, and with the comparison."""
    section = next((each for each in page.body.all("section") if each.attributes.get("id") == "errors"), None)
    if section is None or not section.all("p"):
        return
    line = section.all("p")[0]
    found = re.search(r"([\d,]+) of ([\d,]+) [^():,]*\(([\d.]+ %)\)", line.text)
    if not found:
        return
    correct, total = (int(each.replace(",", "")) for each in found.groups()[:2])
    page.text("errors: fraction", found[3], [correct / total])
    for over in section.all("p", "over"):
        confused = re.search(r"([\d,]+) of ([\d,]+) are wrong", over.text)
        if confused:
            wrong, all_of = (int(each.replace(",", "")) for each in confused.groups())
            page.same("errors: confusions", (wrong, all_of), (total - correct, total))
            check_confusion(page, section, total, wrong)
    names = ("text", "truth", "answers", "figures", "right")
    items = [
        dict(zip(names, item, strict=False))
        for data in section.all(kind="items")[:1]
        for item in section.all(kind="items")[0].data()[0]["items"]
    ]
    figure = section.all(kind="items")[0].data()[0]["figure"] if items else ""
    is_whole = "left out" not in section.all(kind="items")[0].text[:400] if items else False
    if figure == "wrong tags" and is_whole:
        page.same("errors: wrong tags of all items", sum(int(item["figures"][0]) for item in items), total - correct)
    elif items and items[0]["right"] and is_whole and figure != "wrong tags":
        page.same("errors: right items", sum(item["right"][0] for item in items), correct)
    if of.task not in ("lm", "mlm"):
        chosen = [items[i * len(items) // ANSWERED] for i in range(ANSWERED)] if len(items) > ANSWERED else items
        chosen = [item for item in chosen if len(item["text"]) < (60 if figure == "wrong tags" else 300)]
        texts = [item["text"] if isinstance(item["text"], str) else " ".join(item["text"]) for item in chosen]
        for item, answer in zip(chosen, list(of.run.predict(texts)), strict=True):
            given = item["answers"][0]
            page.same(
                f"errors: answer to {str(item['text'])[:30]}",
                given if isinstance(given, str) else " ".join(given),
                answer,
            )
    else:
        for item in items:
            mean = sum(bit for bit in item["answers"][0] if bit is not None) / len(item["answers"][0])
            if None not in item["answers"][0]:
                page.same(
                    "errors: bits per token of an item", abs(item["figures"][0] - mean) < 0.011 + 1e-6 * mean, True
                )
    for chart in section.all("figure", "chart"):
        if chart.all("b")[0].text == "Calibration":
            line_of = lines_of(chart)[0][1][0][1]
            counts = [int(name.split()[0].replace(",", "")) for name in line_of["names"]]
            page.same("calibration: predictions", sum(counts), total)
            page.close("calibration: accuracy", float(np.dot(counts, line_of["y"])) / total, correct / total, 1e-4)
            gap = float(np.dot(counts, np.abs(np.array(line_of["x"]) - np.array(line_of["y"])))) / total
            page.text("calibration: error", chart.all("figcaption")[0].text.split("diagonal:")[1], [gap])
    if of.row and of.data and line.text.startswith(of.data) and of.task in ("classify", "tag") and "all " in line.text:
        page.close("errors: accuracy, against the comparison", correct / total, of.row["metrics"]["accuracy"], 1e-4)
    page.done |= {id(each) for each in section.walk()}


def check_confusion(page: Checked, section: Node, total: int, wrong: int) -> None:
    for table in section.all(kind="confusion"):
        rows = [
            [each.text for each in row.children if isinstance(each, Node)][1:]
            for row in table.all("tbody")[0].all("tr")
        ]
        counts = np.array([[int(each.replace(",", "") or 0) for each in row] for row in rows])
        inside = counts[:-1, :-1]
        hidden = int(counts[-1, -1]) - int(inside.sum())
        page.same("confusions: all", int(counts[-1, -1]), total)
        page.same(
            "confusions: rows",
            all(int(a) == int(b) for a, b in zip(inside.sum(1), counts[:-1, -1], strict=True)) or hidden > 0,
            True,
        )
        page.same("confusions: errors", int(inside.sum() - np.trace(inside)) == wrong or hidden > 0, True)
        page.count += counts.size
