"""What inspection and comparison need to know of a task beyond how it is trained."""

from abc import ABC


class TaskView(ABC):
    """Describes a task to the parts of the package that explain and compare models.

    Each task has one view, which stands beside the task in `seriatim.tasks`.

    Attributes:
        title: a noun for the trained model, for example "language model".
        answer_name: a noun with its article for what the model predicts, for example "the label".
    """

    title: str
    answer_name: str
