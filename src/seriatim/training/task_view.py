"""Where the class `TaskView` was; what a task explains is a `seriatim.tasks.Explainer` now."""

from .task import __getattr__ as __getattr__
