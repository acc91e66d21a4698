"""From an estimator to a finished run: fit, train the simple baseline, and write what describes the run."""

import platform
import shlex
import warnings
from pathlib import Path

import torch

from ..config import Config, Training
from ..core.allocator import freed_memory_kept
from ..core.errors import InputError
from ..data.holding_out import share_of
from ..evaluation.intervals import Metrics
from ..models.linear.minimization import TIME_SPENT
from ..processes.ranks import ONE_RANK, Ranks
from ..storage.atomic_files import to_json, write_whole
from ..storage.written_folders import CARD, RUN, discard, outer
from ..training.checkpoints import saving
from ..training.estimator import Estimator, Job
from ..training.reporting import Record, Reporter, default_reporter
from ..training.run_files import begin_run
from ..training.task import AnyTask, Task
from ..version import __version__
from .beside_baseline import beside_baseline
from .identity import identity
from .model_card import model_card
from .run import BASELINE, Run, load
from .simple_baseline import KEY, MINUTES, baseline_task, refuse_long


def choose_reporter(reporter: Reporter | None, ranks: Ranks) -> Reporter:
    """Return what hears of the training on this rank: only the leader reports."""
    return (reporter or default_reporter()) if ranks.leads else Reporter()


def make_estimator(job: Job[AnyTask], device: torch.device, reporter: Reporter, ranks: Ranks = ONE_RANK) -> Estimator:
    """Return the algorithm that fits the model of a job on one of the ranks."""
    metadata = identity(job.task.config, job.vocabulary)
    return job.task.estimator(job, device, reporter, metadata, ranks)


def fit(estimator: Estimator, job: Job[AnyTask], *, part_of: Path | None = None) -> Run:
    """Train, then write `summary.json` and the model card; ``part_of`` is the run that a baseline belongs to."""
    finished: list[Run] = []
    if estimator.divides or estimator.ranks.leads:
        _report_beginning(estimator, job)
        with freed_memory_kept():
            estimator.fit()
    estimator.ranks.on_leader(lambda: finished.append(_finish(estimator, job, part_of)))
    return finished[0] if finished else load(outer(job.folder))


def _describe(estimator: Estimator, job: Job[AnyTask]) -> Record:
    """Return what both the first and the last report say."""
    return {
        "parameters": sum(parameter.numel() for parameter in estimator.model.parameters()),
        "vocabulary_size": job.vocabulary.tokenizer.vocabulary_size,
        "precision": job.task.config.training.precision,
        "device": str(estimator.device),
        "ranks": estimator.ranks.count,
    }


def _report_beginning(estimator: Estimator, job: Job[AnyTask]) -> None:
    """Report what is trained on what."""
    task, config = job.task, job.task.config
    beginning = {
        **_describe(estimator, job),
        "train": task.describe(job.train),
        "tokenizer_sample": task.tokenizer_sample(job.train),
        "valid": None if job.valid is None else task.describe(job.valid),
        "held_out_share": task.validation_name() if share_of(task.validation_spec()) else "",
        "ceiling": _ceiling(config.training),
        "initial": _initial(config),
        "figures": task.figures,
        "step": estimator.progress.step,
        "nothing_left": estimator.nothing_left(),
        "work_unit": estimator.work_unit,
    }
    estimator.report("begin", beginning)


def _finish(estimator: Estimator, job: Job[AnyTask], part_of: Path | None) -> Run:
    """Train the simple baseline, and write `summary.json` and the model card."""
    task, config, progress = job.task, job.task.config, estimator.progress
    job.settle()  # of a training that was killed between its last weights and this
    simple = _train_baseline(job)
    if simple is None and config.training.baseline_weight:
        _set_weight(job, 0.0)
    run = load(job.folder)
    run.summary = {
        "task": config.task,
        "layer": config.model.layer,
        **_describe(estimator, job),
        "tokens_per_second": progress.tokens / max(progress.training_seconds, 1e-9),
        "seconds": progress.seconds,
        "steps": progress.step,
        "epochs": progress.epoch,
        "ended": estimator.ended,
        "tokens": progress.tokens,
        **task.training_statistics(job.train),
        "skipped_steps": progress.skipped,
        "best_valid": progress.best_valid,
        "threads": torch.get_num_threads(),
        "versions": {"seriatim": __version__, "python": platform.python_version(), "torch": torch.__version__},
    }
    if simple is not None:
        _blend(run, simple, job)
    if job.valid is not None:
        baseline = {"name": task.baseline_name, **task.baseline(job.train, job.valid, job.vocabulary)}
        if simple is not None:
            run.summary["valid"], baseline[KEY], network = beside_baseline(run, simple, job.valid)
            run.summary |= {"network": network} if network else {}
        else:
            run.summary["valid"] = _metrics(run, job, estimator)
        run.summary["baseline"] = baseline
    with saving(part_of or job.folder):
        write_whole(job.path(CARD), model_card(run))
        write_whole(job.path("summary.json"), to_json(run.summary, indent=2) + "\n")  # last: the run is complete
    estimator.report("end", run.summary)
    return run


