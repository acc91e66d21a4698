"""The training loop: teacher forcing, truncated backpropagation through time, one optimizer step after another.

Everything random depends only on the seed and on the step or epoch, so that a training that resumes from a checkpoint
continues with the same bits.
"""

import math
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from ..config import Training
from ..core.errors import InputError, TrainingError
from ..core.state import State
from ..data.batching import IdleBatch
from ..layers.origins import CODE
from ..processes.signals import Interrupted, signals_deferred
from ..storage.weights import load_tensors, unusable
from ..storage.written_folders import outer
from .carried_states import split_carried
from .checkpoints import (
    AVERAGE,
    OPTIMIZER,
    last_complete,
    load_checkpoint,
)
from .hardware import describe_changes
from .metrics_log import MetricsLog
from .optimizers import (
    clip_gradients,
    finite_state,
    learning_rate,
    make_optimizer,
    nonfinite_problem,
    restore_optimizer,
)
from .parallel import make_parallel
from .recorded_training import RecordedTraining
from .task import AnyTask
from .task_data import TaskBatch
from .training_state import Progress

LOG_EVERY = 10
"""Number of steps that one line of `metrics.jsonl` averages."""
MAX_SKIPPED = 10
"""Number of consecutive steps that are skipped before the training gives up."""
RANK_SEED = 7_919
"""Difference between the seeds of two ranks in one step, so that dropout differs between them."""


