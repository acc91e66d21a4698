"""What a training by gradient descent measures and writes: metrics, weights and checkpoints, on one rank or several.

Every rank calls these methods together; the leader measures and writes.
"""

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..config import Training
from ..core.errors import TrainingError
from ..core.state import State
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Metrics
from ..layers.experts import count_experts
from ..models.probabilities import NotFiniteError
from ..storage.weights import save_weights
from ..storage.written_folders import outer
from .averaging import WeightAverage
from .carried_states import join_carried
from .checkpoints import MAX_CHECKPOINTS, save_checkpoint, saving
from .estimator import OTHER_BYTES, Estimator
from .hardware import environment
from .metrics_log import MetricsLog
from .optimizers import MOMENTS, check_parameters, optimizer_tensors
from .parallel import Parallel
from .reporting import Record
from .task import AnyTask


class RecordedTraining(Estimator):
    """The part of `seriatim.training.loop.Trainer` that measures and writes."""

    task: AnyTask
    config: Training
    parallel: Parallel
    optimizer: torch.optim.Optimizer
    average: WeightAverage | None
    state: State | None
    has_rows: bool  # whether the carried state is that of this rank's own sequences
    log: MetricsLog | None  # of the leader
    began: float  # when the training would have begun if it had never been interrupted, in seconds

    @classmethod
    def space_needed(cls, model: nn.Module, vocabulary: Vocabulary, config: Training) -> int:
        """Return the bytes that a run takes at most: while a further checkpoint and new weights are written."""
        weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        checkpoint = weights * (1 + MOMENTS[config.optimizer] + bool(config.average or config.average_after))
        return (MAX_CHECKPOINTS + 1) * checkpoint + 2 * weights + OTHER_BYTES

    def environment(self) -> dict[str, str]:
        """Return what the last bits of the training depend on; see `seriatim.training.hardware.environment`."""
        return environment(self.device) | {"ranks": str(self.ranks.count)}

    def make_average(self) -> WeightAverage | None:
        """Return an average of the weights that begins with the present ones; None if none is taken yet."""
        if self.progress.averaged_from >= 0:
            return WeightAverage(self.model, None, first=self.progress.averaged_from)
        return WeightAverage(self.model, self.config.average) if self.config.average else None

    def data_keys(self) -> tuple[str, str]:
        """Return the keys of the training data and of the held-out data; the latter is empty if there is none."""
        return self.job.train.key, "" if self.job.valid is None else self.job.valid.key

    def write_metrics(self) -> None:
        """Write a line of `metrics.jsonl` with the mean loss since the last one."""
        progress = self.progress
        if progress.loss_terms:
            mean, speed = progress.loss_sum / progress.loss_terms, progress.tokens / progress.training_seconds
            timing = {"seconds": progress.seconds, "tokens_per_second": speed}
            self.write({"kind": "train", "step": progress.step, **progress.last, "loss": mean, **timing})
            progress.loss_sum, progress.loss_terms = 0.0, 0

    def validate(self) -> None:
        """Measure the held-out data unless this step did, and save the weights if the configuration keeps them."""
        progress = self.progress
        if progress.evaluated_at == progress.step:
            return
        progress.evaluated_at = progress.step
        if self.job.valid is None:
            self.save_weights()
            return
        metrics: Metrics = {}  # filled on the leader
        experts: Record = {}
        with self.averaged():
            model = self.parallel.whole_model()
            value, loss = self.ranks.on_leader(lambda: self.measure(model, metrics, experts))
        best = progress.record_validation(value, loss, self.config, more_is_better=self.task.more_is_better)
        keep = best or self.config.keep == "last"
        self.metrics = metrics if keep else None
        if keep:
            self.save_weights()
        progress.seconds = time.perf_counter() - self.began
        place = {"step": progress.step, "epoch": progress.epoch, "seconds": progress.seconds}
        record = {"kind": "valid", **place, **metrics, **experts}
        self.write(record)
        self.report("validation", {**record, "best": best})
        if progress.begins_averaging(self.config):
            self.average = self.make_average()

    def measure(self, model: nn.Module, metrics: Metrics, experts: Record) -> tuple[float, float]:
        """Measure the held-out data, and return the metric that selects the weights, and the loss.

        The metrics are added to ``metrics``, and how often each expert was chosen to ``experts``.
        """
        try:
            with count_experts(model) as counts:
                metrics |= self.task.validate(model, self.job.valid)
            value, loss = float(metrics[self.task.selection_metric(self.job.vocabulary)]), float(metrics["loss"])
        except NotFiniteError:
            value = loss = math.nan
        if not (math.isfinite(value) and math.isfinite(loss)):
            raise TrainingError(
                f"step {self.progress.step}: the held-out loss is {loss}; go on from the last checkpoint "
                "with a lower training.learning_rate"
            )
        if counts:
            experts["experts"] = {name: numbers.tolist() for name, numbers in counts.items()}
        return value, loss

    def write(self, record: Record) -> None:
        """Write a line of `metrics.jsonl`."""
        if self.log is not None:
            with saving(self.job.folder):
                self.log.write(record)

    def averaged(self) -> AbstractContextManager[None]:
        """Give the model the average of its weights for the duration, if the configuration asks for one."""
        return nullcontext() if self.average is None else self.average.applied()

    def save_weights(self) -> None:
        """Write the present weights, or their average, as those of the run."""
        with self.averaged():
            model = self.parallel.whole_model()
            self.ranks.on_leader(lambda: self.write_weights(model))

    def write_weights(self, model: nn.Module) -> None:
        """Write the weights of a model as those of the run."""
        check_parameters(model, step=self.progress.step)
        with saving(self.job.folder):
            save_weights(model, self.job.path("model.safetensors"), self.metadata)
            if self.progress.step and self.job.folder != outer(self.job.folder):
                log, self.log = self.log, None  # some systems rename no folder with open files
                if log is not None:
                    log.close()
                self.job.settle()
                if log is not None:
                    self.log = MetricsLog(self.job.folder, step=self.progress.step, records=log.records)

    def checkpoint(self) -> None:
        """Write a checkpoint, and without held-out data also the weights of the run."""
        model, parallel = self.parallel.whole_model(), self.parallel
        moments = parallel.whole(optimizer_tensors(self.model, self.optimizer))
        average = None if self.average is None else parallel.whole(self.average.tensors)
        state = join_carried(self.state, self.task.carried_state(model), self.ranks, has_rows=self.has_rows)
        self.ranks.on_leader(lambda: self.write_checkpoint(model, moments, average, state))
        if self.job.valid is None:
            self.save_weights()

    def write_checkpoint(
        self,
        model: nn.Module,
        moments: dict[str, Tensor],
        average: dict[str, Tensor] | None,
        state: State | None,
    ) -> None:
        """Write a checkpoint of the whole training; the tensors are those of all ranks together."""
        check_parameters(model, step=self.progress.step)
        train, held_out = self.data_keys()
        progress = replace(self.progress, data=train, held_out=held_out, environment=self.environment())
        assert self.log is not None
        with saving(self.job.folder):
            self.log.flush()
            progress.records = self.log.records
            save_checkpoint(self.job.path("checkpoints"), model, moments, state, progress, self.metadata, average)
