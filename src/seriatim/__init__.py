"""Sequence models on your own text, behind one contract.

Names are imported when first used, so that ``import seriatim`` and ``seriatim --help`` stay quick.
"""

import importlib
import sys
from types import ModuleType

TYPE_CHECKING = False
"""As of `typing`, whose import would take up to half of the time before Ctrl-C is handled."""
if TYPE_CHECKING:
    from . import layers as layers
    from . import unroll as unroll
    from .comparison.comparing import Comparison as Comparison
    from .comparison.comparing import compare as compare
    from .config import Config as Config
    from .console import ConsoleReporter as ConsoleReporter
    from .inspection.inspect import inspect as inspect
    from .launch import resume as resume
    from .launch import train as train
    from .layer import RecurrentCell as RecurrentCell
    from .layer import SequenceLayer as SequenceLayer
    from .layers import Bidirectional as Bidirectional
    from .layers import Stack as Stack
    from .layers import layer as layer
    from .layers import register as register
    from .run import Run as Run
    from .run import load as load
    from .state import State as State
    from .training.reporting import Reporter as Reporter
    from .unroll import Recurrent as Recurrent

__version__ = "0.1.0"

HOMES = {
    "Bidirectional": "layers",
    "Comparison": "comparison.comparing",
    "Config": "config",
    "ConsoleReporter": "console",
    "Recurrent": "unroll",
    "RecurrentCell": "layer",
    "Reporter": "training.reporting",
    "Run": "run",
    "SequenceLayer": "layer",
    "Stack": "layers",
    "State": "state",
    "compare": "comparison.comparing",
    "inspect": "inspection.inspect",
    "load": "run",
    "register": "layers",
    "resume": "launch",
    "train": "launch",
}

__all__ = ["__version__", "layer", "layers", "unroll", *HOMES]


def __getattr__(name: str) -> object:
    if name in HOMES:
        return getattr(importlib.import_module(f".{HOMES[name]}", __name__), name)
    if name in ("layers", "unroll"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Package(ModuleType):
    """Lets ``seriatim.layer`` be a function although a module, the contract, carries the same name.

    The import system sets a submodule as an attribute of its package; for this name the function stays.
    """

    @property
    def layer(self) -> object:
        return importlib.import_module(".layers", __name__).layer

    @layer.setter
    def layer(self, module: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package