class Trainer(RecordedTraining):
    """Trains the model of a job by gradient descent; see `Estimator`."""

    resumable = True
    divides = True
    work_unit = "steps"

    def prepare(self) -> None:
        """Move the model to its device; see `Estimator.prepare`."""
        job = self.job
        self.task: AnyTask = job.task
        self.config: Training = job.task.config.training
        self.model = job.model.to(self.device)
        self.progress = Progress()
        self.state: State | None = None
        self.has_rows = True  # whether the carried state is that of this rank's own sequences
        self.log: MetricsLog | None = None  # of the leader
        self.signal: Callable[[], int | None] = lambda: None
        self.signal_number: int | None = None  # of a signal that any rank has received
        self.windows = job.batches.windows(job.batches.shuffled(self.config.seed, 0))

    def start(self) -> None:
        """Make the optimizer, and divide the work among the ranks; the job's model has its initial parameters."""
        self.parallel = make_parallel(self.task, self.model, self.config, self.ranks)
        self.optimizer = make_optimizer(self.model, self.config)
        self.average = self.make_average()

    def resume(self) -> None:
        """Restore the last checkpoint; see `Estimator.resume`.

        Warns:
            UserWarning: the best weights are lost, or the machine differs, so that results differ by rounding.
        """
        like = self.task.carried_state(self.model)
        with self.ranks.one_first():  # the leader renames damaged checkpoints
            last = last_complete(self.job.folder / "checkpoints")
        state, self.progress = load_checkpoint(last, self.model, like, self.metadata)
        self.start()
        self.state, self.has_rows = split_carried(state, self.ranks.share)
        restore_optimizer(self.model, self.optimizer, load_tensors(last / OPTIMIZER), self.parallel.place)
        if self.average is not None and (last / AVERAGE).exists():
            self.average.restore(load_tensors(last / AVERAGE), self.parallel.place)
        progress, data = self.progress, self.task.config.data
        names, keys = ((data.train, "text"), (data.valid, "held-out text")), (progress.data, progress.held_out)
        for (name, text), before, now in zip(names, keys, self.data_keys(), strict=True):
            if before is not None and before != now:
                raise InputError(f"{name}: not the {text} that the run began with; restore it, or start a new training")
        if progress.best_valid is not None and (reason := unusable(self.job.folder / "model.safetensors")):
            warnings.warn(f"{reason}; the search for the best weights begins again", stacklevel=2)
            progress.best_valid, progress.evaluated_at = None, -1
        if changes := describe_changes(progress.environment, self.environment()):
            warnings.warn(f"{self.job.folder}: resumes with {changes}; results will differ by rounding", stacklevel=2)

    def fit(self) -> Progress:
        """Train until the budget is spent or early stopping ends the training.

        Raises:
            Interrupted: SIGINT or SIGTERM came; a checkpoint of the last step is written.
        """
        self.model.train()
        if self.ranks.leads:
            folder = self.job.path("metrics.jsonl").parent
            self.log = MetricsLog(folder, step=self.progress.step, records=self.progress.records)
        self.began = time.perf_counter() - self.progress.seconds
        try:
            if self.progress.step == 0:
                self.checkpoint()
            with signals_deferred() as self.signal:
                self.train()
                self.ended = self.nothing_left()
                self.validate()
                self.write_metrics()
                self.progress.seconds = time.perf_counter() - self.began
                self.checkpoint()
                self.agree()
                self.stop_if_signalled()
        finally:
            if self.log is not None:
                self.log.close()
        return self.progress

    def train(self) -> None:
        """Run epochs of steps until the training is finished or a signal has come."""
        while not self.nothing_left():
            for batches in self.steps_of_epoch():
                self.step(batches)
                self.after_step()
                self.agree()
                if self.nothing_left():
                    break
                if self.signal_number is not None:
                    self.checkpoint()
                    self.stop_if_signalled()
            else:
                self.progress.epoch, self.progress.window = self.progress.epoch + 1, 0
                self.validate()
                self.checkpoint()
                self.agree()

    def agree(self) -> None:
        """Take the time of the leader, and the signal that any rank has received, on all ranks."""
        progress = self.progress
        numbers = [self.signal() or 0, progress.seconds, progress.training_seconds]
        together = self.ranks.gather(numbers)
        self.signal_number = int(together[:, 0].max()) or None
        progress.seconds, progress.training_seconds = together[0, 1:].tolist()

    def stop_if_signalled(self) -> None:
        """Raise `Interrupted` if a signal has come; the state must be saved."""
        if self.signal_number is not None:
            folder, with_code = str(outer(self.job.folder)), (self.job.folder / CODE).exists()
            command = ["seriatim", "train", "--resume", folder, *["--allow-code"] * with_code]
            message = f"interrupted at step {self.progress.step}, which is saved"
            raise Interrupted(message, self.signal_number, go_on=shlex.join(command))

    def nothing_left(self) -> str:
        """Return why the training has ended: a budget, or early stopping; an empty string if it has not."""
        return self.progress.ended(self.config, self.windows)

    def steps_of_epoch(self) -> Iterator[list[TaskBatch]]:
        """Yield this rank's share of the batches of each step in the rest of the epoch."""
        groups = self.job.batches.shuffled(self.config.seed, self.progress.epoch)
        step: list[TaskBatch] = []
        for batch in self.job.batches.read_share(groups, self.ranks.share, skip=self.progress.window):
            step.append(batch)
            if len(step) == self.config.accumulate:
                yield step
                step = []
        if step:
            yield step

    def step(self, batches: list[TaskBatch]) -> None:
        """Take one optimizer step on the mean loss over the terms of all its batches, of all ranks."""
        progress, started = self.progress, time.perf_counter()
        seed = self.config.seed * 1_000_003 + progress.step + RANK_SEED * self.ranks.index
        # torch.manual_seed would format the call stack for every kind of device that is not in use, which takes 0.2 ms.
        torch.default_generator.manual_seed(seed)
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed_all(seed)
        share = progress.spent(self.config, self.windows)
        rate = learning_rate(self.config, step=progress.step, progress=share, annealed=progress.annealed)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        counts = [sum(batch.terms for batch in batches), sum(batch.tokens for batch in batches)]
        terms, tokens = map(int, self.ranks.gather(counts).sum(0))
        self.optimizer.zero_grad(set_to_none=True)
        parts = [self.backward(batch, terms, share, is_last=batch is batches[-1]) for batch in batches]
        norm = clip_gradients(self.model, self.config.clip)
        own_problem = nonfinite_problem(self.model, [loss for loss, _ in parts], norm)
        severity = 0 if own_problem is None else 1 if math.isfinite(sum(loss for loss, _ in parts)) else 2
        results = self.ranks.gather([*np.sum(parts, axis=0), severity])
        loss, auxiliary = results[:, :2].sum(0).tolist()
        problem = self.describe_problem(batches, own_problem, results[:, 2])
        progress.step += 1
        progress.window += len(batches)
        progress.tokens += tokens
        progress.last = {
            "kind": "train",
            "step": progress.step,
            "epoch": progress.epoch,
            "tokens": progress.tokens,
            "loss": loss / terms,
            "learning_rate": rate,
            "gradient_norm": norm,
        }
        if auxiliary:
            progress.last["auxiliary"] = auxiliary
        if problem:
            self.skip(problem)
        else:
            self.optimizer.step()
            if self.average is not None:
                self.average.update(progress.step)
            progress.skipped_in_a_row = 0
            progress.loss_sum += loss
            progress.loss_terms += terms
        now = time.perf_counter()
        progress.training_seconds += now - started
        progress.seconds = now - self.began

    def backward(self, batch: TaskBatch, terms: int, share: float, *, is_last: bool) -> tuple[float, float]:
        """Add the gradient of the loss, divided by ``terms``, and carry the state on.

        Returns:
            The loss in nats, and the auxiliary loss as it is added to the mean over ``terms``.
        """
        start, weight = None if batch.fresh else self.state, 1.0
        self.has_rows = not isinstance(batch, IdleBatch) or batch.has_rows
        if isinstance(batch, IdleBatch):
            batch, weight = batch.batch, 0.0
        with self.parallel.accumulating(is_last=is_last):
            loss, contribution, self.state = self.parallel(batch, start, share)
            auxiliary = batch.terms / terms * contribution
            scale = weight * self.ranks.count  # gradients are averaged over the ranks
            (scale * (loss / terms + auxiliary)).backward()  # type: ignore[no-untyped-call]
        return weight * loss.item(), weight * auxiliary.item()

    def describe_problem(
        self, batches: Sequence[TaskBatch], problem: tuple[str, range] | None, severities: np.ndarray
    ) -> str:
        """Return what is NaN or infinite in a step, and in which batches; an empty string if nothing is.

        Args:
            batches: of this rank.
            problem: the result of `nonfinite_problem` on this rank.
            severities: of the problem of each rank ``(ranks,)``: 0 if it has none, 2 if its loss is not finite.
        """
        if not severities.any():
            return ""
        text, indices = problem or ("", range(0))
        first, epoch = self.progress.window + 1, self.progress.epoch + 1
        names = [f"batch {first + i} of epoch {epoch} ({self.task.name_batch(batches[i])})" for i in indices]
        texts = self.ranks.gather_bytes(f"{text} in {', '.join(names)}".encode())
        return texts[int(severities.argmax())].decode()

    def skip(self, problem: str) -> None:
        """Skip a step in which something is infinite or NaN, or raise TrainingError."""
        progress = self.progress
        reason = f"step {progress.step}: {problem}"
        rate = progress.last["learning_rate"]
        advice = f"lower training.learning_rate (now {rate:g}), set training.clip, or look at that data"
        if self.config.nonfinite == "stop":
            raise TrainingError(f"{reason}; {advice} (training.nonfinite skip leaves such steps out)")
        progress.skipped, progress.skipped_in_a_row = progress.skipped + 1, progress.skipped_in_a_row + 1
        if progress.skipped_in_a_row >= MAX_SKIPPED:
            raise TrainingError(f"{reason}, as in the {MAX_SKIPPED - 1} steps before, which were skipped; {advice}")
        state = finite_state(self.state)
        lost = self.ranks.gather([state is None and self.state is not None])
        self.state = None if lost.any() else state  # on all ranks, as in one process
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
