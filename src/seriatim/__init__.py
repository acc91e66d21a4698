"""Sequence models on your own text, behind one contract.

Names are imported when first used, so that ``import seriatim`` and ``seriatim --help`` stay quick.
"""

import importlib

from .version import __version__

TYPE_CHECKING = False
"""As of `typing`, whose import would take up to half of the time before Ctrl-C is handled."""
if TYPE_CHECKING:
    from . import layers as layers
    from . import recurrence as recurrence
    from .cli.console import ConsoleReporter as ConsoleReporter
    from .comparison.comparing import Comparison as Comparison
    from .comparison.comparing import compare as compare
    from .config import Config as Config
    from .core.contract import RecurrentCell as RecurrentCell
    from .core.contract import SequenceLayer as SequenceLayer
    from .core.state import State as State
    from .inspection.inspection import inspect as inspect
    from .layers import Bidirectional as Bidirectional
    from .layers import Stack as Stack
    from .layers import layer as layer
    from .layers import register as register
    from .recurrence import Recurrent as Recurrent
    from .runs.launch import resume as resume
    from .runs.launch import train as train
    from .runs.run import Run as Run
    from .runs.run import load as load
    from .training.reporting import Reporter as Reporter

_HOMES = {
    "Bidirectional": "layers",
    "Comparison": "comparison.comparing",
    "Config": "config",
    "ConsoleReporter": "cli.console",
    "Recurrent": "recurrence",
    "RecurrentCell": "core.contract",
    "Reporter": "training.reporting",
    "Run": "runs.run",
    "SequenceLayer": "core.contract",
    "Stack": "layers",
    "State": "core.state",
    "compare": "comparison.comparing",
    "inspect": "inspection.inspection",
    "layer": "layers",
    "load": "runs.run",
    "register": "layers",
    "resume": "runs.launch",
    "train": "runs.launch",
}

__all__ = ["__version__", "layers", "recurrence", *_HOMES]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    if name in ("layers", "recurrence", "unroll"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
