"""From a configuration to a job: the data, the vocabulary and the model, checked before anything is written."""

from pathlib import Path

from ..config import Config
from ..core.errors import InputError
from ..data.vocabulary import Vocabulary
from ..models.bounds import no_larger_than
from .checkpoints import checkpoint_weights
from .estimator import Job
from .initial import Initial, open_initial, set_to_zero
from .resource_limits import build_model
from .task import AnyTask


def check_initial(config: Config) -> None:
    """Check that the initial parameters are given in one way only.

    Raises:
        InputError: ``model.initial`` and ``training.init`` contradict each other.
    """
    if config.model.initial == "zeros" and config.training.init is not None:
        raise InputError("model.initial: zeros has no meaning with training.init; leave one of them out")


def learn(task: AnyTask) -> tuple[Vocabulary, Initial | None]:
    """Learn the vocabulary of a training, with the tokenizer of the run that it starts from, if any.

    Returns:
        The vocabulary, and the run that ``training.init`` names.

    Raises:
        InputError: the training data or that run cannot be read.
    """
    init = task.config.training.init
    initial = None if init is None else open_initial(init)
    if initial is not None:
        initial.settle(task.config)
    vocabulary = task.learn_vocabulary()
    return (vocabulary if initial is None else initial.with_tokenizer(vocabulary)), initial


def prepare(task: AnyTask, folder: Path, vocabulary: Vocabulary | None = None) -> Job[AnyTask]:
    """Read the data and build the model.

    Args:
        task: the task with its configuration.
        folder: the folder of the run.
        vocabulary: that of a training that resumes; None to learn one and to apply ``training.init``.

    Raises:
        InputError: data or configuration have a problem; nothing is written before.
    """
    training_spec, config = task.training_spec(), task.config
    check_initial(config)
    if vocabulary is not None:
        with no_larger_than(*checkpoint_weights(folder / "checkpoints")):
            model = task.make_model(vocabulary)
    else:
        vocabulary, initial = learn(task)
        model = build_model(task, vocabulary)
        if config.model.initial == "zeros":
            set_to_zero(model)
        if initial is not None:
            initial.copy_to(model, config.model)
    train = task.read(training_spec, "train", vocabulary)
    held_out = task.validation_spec()
    valid = None if held_out is None else task.read(held_out, "valid", vocabulary)
    task.check(train, valid)
    return Job(task, folder, vocabulary, model, task.batches(train), train, valid)
