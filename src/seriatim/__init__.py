"""Train, measure, stream and explain sequence models on your own text.

The names are imported when they are first used, so that ``import seriatim`` and ``seriatim --help`` are quick.
"""

import gc
import importlib

from .version import __version__

TYPE_CHECKING = False
"""Replaces `typing.TYPE_CHECKING`, because importing `typing` takes a large part of the start-up time."""
if TYPE_CHECKING:
    from . import layers as layers
    from . import recurrence as recurrence
    from . import testing as testing
    from .cli.console import ConsoleReporter as ConsoleReporter
    from .comparison.comparing import Comparison as Comparison
    from .comparison.comparing import compare as compare
    from .config import Config as Config
    from .core.contract import MemoryLayer as MemoryLayer
    from .core.contract import RecurrentCell as RecurrentCell
    from .core.contract import SequenceLayer as SequenceLayer
    from .core.errors import InputError as InputError
    from .core.state import State as State
    from .inspection.inspection import inspect as inspect
    from .layers import Bidirectional as Bidirectional
    from .layers import Stack as Stack
    from .layers import layer as layer
    from .layers import register as register
    from .recurrence import Recurrent as Recurrent
    from .runs.ensembles import ensemble as ensemble
    from .runs.ensembles import interpolate as interpolate
    from .runs.run import Run as Run
    from .runs.run import load as load
    from .runs.stream import Stream as Stream
    from .runs.train import resume as resume
    from .runs.train import train as train
    from .training.reporting import Reporter as Reporter

_MODULES = {
    "Bidirectional": "layers",
    "Comparison": "comparison.comparing",
    "Config": "config",
    "ConsoleReporter": "cli.console",
    "InputError": "core.errors",
    "MemoryLayer": "core.contract",
    "Recurrent": "recurrence",
    "RecurrentCell": "core.contract",
    "Reporter": "training.reporting",
    "Run": "runs.run",
    "SequenceLayer": "core.contract",
    "Stack": "layers",
    "State": "core.state",
    "Stream": "runs.stream",
    "compare": "comparison.comparing",
    "ensemble": "runs.ensembles",
    "inspect": "inspection.inspection",
    "interpolate": "runs.ensembles",
    "layer": "layers",
    "load": "runs.run",
    "register": "layers",
    "resume": "runs.train",
    "train": "runs.train",
}
"""The module that defines each public name."""
_SUBMODULES = ("layers", "recurrence", "testing")

__all__ = ["__version__", *_SUBMODULES, *_MODULES]


def __getattr__(name: str) -> object:
    if name in __all__ and name != "InputError":  # which a program needs to catch the error
        importlib.import_module(".core.errors", __name__).require_current_folder()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    # What is imported stays: looking for garbage among it would take longer than importing our own modules.
    collects = gc.isenabled()
    gc.disable()
    try:
        module = importlib.import_module(f".{_MODULES.get(name, name)}", __name__)
    finally:
        if collects:
            gc.enable()
    return module if name in _SUBMODULES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