def _metrics(run: Run, job: Job[AnyTask], estimator: Estimator) -> Metrics:
    """Return the held-out metrics of a run, from its last validation if that measured all of them on its weights."""
    partial = type(job.task).validate is not Task.validate
    return (None if partial else estimator.metrics) or job.task.evaluate(run.model, job.valid)


def _blend(run: Run, simple: Run, job: Job[AnyTask]) -> None:
    """Blend the answers of a run with its simple baseline, if its configuration says so."""
    task, weight = job.task, job.task.config.training.baseline_weight
    if weight is None:
        without = task.usual_weight
        weight = "auto" if without and job.valid is not None else without
    if weight == "auto":
        weight = task.best_weight(run.model, simple.model, job.valid)
    _set_weight(job, weight)
    run.config.training.baseline_weight = weight
    if weight:
        run.blend(simple, weight)
        run.summary["baseline_weight"] = weight


def _set_weight(job: Job[AnyTask], weight: float) -> None:
    """Write the weight of the simple baseline into the configuration of a run."""
    job.task.config.training.baseline_weight = weight
    with saving(job.folder):
        write_whole(job.folder / "config.yaml", job.task.config.to_yaml())


def _train_baseline(job: Job[AnyTask]) -> Run | None:
    """Train the simple baseline of a run in a folder of its own; None if it has none.

    Warns:
        UserWarning: it cannot be trained on this data.
    """
    task, folder = baseline_task(job.task), job.folder / BASELINE
    discard(folder, RUN)
    if task is None:
        return None
    try:
        refuse_long(task, job.train)
        task.check(job.train, job.valid)
        inner = Job(task, folder, job.vocabulary, task.make_model(job.vocabulary), job.batches, job.train, job.valid)
        estimator = make_estimator(inner, torch.device("cpu"), Reporter())
        with saving(job.folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on its options, which nobody has set
            job.path(BASELINE).mkdir(exist_ok=True)
            begin_run(folder, task.config, job.vocabulary)
            estimator.start()
            simple = fit(estimator, inner, part_of=job.folder)
    except InputError as error:
        discard(folder, RUN)
        warnings.warn(f"{job.folder}: the simple baseline was not trained: {error}", stacklevel=2)
        return None
    if simple.summary["ended"].startswith(TIME_SPENT):
        advice = f"train it longer with --layer {shlex.quote(task.config.model.layer)}"
        warnings.warn(
            f"{job.folder}: the simple baseline had not converged after {MINUTES:g} minutes; {advice}", stacklevel=2
        )
    return simple


def _ceiling(training: Training) -> str:
    """Return in words when a training ends that has a limit of minutes; an empty string if it is the only budget."""
    if training.minutes is None:
        return ""
    longest = f"for {training.minutes:g} minutes at most"
    if training.patience is not None:
        why = f"until {training.patience} validations in a row bring no improvement"
        return f"trains {why}, {longest} (--patience, --minutes)"
    for unit in ("epochs", "steps", "tokens"):
        if (number := getattr(training, unit)) is not None:
            return f"trains for {number:,} {unit}, {longest} (--{unit}, --minutes)"
    return ""


def _initial(config: Config) -> str:
    """Return in words which run a training starts from; an empty string for new weights."""
    if config.training.init is None:
        return ""
    sees_all = config.model.bidirectional or not config.model.options.get("causal", True)
    one_way = "" if sees_all else ", which reads in one direction"
    parts = f"the tokenizer, the embedding and the layer {config.model.layer}{one_way}"
    return f"starts from {parts}, of {config.training.init}, and from its output layer if its task is the same"
