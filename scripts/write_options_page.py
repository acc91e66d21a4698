"""Write docs/options.md: the options of every layer and task, from their declarations. Run it after changing one.

python scripts/write_options_page.py
"""

from collections.abc import Mapping
from pathlib import Path

import seriatim
from seriatim.layers.containers import Residual
from seriatim.layers.cross_attention import CrossAttention
from seriatim.layers.feed_forward import feed_forward
from seriatim.layers.option_types import Option, declared, task_options
from seriatim.layers.positions import Positions
from seriatim.layers.registry import BLOCK, BUILT_IN, FINAL_NORM, POSITION_NORM
from seriatim.tasks import FITTED, TASKS

PAGE = Path(__file__).parent.parent / "docs" / "options.md"
HEAD = """\
# Options of layers and tasks

Options are set with `--model.options.NAME VALUE`, or in a configuration under `model.options`. A layer accepts its own
options and those of what is put around it; a task accepts its own. An unknown option is an error that names the nearest
valid one. `seriatim layers --json` gives the same facts for each layer, with those of your own
(`seriatim layers --layer cells.py:FastSlow`).

`scripts/write_options_page.py` writes this page from the declarations in the source.
"""
AROUND = {
    "Recurrent cells": (
        "Every layer that is a recurrent cell accepts these (`weight_dropout` if it names its recurrent weights).",
        declared(seriatim.Recurrent),
    ),
    "Blocks": (
        "A layer with `block` true, and a layer that is in a block by default, such as `transformer`, accepts these. "
        "`experts_per_token` and `balance` need `num_experts`, `position_norm` needs `position` `learned` or "
        "`sinusoidal`, and `final_norm` needs `norm_first`.",
        {option.name: option for option in (BLOCK, POSITION_NORM, FINAL_NORM)}
        | {name: option for name, option in declared(Residual).items() if name in ("norm", "norm_first")}
        | declared(feed_forward),
    ),
    "Attention to a memory": (
        "A decoder in a block attends to the outputs of an encoder with `memory_size`, which `seq2seq` sets.",
        declared(CrossAttention),
    ),
    "Learned positions": ("A layer with `position` `learned` accepts these.", declared(Positions)),
}


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD, "## Tasks\n"]
    for name, task in {**TASKS, **FITTED}.items():
        if task.options is not None:
            parts += [f"### `{name}`\n", _table(task_options(task.options))]
    parts.append("## Around a layer\n")
    for title, (text, options) in AROUND.items():
        parts += [f"### {title}\n", f"{text}\n", _table(options)]
    parts.append("## Layers\n")
    for name, architecture in BUILT_IN.items():
        if options := declared(architecture):
            parts += [f"### `{name}`\n", _table(options)]
    return "\n".join(parts)


def _table(options: Mapping[str, Option]) -> str:
    rows = ["| option | values | default | meaning |", "|---|---|---|---|"]
    for name, option in options.items():
        facts = option.describe()
        choices = facts["choices"]
        values = ", ".join(f"`{choice}`" for choice in choices) if isinstance(choices, list) else str(facts["type"])
        span = f": {facts['range']}" if facts["range"] else ""
        default = option.default
        shown = "–" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"
        rows.append(f"| `{name}` | {values}{span} | {shown} | {option.help.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
