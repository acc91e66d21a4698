"""The training loop: teacher forcing, truncated backpropagation through time, one optimizer step after another.

Everything random depends only on the seed and on the step or epoch, so that a training that resumes from a checkpoint
continues with the same bits.
"""

import math
import shlex
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..config import Training
from ..core.auxiliary_losses import collect
from ..core.errors import InputError, TrainingError
from ..core.interruption import Interrupted, noted
from ..core.state import State, map_state
from ..data.vocabulary import Vocabulary
from ..layers.experts import count_experts
from ..layers.origins import CODE
from ..storage.weights import save_weights, unusable
from .averaging import WeightAverage
from .checkpoints import MAX_CHECKPOINTS, load_checkpoint, restore_average, save_checkpoint, saving
from .estimator import OTHER_BYTES, Estimator, Job
from .hardware import describe_changes, environment
from .metrics_log import MetricsLog
from .optimizers import (
    MOMENTS,
    check_parameters,
    clip_gradients,
    finite_state,
    learning_rate,
    make_optimizer,
    nonfinite_problem,
)
from .reporting import Record, Reporter
from .task import AnyTask
from .task_data import TaskBatch
from .training_state import Progress

LOG_EVERY = 10
"""Number of steps that one line of `metrics.jsonl` averages."""
MAX_SKIPPED = 10
"""Number of consecutive steps that are skipped before the training gives up."""


