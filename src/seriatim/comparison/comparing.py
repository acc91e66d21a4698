"""The same job for many architectures under one budget: what `seriatim.compare` and the command do."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import Config
from ..config import resolve as resolve_config
from ..core.errors import InputError
from ..data.paths import check_named_by_run
from ..layers.origins import origin_of, refuse_while_importing
from ..storage.lock import locked, refuse_locked
from .conduct import Comparison, Conduct
from .folder import check_folder, check_runs, clear, default_out
from .plan import Plan, Sized, check_layers, default_rate, own_layers, read_plan, share_options
from .planning import Wishes, fit_plan, make_plan, seeds_from
from .progress import ComparisonReporter
from .row_names import bare, width_of, with_widths
from .shared_data import read_data

__all__ = ["Comparison", "compare", "resume"]


def compare(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    layers: Sequence[str],
    minutes: float | None = None,
    tokens: int | None = None,
    steps: int | None = None,
    parameters: int | str | None = None,
    seeds: int = 1,
    tune: int | None = None,
    metric: str | None = None,
    widths: Sequence[int] | None = None,
    overrides: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    reporter: ComparisonReporter | None = None,
    command: str = "",
) -> Comparison:
    """Trains and measures several layers on the same data, with as many parameters each and under one budget.

    Args:
        config: as of `seriatim.train`, without layer and budget; its ``out`` is the comparison's folder.
        layers: names, ``"mamba+transformer"`` for a stack that mixes two; for language models also ``"ngram"``.
        minutes: the budget: so long trains each (2 where none is given), or
        tokens: so many each reads, or
        steps: so many each makes.
        parameters: so many have all that are trained, within 2 %; a number or ``"1M"``. Without it, as many as the
            first of them has at the sizes of the configuration.
        seeds: so many runs of each.
        tune: so many learning rates are tried for each layer, in half of its budget.
        metric: the figure to rank by; None for the task's first.
        widths: widths of every layer, a row each (``lstm@32``), in place of equal parameters.
        overrides: dotted names to values, applied last.
        overwrite: replace the comparison that stands in the folder.
        reporter: who listens.
        command: that started it, to be shown in the report.

    Raises:
        InputError: whatever is wrong with the wishes, the configuration or the data, before anything is trained.
        TrainingError: no layer could be trained.
        Interrupted: a signal came; what is finished is kept, and `resume` goes on.
    """
    refuse_while_importing("seriatim.compare")
    wishes = Wishes(layers, minutes, tokens, steps, parameters, seeds, tune, metric, command, widths)
    plan = make_plan(config, wishes, overrides=overrides)
    refuse_unimportable(plan)
    out = plan_out(config, overrides) or default_out(plan.base.task, plan.base.data.train or "data")
    folder = check_folder(out, overwrite=overwrite)
    refuse_locked(folder)
    fit_plan(plan)
    with locked(folder):
        clear(check_folder(out, overwrite=overwrite))
        return Conduct(folder, plan, reporter).run()


def resume(
    folder: str | Path,
    *,
    layers: Sequence[str] | None = None,
    seeds: int | None = None,
    widths: Sequence[int] | None = None,
    reporter: ComparisonReporter | None = None,
) -> Comparison:
    """Goes on with a comparison: finished rows are kept, half-trained runs go on, what failed is tried again.

    Args:
        folder: of the comparison.
        layers: all there were and more; None for those there were.
        seeds: as many as there were or more.
        widths: all there were and more, of every layer.
        reporter: who listens.

    Raises:
        InputError: no comparison, one of another version, fewer layers or seeds than it has, or data that has changed.
    """
    folder = Path(folder)
    plan = read_plan(folder)
    refuse_unimportable(plan)
    check_data_named(plan)
    if widths is not None:
        layers = with_widths(layers or list(dict.fromkeys(map(bare, plan.layers))), widths)
    added = _extend(plan, layers, seeds)
    with locked(folder):
        check_runs(folder, plan)
        conduct = Conduct(folder, plan, reporter)
        conduct.read_rows()
        if added:
            fit_plan(plan, layers=added)
        elif not conduct.finished:
            read_data(plan)
        return conduct.run()


def refuse_unimportable(plan: Plan) -> None:
    """Raises InputError where a layer of the user's own could not be imported by the processes that train."""
    for name in own_layers(plan.layers, plan.base):
        origin_of(name)


def check_data_named(plan: Plan) -> None:
    """Raises InputError where the comparison's own configuration names data that must not be read unasked."""
    data, options = plan.base.data, plan.base.model.options
    named = {"data.train": data.train, "data.valid": data.valid, "data.test": data.test}
    named["model.options.vectors"] = options.get("vectors")
    for field, spec in named.items():
        if isinstance(spec, str):
            check_named_by_run(spec, field, downloads=True)


def plan_out(config: Config | Mapping[str, Any] | str | Path, overrides: Mapping[str, Any] | None) -> str | None:
    """The folder that a configuration names."""
    return resolve_config(config, overrides).out


def _extend(plan: Plan, layers: Sequence[str] | None, seeds: int | None) -> list[str]:
    """Adds layers and seeds to a plan; returns the layers that are new."""
    added: list[str] = []
    if layers is not None:
        wanted = check_layers(layers, plan.base.task)
        lost = next((layer for layer in plan.layers if layer not in wanted), None)
        if lost is not None:
            raise InputError(f"--layers: {lost} is in the comparison already; name all it has, and more behind them")
        added = [layer for layer in wanted if layer not in plan.layers]
        shared = share_options(wanted, plan.base.model.options, plan.base.task)
        sizes = {"hidden_size": plan.base.model.hidden_size, "embedding_size": plan.base.model.embedding_size}
        for layer in added:
            rate = default_rate(layer, plan.base)
            plan.sized[layer] = Sized(**sizes, options=shared[layer], learning_rate=rate)
            if (width := width_of(layer)) is not None:
                plan.sized[layer].hidden_size = width
        plan.layers = wanted
    if seeds is not None:
        wanted_seeds = seeds_from(plan.seeds[0], seeds)
        if len(wanted_seeds) < len(plan.seeds):
            raise InputError(f"--seeds: the comparison has {len(plan.seeds)} already; give as many or more")
        plan.seeds = wanted_seeds
    return added
