"""The end of a training: the simple baseline, the metrics of both models, `summary.json` and the model card.

The simple baseline is a model that is fitted directly on the same data, and stored in the run's folder. A network that
is worse than it is not worth its cost, whatever its architecture. The baseline of a task is named by
`TaskKind.reference_model`; ``training.baseline`` ``none`` leaves it out.
"""

import platform
import shlex
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config import Config, Model, Training
from ..core.errors import InputError, SizeError
from ..core.json_object import JsonObject
from ..counting.minimization import TIME_SPENT
from ..storage.files import to_json, write_whole
from ..storage.written_folders import CARD, CARD_MARK, RUN, discard
from ..tasks import open_task, shared_options, with_defaults
from ..tasks.beside_baseline import Measured, beside_baseline
from ..tasks.task import Objective, Task
from ..version import __version__
from .checkpoints import Progress, RunWriter, saving
from .direct_fit import DirectFit
from .hardware import choose_device
from .loop import Trainer
from .reporting import Reporter, SafeReporter, describe_model
from .run_files import BASELINE, begin_run, identity
from .settle import Settled

MINUTES = 3.0
"""Limit of the time in which the weights of a baseline are fitted; one that is reached is reported."""
SELECTED = "The weights were selected on the same held-out data, which favours the model."
"""Caution of the model card after a comparison with the simple baseline."""
MAX_TOKENS = 1 << 24
"""Largest number of tokens of a running text whose n-grams are counted for a baseline, which takes about a minute."""


def finish(
    settled: Settled, trainer: Trainer | DirectFit, writer: RunWriter, reporter: SafeReporter, facts: JsonObject
) -> None:
    """Fit the simple baseline, measure the run, and write what describes it.

    ``facts`` are the result of `describe_model`.
    """
    writer.replace_previous()  # of a training that was killed between its last weights and this
    task, config = settled.task, settled.config
    baseline = _fit_baseline(settled, writer)
    network = task.builder.load(settled.vocabulary, writer.folder / "model.safetensors")
    network = network.to(choose_device("auto")).eval()

    # The weight of the baseline in the answers is a result of the training: it is written into the run once.
    weight = 0.0 if baseline is None else _choose_weight(settled, network, baseline.model)
    if baseline is not None or config.training.baseline_weight:
        config = config.replaced({"training.baseline_weight": weight})
        with saving(writer.folder):
            write_whole(writer.folder / "config.yaml", config.to_yaml())
    answering = network
    if baseline is not None and weight and task.blender is not None:
        device = next(network.parameters()).device
        answering = task.blender.blend(network, baseline.model.to(device), weight).eval()
    run = Measured(task, settled.vocabulary, network, answering)

    summary = _summarize(settled, trainer, facts)
    if weight:
        summary["baseline_weight"] = weight
    if settled.valid is not None:
        if task.objective is not None:
            summary["selected_by"] = task.evaluator.selection(settled.vocabulary).key
        _measure(summary, settled, trainer, run, baseline)
    _write_description(settled, writer.folder, config, network, summary, writer)
    reporter.tell("end", summary)


def _summarize(settled: Settled, trainer: Trainer | DirectFit, facts: JsonObject) -> JsonObject:
    """Return the facts of a training that `summary.json` records beside its metrics."""
    progress, config = trainer.progress, settled.config
    return {
        "task": config.task,
        "layer": config.model.layer,
        **facts,
        "tokens_per_second": progress.tokens / max(progress.training_seconds, 1e-9),
        "seconds": progress.seconds,
        "steps": progress.step,
        "epochs": progress.epoch,
        "ended": trainer.ended,
        "tokens": progress.tokens,
        **settled.task.reader.training_statistics(settled.train),
        **settled.counts,
        "skipped_steps": progress.skipped,
        "best_valid": progress.best_valid,
        "threads": torch.get_num_threads(),
        "versions": {"seriatim": __version__, "python": platform.python_version(), "torch": torch.__version__},
    }


def _measure(
    summary: JsonObject, settled: Settled, trainer: Trainer | DirectFit, run: Measured, baseline: Measured | None
) -> None:
    """Add the metrics of the validation data to a summary, beside those of the simplest models."""
    task = settled.task
    trivial = task.evaluator.trivial_baseline(settled.train, settled.valid, settled.vocabulary)
    summary["baseline"] = {"name": task.evaluator.baseline_name, **trivial}
    if baseline is not None:
        summary["valid"], summary["baseline"][KEY], network = beside_baseline(run, baseline, settled.valid)
        summary |= {"network": network} if network else {}
        return
    # The last validation measured the weights of the run, unless the task validates with some of its metrics only, or
    # on a sample.
    partial = task.objective is not None and type(task.objective).validate is not Objective.validate
    partial = partial or settled.config.training.validate_tokens is not None
    summary["valid"] = (None if partial else trainer.metrics) or task.evaluator.evaluate(run.model, settled.valid)


def _write_description(
    settled: Settled, folder: Path, config: Config, network: nn.Module, summary: JsonObject, writer: RunWriter
) -> None:
    """Write the model card, and last `summary.json`: then the run is complete."""
    with saving(folder):
        card = model_card(settled.task, config, folder.name, network, summary)
        write_whole(writer.path(CARD), card)
        write_whole(writer.path("summary.json"), to_json(summary, indent=2) + "\n")


# The simple baseline


def baseline_config(config: Config) -> Config | None:
    """Return the configuration of a run's baseline; None if it has none, or leaves it out."""
    name = open_task(config).kind.reference_model
    if name is None or config.training.baseline == "none":
        return None
    options = shared_options(config.task, name, config.model.options)
    return with_defaults(
        Config(
            task=config.task,
            data=config.data.model_copy(),
            tokenizer=config.tokenizer.model_copy(),
            model=Model(layer=name, options=options),
            training=Training(minutes=MINUTES, seed=config.training.seed, device="cpu", baseline="none"),
        )
    ).settled()