class Trainer(Estimator):
    """Trains the model of a job by gradient descent; see `Estimator`."""

    resumable = True
    work_unit = "steps"

    def __init__(self, job: Job[Any], device: torch.device, reporter: Reporter, metadata: dict[str, str]) -> None:
        super().__init__(job, device, reporter, metadata)
        self.task: AnyTask = job.task
        self.config: Training = job.task.config.training
        self.model = job.model.to(device)
        self.optimizer = make_optimizer(self.model, self.config)
        self.progress = Progress()
        self.average = self.make_average()
        self.dtype = next(self.model.parameters()).dtype
        self.state: State | None = None
        self.windows = job.batches.windows(job.batches.shuffled(self.config.seed, 0))

    @classmethod
    def space_needed(cls, model: nn.Module, vocabulary: Vocabulary, config: Training) -> int:
        """Return the bytes that a run takes at most: while a further checkpoint and new weights are written."""
        weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        checkpoint = weights * (1 + MOMENTS[config.optimizer] + bool(config.average or config.average_after))
        return (MAX_CHECKPOINTS + 1) * checkpoint + 2 * weights + OTHER_BYTES

    def start(self) -> None:
        """Do nothing: the job's model has its initial parameters."""

    def resume(self) -> None:
        """Restore the last checkpoint; see `Estimator.resume`.

        Warns:
            UserWarning: the best weights are lost, or the machine differs, so that results differ by rounding.
        """
        like = self.task.carried_state(self.model)
        folder = self.job.folder / "checkpoints"
        self.state, self.progress = load_checkpoint(folder, self.model, self.optimizer, like, self.metadata)
        self.average = self.make_average()
        if self.average is not None:
            restore_average(folder, self.average)
        progress, data = self.progress, self.task.config.data
        names, keys = ((data.train, "text"), (data.valid, "held-out text")), (progress.data, progress.held_out)
        for (name, text), before, now in zip(names, keys, self.data_keys(), strict=True):
            if before is not None and before != now:
                raise InputError(f"{name}: not the {text} that the run began with; restore it, or start a new training")
        if progress.best_valid is not None and (reason := unusable(self.job.folder / "model.safetensors")):
            warnings.warn(f"{reason}; the search for the best weights begins again", stacklevel=2)
            progress.best_valid, progress.evaluated_at = None, -1
        if changes := describe_changes(progress.environment, environment(self.device)):
            warnings.warn(f"{self.job.folder}: resumes with {changes}; results will differ by rounding", stacklevel=2)

    def make_average(self) -> WeightAverage | None:
        """Return an average of the weights that begins with the present ones; None if none is taken yet."""
        if self.progress.averaged_from >= 0:
            return WeightAverage(self.model, None, first=self.progress.averaged_from)
        return WeightAverage(self.model, self.config.average) if self.config.average else None

    def data_keys(self) -> tuple[str, str]:
        """Return the keys of the training data and of the held-out data; the latter is empty if there is none."""
        return self.job.train.key, "" if self.job.valid is None else self.job.valid.key

    def fit(self) -> Progress:
        """Train until the budget is spent or early stopping ends the training.

        Raises:
            Interrupted: SIGINT or SIGTERM came; a checkpoint of the last step is written.
        """
        self.model.train()
        self.log = MetricsLog(self.job.folder, step=self.progress.step, records=self.progress.records)
        self.began = time.perf_counter() - self.progress.seconds
        try:
            if self.progress.step == 0:
                self.checkpoint()
            with noted() as signal:
                self.train(signal)
                self.ended = self.nothing_left()
                self.validate()
                self.write_metrics()
                self.progress.seconds = time.perf_counter() - self.began
                self.checkpoint()
                self.stop_at(signal())
        finally:
            self.log.close()
        return self.progress

    def train(self, signal: Callable[[], int | None]) -> None:
        """Run epochs of steps until the training is finished or ``signal`` returns a signal."""
        while not self.nothing_left():
            for batches in self.steps_of_epoch():
                self.step(batches)
                self.after_step()
                if self.nothing_left():
                    break
                if (number := signal()) is not None:
                    self.checkpoint()
                    self.stop_at(number)
            else:
                self.progress.epoch, self.progress.window = self.progress.epoch + 1, 0
                self.validate()
                self.checkpoint()

    def stop_at(self, number: int | None) -> None:
        """Raise `Interrupted` if a signal came; the state must be saved."""
        if number is not None:
            folder = self.job.folder
            command = ["seriatim", "train", "--resume", str(folder), *["--allow-code"] * (folder / CODE).exists()]
            message = f"interrupted at step {self.progress.step}, which is saved"
            raise Interrupted(message, number, go_on=shlex.join(command))

    def nothing_left(self) -> str:
        """Return why the training has ended: a budget, or early stopping; an empty string if it has not."""
        return self.progress.ended(self.config, self.windows)

    def steps_of_epoch(self) -> Iterator[list[TaskBatch]]:
        """Yield the batches of each step in the rest of the epoch, ``training.accumulate`` at a time."""
        groups = self.job.batches.shuffled(self.config.seed, self.progress.epoch)
        step: list[TaskBatch] = []
        for batch in self.job.batches.read(groups, skip=self.progress.window):
            step.append(batch)
            if len(step) == self.config.accumulate:
                yield step
                step = []
        if step:
            yield step

    def step(self, batches: list[TaskBatch]) -> None:
        """Take one optimizer step on the mean loss over the terms of all its batches."""
        progress, started = self.progress, time.perf_counter()
        torch.manual_seed(self.config.seed * 1_000_003 + progress.step)
        share = progress.spent(self.config, self.windows)
        rate = learning_rate(self.config, step=progress.step, progress=share, annealed=progress.annealed)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        terms = sum(batch.terms for batch in batches)
        self.optimizer.zero_grad(set_to_none=True)
        self.auxiliary = 0.0
        losses = [self.backward(batch, terms, share) for batch in batches]
        norm = clip_gradients(self.model, self.config.clip)
        problem = nonfinite_problem(self.model, losses, norm)
        progress.step += 1
        progress.window += len(batches)
        progress.tokens += sum(batch.tokens for batch in batches)
        progress.last = {
            "kind": "train",
            "step": progress.step,
            "epoch": progress.epoch,
            "tokens": progress.tokens,
            "loss": sum(losses) / terms,
            "learning_rate": rate,
            "gradient_norm": norm,
        }
        if self.auxiliary:
            progress.last["auxiliary"] = self.auxiliary
        if problem is not None:
            self.skip(*problem, batches)
        else:
            self.optimizer.step()
            if self.average is not None:
                self.average.update(progress.step)
            progress.skipped_in_a_row = 0
            progress.loss_sum += sum(losses)
            progress.loss_terms += terms
        now = time.perf_counter()
        progress.training_seconds += now - started
        progress.seconds = now - self.began

    def backward(self, batch: TaskBatch, terms: int, share: float) -> float:
        """Add the gradient of the loss, divided by ``terms``, carry the state on, and return the loss in nats."""
        start = None if batch.fresh else self.state
        precision = torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16")
        with precision, collect() as contributions:
            loss, state = self.task.loss(self.model, batch, start, progress=share)
        auxiliary = batch.terms / terms * sum(contributions, torch.zeros((), device=self.device))
        (loss / terms + auxiliary).backward()  # type: ignore[no-untyped-call]
        self.auxiliary += auxiliary.item()
        self.state = None if state is None else map_state(self.carry, state)
        return loss.item()

    def carry(self, leaf: Tensor) -> Tensor:
        """Detach a leaf of the state from the graph and convert it to the type of the parameters."""
        return leaf.detach().to(self.dtype) if leaf.is_floating_point() else leaf.detach()

    def skip(self, problem: str, indices: range, batches: list[TaskBatch]) -> None:
        """Skip a step that the batches at ``indices`` made infinite or NaN, or raise TrainingError."""
        progress = self.progress
        first, epoch = progress.window - len(batches) + 1, progress.epoch + 1
        names = [f"batch {first + i} of epoch {epoch} ({self.task.name_batch(batches[i])})" for i in indices]
        problem = f"{problem} in {', '.join(names)}"
        reason = f"step {progress.step}: {problem}"
        rate = progress.last["learning_rate"]
        advice = f"lower training.learning_rate (now {rate:g}), set training.clip, or look at that data"
        if self.config.nonfinite == "stop":
            raise TrainingError(f"{reason}; {advice} (training.nonfinite skip leaves such steps out)")
        progress.skipped, progress.skipped_in_a_row = progress.skipped + 1, progress.skipped_in_a_row + 1
        if progress.skipped_in_a_row >= MAX_SKIPPED:
            raise TrainingError(f"{reason}, as in the {MAX_SKIPPED - 1} steps before, which were skipped; {advice}")
        self.state = finite_state(self.state)
        self.write({**progress.last, "kind": "skipped", "reason": problem})
        warnings.warn(f"{reason}; the step is skipped", stacklevel=2)

    def after_step(self) -> None:
        """Report the step, and log, validate and write a checkpoint if they are due."""
        progress = self.progress
        speed = progress.tokens / max(progress.training_seconds, 1e-9)
        if progress.step % LOG_EVERY == 0:
            self.write_metrics()
        share = min(progress.spent(self.config, self.windows), 1.0)
        left = progress.seconds * (1 - share) / share if share else None
        self.report("step", {**progress.last, "tokens_per_second": speed, "progress": share, "seconds_left": left})
        if self.config.evaluate_every and progress.step % self.config.evaluate_every == 0:
            self.validate()
        if progress.step % self.config.checkpoint_every == 0:
            self.checkpoint()

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
        with self.averaged(), count_experts(self.model) as experts:
            metrics = self.task.validate(self.model, self.job.valid)
        value, loss = float(metrics[self.task.selection_metric(self.job.vocabulary)]), float(metrics["loss"])
        if not (math.isfinite(value) and math.isfinite(loss)):
            raise TrainingError(
                f"step {progress.step}: the held-out loss is {metrics['loss']}; go on from the last checkpoint with a "
                "lower training.learning_rate"
            )
        best = progress.record_validation(value, loss, self.config, more_is_better=self.task.more_is_better)
        keep = best or self.config.keep == "last"
        self.metrics = metrics if keep else None
        if keep:
            self.save_weights()
        progress.seconds = time.perf_counter() - self.began
        place = {"step": progress.step, "epoch": progress.epoch, "seconds": progress.seconds}
        record = {"kind": "valid", **place, **metrics}
        if experts:
            record["experts"] = {name: counts.tolist() for name, counts in experts.items()}
        self.write(record)
        self.report("validation", {**record, "best": best})
        if progress.begins_averaging(self.config):
            self.average = self.make_average()

    def write(self, record: Record) -> None:
        """Write a line of `metrics.jsonl`."""
        with saving(self.job.folder):
            self.log.write(record)

    def averaged(self) -> AbstractContextManager[None]:
        """Give the model the average of its weights for the duration, if the configuration asks for one."""
        return nullcontext() if self.average is None else self.average.applied()

    def save_weights(self) -> None:
        """Write the present weights, or their average, as those of the run."""
        check_parameters(self.model, step=self.progress.step)
        with self.averaged(), saving(self.job.folder):
            save_weights(self.model, self.job.folder / "model.safetensors", self.metadata)

    def checkpoint(self) -> None:
        """Write a checkpoint, and without held-out data also the weights of the run."""
        check_parameters(self.model, step=self.progress.step)
        train, held_out = self.data_keys()
        progress = replace(self.progress, data=train, held_out=held_out, environment=environment(self.device))
        with saving(self.job.folder):
            self.log.flush()
            progress.records = self.log.records
            folder = self.job.folder / "checkpoints"
            parts = self.model, self.optimizer, self.state, progress, self.metadata, self.average
            save_checkpoint(folder, *parts)
        if self.job.valid is None:
            self.save_weights()
