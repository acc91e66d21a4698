"""Compare layers on the same data under one budget: what `seriatim.compare` and the command do."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..config import ConfigSource
from ..layers.outside_code import AllowCode, Origin, refuse_while_importing, require_code
from ..processes.ranks import refuse_ranks
from ..storage.files import locked, refuse_locked
from ..storage.written_folders import COMPARISON, begin, finish_replacing, outer, place_of, recover
from ..training.run_files import check_out, check_place, files_read, refuse_overwriting
from .comparison_progress import ComparisonReporter
from .plan import check_runs, default_out, read_plan
from .planning import (
    ComparisonSettings,
    check_data_named,
    extend_plan,
    fit_plan,
    make_plan,
    read_data,
    register_references,
)
from .runner import Comparison as Comparison
from .runner import Runner
from .workers import open_workers


def compare(
    config: ConfigSource,
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
    overrides: Mapping[str, object] | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    cluster: str | None = None,
    reporter: ComparisonReporter | None = None,
    command: str = "",
) -> Comparison:
    """Train and measure several layers on the same data, with equal parameters and under one budget.

    Args:
        config: as for `seriatim.train`, without layer and budget; ``out`` is the folder of the comparison.
        layers: names of layers. ``"mamba+transformer"`` is a stack of both, ``"lstm@32"`` a layer of width 32, and
            ``"ngram"`` an n-gram model, for language models.
        minutes: minutes of training of each layer, 2 by default; or give
        tokens: the number of tokens that each layer reads, or
        steps: the number of steps of each layer.
        parameters: number of parameters of each trained layer, within 2 %, such as ``"1M"``; by default that of the
            first layer with the configured sizes.
        seeds: runs of each layer.
        tune: learning rates to try for each layer, in half of its budget.
        metric: the figure to rank by; by default the first headline of the task.
        widths: widths at which every layer is trained, one row each (``lstm@32``), instead of equal parameters.
        overrides: dotted names of fields to values, which replace those of the configuration.
        overwrite: whether to replace a comparison in the folder, as soon as a layer of the new one is finished.
        workers: how many rows, and trials of learning rates, are trained at the same time on this machine, each with
            its share of the threads; 1 by default.
        cluster: address of the scheduler of a Dask cluster, such as ``tcp://host:8786``. Each of its workers trains one
            row at a time. They see the data and the folder of the comparison at the same paths.
        reporter: listens to the comparison.
        command: the command line, for the report.

    Returns:
        The results. The folder also holds the runs, and the report if it is written.

    Raises:
        InputError: the arguments, the configuration or the data are invalid, or the cluster cannot be used; nothing has
            been trained.
        TrainingError: no layer could be trained.
        Interrupted: a signal came; finished rows are kept, and `resume` continues.
    """
    refuse_while_importing("seriatim.compare")
    refuse_ranks("a comparison", "--workers or --cluster")
    settings = ComparisonSettings(layers, minutes, tokens, steps, parameters, seeds, tune, metric, widths, command)
    plan = make_plan(config, settings, overrides=overrides)
    plan.record_code()

    # Nothing is written before all that can be refused has been checked.
    out = plan.base.out or default_out(plan.base.task, plan.base.data.train or "data")
    folder = check_place(out)
    refuse_overwriting(folder, (str(config) if isinstance(config, str | Path) else None, *files_read(plan.base)))
    refuse_locked(folder)
    check_out(out, overwrite=overwrite, form=COMPARISON)
    with open_workers(workers, cluster) as opened:
        fit_plan(plan)
        with locked(folder), opened.session(folder, plan):
            check_out(out, overwrite=overwrite, form=COMPARISON)
            place = begin(folder, COMPARISON, lambda folder: (folder / "runs").exists())
            return Runner(place, plan, reporter, opened).run()


def resume(
    folder: str | Path,
    *,
    layers: Sequence[str] | None = None,
    seeds: int | None = None,
    widths: Sequence[int] | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    reporter: ComparisonReporter | None = None,
    allow_code: AllowCode = False,
) -> Comparison:
    """Continue a comparison: keep finished rows, continue half-trained runs, and repeat what failed.

    Args:
        folder: of the comparison.
        layers: the layers of the comparison and new ones; None for no new ones.
        seeds: as many runs as before or more.
        widths: the widths of the comparison and new ones, for every layer.
        workers: as for `compare`; the number may differ from that of the beginning.
        cluster: as for `compare`.
        reporter: listens to the comparison.
        allow_code: whether code outside the library may be imported; see `seriatim.load`.

    Raises:
        InputError: no comparison, one of another version, fewer layers or seeds than it has, or data that has changed.
        TrainingError, Interrupted: as for `compare`.
    """
    refuse_ranks("a comparison", "--workers or --cluster")
    folder = outer(Path(folder))
    finish_replacing(folder)
    place = place_of(folder, COMPARISON)
    if place != folder:
        kept = f"the one that is there stays until a layer of this one is finished (to forget this one, remove {place})"
        warnings.warn(f"{folder}: continues the comparison that is to replace the one there; {kept}", stacklevel=2)

    # Code of the user's own is imported before the layers are checked, and not without permission.
    plan = read_plan(place)
    if layers is not None:
        layers = register_references(layers)
    origins = [Origin.from_record(record, place / "comparison.yaml") for record in plan.code]
    by_name = {origin.name: origin for origin in origins}
    require_code(folder, plan.outside_layers(), allow_code=allow_code, origins=by_name)
    check_data_named(plan)
    added = extend_plan(plan, layers, widths, seeds)
    plan.record_code()

    # From here on the folder is written. Data are read again only if something is left to train.
    with open_workers(workers, cluster) as opened, locked(folder), opened.session(folder, plan):
        recover(folder)
        place = place_of(folder, COMPARISON)
        check_runs(place, plan)
        runner = Runner(place, plan, reporter, opened)
        finished = runner.read_rows()
        if added:
            fit_plan(plan, layers=added)
        elif not finished:
            read_data(plan)
        return runner.run()
