"""The tables of `docs/scaling.md` about counting n-grams."""

from collections.abc import Mapping

from counting_simulation import Machine, phases
from page_tables import table

TOKENS = 1e12
SERVER = Machine(cores=32, memory=256e9, disk=2e9, network=25e9 / 8)
"""Assumed: a machine for counting, with an NVMe disk and 25 Gbit/s."""


def measured_counting_table(figures: Mapping[str, float]) -> list[str]:
    """Return the figures of the text that was counted."""
    names = {
        "encoded": ("encode the text", "tokens"),
        "counted": ("count shards", "tokens"),
        "merged": ("merge windows", "windows of shards"),
        "smoothed": ("find suffixes, smooth, write", "n-grams"),
    }
    rows = [
        (name, [f"{figures[f'{step}_per_second'] / 1e6:.2f} million {unit}", f"{figures[f'{step}_parallel']:.0%}"])
        for step, (name, unit) in names.items()
    ]
    sizes = [
        ("bytes of a token in the text", "counted_bytes", "{:.1f}"),
        ("different windows for each token, in two shards and after merging", "shard_windows", "{:.2f}"),
        ("different n-grams of all orders for each token", "ngrams", "{:.2f}"),
        ("bytes of a window, in two shards and after merging", "shard_window_bytes", "{:.1f}"),
        ("bytes of an n-gram in the model", "model_bytes", "{:.1f}"),
        ("bytes of arrays for each n-gram, at most at once and in all", "array_bytes", "{:.1f}"),
    ]
    second = {"shard_windows": "windows", "shard_window_bytes": "window_bytes", "array_bytes": "all_array_bytes"}
    listed = []
    for name, key, form in sizes:
        keys = [key, second[key]] if key in second else [key]
        listed.append((name, [", ".join(form.format(figures[each]) for each in keys)]))
    title = f"Measured with {figures['counted_tokens'] / 1e6:.1f} million tokens:"
    heads = ["step", "one core, a second", "share that two cores divide"]
    return [title, "", *table(heads, rows), "", *table(["size", "measured"], listed)]


def counting_table(figures: Mapping[str, float], machines: int, smoothers: int) -> list[str]:
    """Return the phases of counting the text on so many machines, of which ``smoothers`` find suffixes and smooth."""
    rows, total = [], 0.0
    for phase in phases(TOKENS, machines, figures, smoothers):
        seconds = phase.seconds(SERVER)
        total += seconds
        sizes = [f"{size / 1e12:.2f} TB" for size in (phase.space, phase.disk_bytes, phase.network_bytes)]
        rows.append((phase.name, [str(phase.machines), *sizes, f"{seconds / 60:,.1f}", phase.limit(SERVER)]))
    rows.append(("all", ["", "", "", "", f"{total / 60:,.1f}", ""]))
    heads = ["machines", "disk space of each", "disk traffic of each", "network of each", "minutes", "limited by"]
    arrays = TOKENS * figures["ngrams"] * figures["array_bytes"] / smoothers
    return [
        *table(["phase", *heads], rows),
        "",
        f"Arrays of a machine in the last phase, at most at once: {arrays / 1e12:,.2f} TB, which are "
        f"{arrays / SERVER.memory:,.1f} times its memory.",
    ]