def _fit_baseline(settled: Settled, writer: RunWriter) -> Measured | None:
    """Fit the simple baseline of a run in a folder of its own; None if it has none.

    Warns:
        UserWarning: it cannot be fitted on this data.
    """
    folder, config = writer.folder / BASELINE, baseline_config(settled.config)
    discard(folder, RUN)
    if config is None:
        return None

    # It has the tokens and the data of the run; only the options of its own model are decided anew.
    task = open_task(config)
    inner = Settled(config, task, settled.vocabulary, None, settled.train, settled.valid)
    try:
        refuse_long(config, settled.train)
        task.check(settled.train, settled.valid)
        with saving(writer.folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on its options, which nobody has set
            writer.path(BASELINE).mkdir(exist_ok=True)
            baseline = begin_run(folder, config, settled.vocabulary)
            files = RunWriter(baseline, identity(config, settled.vocabulary))
            fit = DirectFit(inner, files, SafeReporter(Reporter()), nn.Module(), Progress())
            fit.start()
            fit.fit()
            finish(inner, fit, files, SafeReporter(Reporter()), describe_model(inner, fit.model, fit.device, 1))
    except InputError as error:
        discard(folder, RUN)
        warnings.warn(f"{writer.folder}: the simple baseline was not trained: {error}", stacklevel=2)
        return None

    # A baseline that had no time to converge would make the network look better than it is.
    if fit.ended.startswith(TIME_SPENT):
        advice = f"train it longer with --layer {shlex.quote(config.model.layer)}"
        warnings.warn(
            f"{writer.folder}: the simple baseline had not converged after {MINUTES:g} minutes; {advice}", stacklevel=2
        )
    return Measured(task, settled.vocabulary, fit.model, fit.model)


def refuse_long(config: Config, train: Any) -> None:
    """Raise InputError if a running text is so long that a baseline would take more than about a minute."""
    if len(getattr(train, "ids", ())) > MAX_TOKENS:
        layer = shlex.quote(config.model.layer)
        raise SizeError(f"the training text has more than {MAX_TOKENS:,} tokens; train it with --layer {layer}")


def _choose_weight(settled: Settled, network: nn.Module, baseline: nn.Module) -> float:
    """Return the weight of the baseline in the answers: the one that is given, or the best on the validation data."""
    blender, weight = settled.task.blender, settled.config.training.baseline_weight
    if blender is None:
        return 0.0
    if weight is None:
        weight = "auto" if blender.default_weight and settled.valid is not None else blender.default_weight
    return blender.best_weight(network, baseline, settled.valid) if weight == "auto" else weight


# The model card


KEY = "simple"
"""The key of the metrics of the simple baseline among those of the simplest model in a summary."""


def model_card(task: Task, config: Config, name: str, model: nn.Module, summary: JsonObject) -> str:
    """Return the model card of a run in Markdown: its task, data, metrics and use. ``name`` is that of its folder."""
    rows = [
        ("task", config.task),
        ("tokens", f"{config.tokenizer.kind}, {summary['vocabulary_size']:,} in the vocabulary"),
        ("trained on", f"`{config.data.train}`"),
        *task.builder.card_rows(model, summary),
        *([("selected by", f"{summary['selected_by']} of held-out data")] if "selected_by" in summary else []),
        *_answers_row(summary),
        ("versions", ", ".join(f"{key} {value}" for key, value in summary["versions"].items())),
    ]
    lines = [f"# {name}", "", CARD_MARK, "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in rows]
    lines += ["", "## Held-out text", "", *_figures(task, summary)]
    lines += ["", "## Use", "", "```", task.kind.usage.format(run=shlex.quote(name)), "```", "", task.kind.caution, ""]
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode()  # names of files may be no text


def _answers_row(summary: JsonObject) -> list[tuple[str, str]]:
    """Return the row of the model card on a run that answers together with its simple baseline."""
    weight, network = summary.get("baseline_weight"), summary.get("network", {})
    if not weight:
        return []
    alone = f"; {network['name']} of the network alone: {network['text']}" if "text" in network else ""
    return [("answers", f"of the network and its simple baseline, which has the weight {weight:g}{alone}")]


def _figures(task: Task, summary: JsonObject) -> list[str]:
    if "valid" not in summary:
        return ["None was given; how well the model does is unknown."]
    metrics, baseline = summary["valid"], summary["baseline"]

    # A mixture is shown beside its network alone, since otherwise the gain of mixing would stay unknown.
    network = {**summary["network"], "name": "its network alone"} if summary.get("network") else {}
    others = [one for one in (network, baseline, baseline.get(KEY)) if one]
    counts = ", ".join(f"{metrics[key]:,} {key.replace('_', ' ')}" for key in task.evaluator.counts)
    rows = []
    for figure in task.evaluator.metrics:
        if figure.key in metrics:
            interval = figure.interval(metrics)
            beside = [figure.text(other, metrics) if figure.key in other else "" for other in others]
            cells = [f"{figure.text(metrics)}{f' ({interval})' if interval else ''}", *beside]
            rows.append(f"| {figure.name} | {' | '.join(cells)} |")
    names = ["this model (95 % interval)", *[other["name"] for other in others]]
    head = [f"| | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]

    # The weights were selected on these data, which a verdict about them must not leave out.
    verdicts = [other["verdict"] for other in reversed(others) if "verdict" in other]
    verdict = ["", " ".join([*verdicts, SELECTED])] if verdicts else []
    return [f"`{task.files.validation_name()}`: {counts}.", "", *head, *rows, *verdict]
