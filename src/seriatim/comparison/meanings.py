"""The tables of a comparison page that explain its figures, and name the machine that measured them."""

from ..report.number_formats import in_bytes, in_time
from ..report.page import Table
from ..report.wording import short_name
from .comparison_tables import SPEED, TOKEN, Cells
from .results import Results


def machine_table(results: Results) -> Table:
    """Return the machine, the versions and the date."""
    rows = dict(results.section("machine"))
    if rows.get("memory_bytes"):
        rows["memory"] = in_bytes(rows.pop("memory_bytes"))
    rows |= results.section("versions")
    rows |= {"finished": results.values.get("finished"), "took": in_time(1000 * (results.values.get("seconds") or 0))}
    cells: list[Cells] = [[str(name), str(value)] for name, value in rows.items() if value is not None]
    return Table(["fact", "value"], cells, "The machine, the versions and the date.")


def meanings_table(results: Results) -> Table:
    """Return what the figures of the page mean."""
    metric, data, several = results.metric, results.section("data"), len(results.seeds) > 1
    better = f"{'higher' if metric.more_is_better else 'lower'} is better"
    measured = f"{better}; measured on {short_name(str(data.get('measured_on') or 'held-out data'))}"
    if data.get("valid") is not None and data.get("valid") == data.get("measured_on"):
        measured += ", which also selected the weights of each training, so all values are a little too good"
    seeds = "the bounds are means over seeds" if several else "it does not cover other seeds"
    together = "; the items of all seeds are resampled together, so differences between seeds are not covered"
    work = results.values.get("timed_work", "reading and answering")
    meanings = {
        metric.name: measured,
        "95 % interval": "percentile bootstrap over the items (lines, blocks of a text, sentences) of the measured "
        f"data; {seeds}",
        "difference from the best": "paired bootstrap: both layers on the same resampled items; significant if the "
        "two-sided p is at most 0.05 and the 95 % interval excludes 0. There is no correction for comparing many layers"
        + together
        * several,
        "learning rate": "the default of the layer, the one that was set, or with tuning the best of those tried",
        "parameters": "all numbers that are learned, including embeddings and the output layer",
        SPEED: "tokens read in training per second, without the time of validations",
        "memory": "the peak of resident memory of the training process, with the data, above that of the idle program",
        "on disk": "the size of the file of the weights",
        "state": "bytes that must be kept of one text to continue it; 1 kB is 1,000 bytes",
        TOKEN: f"the time of {work}, one text at a time, divided by the number of tokens: the median of the "
        "repetitions, and below it the range of the middle half of them",
    }
    if not results.is_tested:
        del meanings["difference from the best"]
    distance = results.at_distance()
    if distance.kind:
        count = f", over {distance.count:,} {distance.items} each" if distance.count else ""
        meanings[f"{distance.of} {'by length' if distance.kind == 'length' else 'at distance'}"] = (
            f"{distance.name}{count}"
        )
    return Table(["figure", "meaning"], [[*row] for row in meanings.items()], "What the figures mean.")
