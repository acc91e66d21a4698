"""The training loop: teacher forcing, truncated backpropagation through time, one optimizer step after another.

Everything random depends only on the seed and on the step or epoch, so that a training that resumes from a checkpoint
continues with the same bits; docs/reliability.md names the limits, such as a budget in minutes. Of a task, the loop
knows the objective alone.
"""

import math
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from ..core.errors import MismatchError, TrainingError
from ..core.json_object import JsonObject
from ..core.state import State
from ..data.batches import IdleBatch
from ..layers.experts import count_experts
from ..layers.outside_code import CODE
from ..models.probabilities import NotFiniteError
from ..processes.ranks import Ranks
from ..processes.signals import Interrupted, signals_deferred
from ..storage.weights import load_tensors, unusable
from ..storage.written_folders import outer
from ..tasks.task import TaskBatch
from .checkpoints import (
    AVERAGE,
    OPTIMIZER,
    Progress,
    RunWriter,
    join_carried,
    last_complete,
    load_checkpoint,
    split_carried,
)
from .hardware import describe_changes, environment
from .optimizers import (
    WeightAverage,
    clip_gradients,
    finite_state,
    learning_rate,
    make_optimizer,
    nonfinite_problem,
    optimizer_tensors,
    restore_optimizer,
)
from .parallel import make_parallel
from .reporting import SafeReporter
from .settle import Settled

LOG_EVERY = 10
"""Number of steps that one line of `metrics.jsonl` averages."""
MAX_SKIPPED = 10
"""Number of consecutive steps that are skipped before the training gives up."""
RANK_SEED = 7_919
"""Difference between the seeds of two ranks in one step, so that dropout differs between them."""


class Trainer:
    """Trains a model by gradient descent, and writes its weights and checkpoints.

    The ranks share the work; only rank 0 reports and writes.

    Attributes:
        model: on the device; has its parameters once `start` or `resume` has returned.
        progress: what is done so far.
        metrics: the last validation if it measured the weights of the run.
        ended: why the training ended, in words.
    """

    def __init__(
        self,
        settled: Settled,
        model: nn.Module,
        device: torch.device,
        writer: RunWriter,
        reporter: SafeReporter,
        ranks: Ranks,
    ) -> None:
        objective = settled.task.objective
        assert objective is not None
        self.objective, self.config = objective, settled.config.training
        self.train_data, self.valid = settled.train, settled.valid
        self.sources = settled.config.data.train, settled.config.data.valid
        self.device, self.writer, self.reporter, self.ranks = device, writer, reporter, ranks

        # The number of batches of an epoch is that of all ranks together, since budgets count for all of them.
        self.model = model.to(device)
        self.selection = objective.evaluator.selection(settled.vocabulary)
        self.batches = objective.batches(settled.train)
        self.windows = self.batches.windows(self.batches.shuffled(self.config.seed, 0))

        # What changes while it trains; a checkpoint holds the progress and the state.
        self.progress = Progress()
        self.state: State | None = None
        self.has_rows = True  # whether the carried state is that of this rank's own sequences
        self.metrics: JsonObject | None = None
        self.ended = ""
        self.signal: Callable[[], int | None] = lambda: None
        self.signal_number: int | None = None  # of a signal that any rank has received

    def start(self) -> None:
        """Make the optimizer, and divide the work among the ranks; the model has its initial parameters."""
        self.parallel = make_parallel(self.objective, self.model, self.config, self.ranks)
        self.optimizer = make_optimizer(self.model, self.config)
        self.average = self.make_average()

    def resume(self) -> None:
        """Restore the last checkpoint; see `load_checkpoint`.

        Warns:
            UserWarning: the best weights are lost, or the machine differs, so that results differ by rounding.
        """
        like = self.objective.carried_state(self.model)
        # Parameters, moments and the average of the weights come back as they were; each rank takes its own shard.
        with self.ranks.rank_zero_first():  # rank 0 renames damaged checkpoints
            last = last_complete(self.writer.folder / "checkpoints")
        state, self.progress = load_checkpoint(last, self.model, like, self.writer.metadata)
        self.start()
        self.state, self.has_rows = split_carried(state, self.ranks.shard)
        restore_optimizer(self.model, self.optimizer, load_tensors(last / OPTIMIZER), self.parallel.shard)
        if self.average is not None and (last / AVERAGE).exists():
            self.average.restore(load_tensors(last / AVERAGE), self.parallel.shard)

        # The same bits need the same data; another machine, or other versions, change the last digits only.
        progress, names = self.progress, self.sources
        keys = zip(names, ("text", "held-out text"), (progress.data, progress.held_out), self.data_keys(), strict=True)
        for name, text, before, now in keys:
            if before is not None and before != now:
                raise MismatchError(
                    f"{name}: not the {text} that the run began with; restore it, or start a new training"
                )
        if progress.best_valid is not None and (reason := unusable(self.writer.folder / "model.safetensors")):
            warnings.warn(f"{reason}; the search for the best weights begins again", stacklevel=2)
            progress.best_valid, progress.evaluated_at = None, -1
        if changes := describe_changes(progress.environment, self.machine()):
            warnings.warn(
                f"{self.writer.folder}: resumes with {changes}; results will differ by rounding", stacklevel=2
            )

    def fit(self) -> Progress:
        """Train until the budget is spent or early stopping ends the training.

        Raises:
            Interrupted: SIGINT or SIGTERM came; a checkpoint of the last step is written.
        """
        self.model.train()
        if self.ranks.is_rank_zero:
            self.writer.open_log(self.progress)
        self.began = time.perf_counter() - self.progress.seconds
        try:
            # The first checkpoint is written before the first step, so that a killed training can always resume.
            if self.progress.step == 0:
                self.checkpoint()

            # Signals wait for the end of a step, so that a checkpoint never holds half of one.
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
            self.writer.close_log()
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
        """Take the time of rank 0, and the signal that any rank has received, on all ranks."""
        progress = self.progress
        numbers = [self.signal() or 0, progress.seconds, progress.training_seconds]
        together = self.ranks.gather(numbers)
        self.signal_number = int(together[:, 0].max()) or None
        progress.seconds, progress.training_seconds = together[0, 1:].tolist()

    def stop_if_signalled(self) -> None:
        """Raise `Interrupted` if a signal has come; the state must be saved."""
        if self.signal_number is not None:
            folder, with_code = str(outer(self.writer.folder)), (self.writer.folder / CODE).exists()
            command = ["seriatim", "train", "--resume", folder, *["--allow-code"] * with_code]
            message = f"interrupted at step {self.progress.step}, which is saved"
            raise Interrupted(message, self.signal_number, go_on=shlex.join(command))

    def nothing_left(self) -> str:
        """Return why the training has ended: a budget, or early stopping; an empty string if it has not."""
        return self.progress.ended(self.config, self.windows)

    def steps_of_epoch(self) -> Iterator[list[TaskBatch]]:
        """Yield this rank's shard of the batches of each step in the rest of the epoch."""
        groups = self.batches.shuffled(self.config.seed, self.progress.epoch)
        step: list[TaskBatch] = []
        for batch in self.batches.read_shard(groups, self.ranks.shard, skip=self.progress.window):
            step.append(batch)
            if len(step) == self.config.accumulate:
                yield step
                step = []
        if step:
            yield step

    def step(self, batches: list[TaskBatch]) -> None:
        """Take one optimizer step on the mean loss over the terms of all its batches, of all ranks."""
        progress, started = self.progress, time.perf_counter()

        # The seed is a function of the step, so that a resumed training draws the same dropout, and of the rank, so
        # that two ranks do not drop the same units. torch.manual_seed would format the call stack for every kind of
        # device that is not in use, which takes 0.2 ms.
        seed = self.config.seed * 1_000_003 + progress.step + RANK_SEED * self.ranks.index
        torch.default_generator.manual_seed(seed)
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed_all(seed)

        fraction = progress.spent(self.config, self.windows)
        rate = learning_rate(self.config, step=progress.step, progress=fraction, annealed=progress.annealed)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

        # The loss is divided by the terms of all ranks before the backward pass, since gradients are only added up;
        # a rank with shorter sequences would otherwise count as much as one with longer ones.
        counts = [sum(batch.terms for batch in batches), sum(batch.tokens for batch in batches)]
        terms, tokens = map(int, self.ranks.gather(counts).sum(0))
        self.optimizer.zero_grad(set_to_none=True)
        losses = [self.backward(batch, terms, fraction, is_last=batch is batches[-1]) for batch in batches]
        norm = clip_gradients(self.model, self.config.clip)

        # All ranks take or skip the step together: the gradient of each holds what is not finite on any of them. The
        # rank with the severest problem, 2 for its own loss, names the batch.
        problem_here = nonfinite_problem(self.model, [loss for loss, _ in losses], norm)
        severity = 0 if problem_here is None else 1 if math.isfinite(sum(loss for loss, _ in losses)) else 2
        results = self.ranks.gather([*np.sum(losses, axis=0), severity])
        loss, auxiliary = results[:, :2].sum(0).tolist()
        problem = self.describe_problem(batches, problem_here, results[:, 2])

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

    def backward(self, batch: TaskBatch, terms: int, fraction: float, *, is_last: bool) -> tuple[float, float]:
        """Add the gradient of the loss, divided by ``terms``, and carry the state on.

        Returns:
            The loss in nats, and the auxiliary loss as it is added to the mean over ``terms``.
        """
        start, weight = None if batch.fresh else self.state, 1.0
        self.has_rows = not isinstance(batch, IdleBatch) or batch.has_rows
        if isinstance(batch, IdleBatch):
            batch, weight = batch.batch, 0.0
        with self.parallel.accumulating(is_last=is_last):
            loss, contribution, self.state = self.parallel(batch, start, fraction)
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
        names = [f"batch {first + i} of epoch {epoch} ({self.objective.name_batch(batches[i])})" for i in indices]
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
        self.writer.write_record({**progress.last, "kind": "skipped", "reason": problem})
        warnings.warn(f"{reason}; the step is skipped", stacklevel=2)

    def after_step(self) -> None:
        """Report the step, and log, validate and write a checkpoint if they are due."""
        progress = self.progress
        speed = progress.tokens / max(progress.training_seconds, 1e-9)
        if progress.step % LOG_EVERY == 0:
            self.write_metrics()
        fraction = min(progress.spent(self.config, self.windows), 1.0)
        left = progress.seconds * (1 - fraction) / fraction if fraction else None
        self.reporter.tell(
            "step", {**progress.last, "tokens_per_second": speed, "progress": fraction, "seconds_left": left}
        )
        if self.config.evaluate_every and progress.step % self.config.evaluate_every == 0:
            self.validate()
        if progress.step % self.config.checkpoint_every == 0:
            self.checkpoint()

    def machine(self) -> dict[str, str]:
        """Return what the last bits of the training depend on; see `seriatim.training.hardware.environment`."""
        return environment(self.device) | {"ranks": str(self.ranks.count)}

    def make_average(self) -> WeightAverage | None:
        """Return an average of the weights that begins with the present ones; None if none is taken yet."""
        if self.progress.averaged_from >= 0:
            return WeightAverage(self.model, None, first=self.progress.averaged_from)
        return WeightAverage(self.model, self.config.average) if self.config.average else None

    def data_keys(self) -> tuple[str, str]:
        """Return the keys of the training data and of the validation data; the latter is empty if there is none."""
        return self.train_data.key, "" if self.valid is None else self.valid.key

    def write_metrics(self) -> None:
        """Write a line of `metrics.jsonl` with the mean loss since the last one."""
        progress = self.progress
        if progress.loss_terms:
            mean, speed = progress.loss_sum / progress.loss_terms, progress.tokens / progress.training_seconds
            timing = {"seconds": progress.seconds, "tokens_per_second": speed}
            self.writer.write_record({"kind": "train", "step": progress.step, **progress.last, "loss": mean, **timing})
            progress.loss_sum, progress.loss_terms = 0.0, 0

    def validate(self) -> None:
        """Measure the held-out data unless this step did, and save the weights if the configuration keeps them."""
        progress = self.progress
        if progress.evaluated_at == progress.step:
            return
        progress.evaluated_at = progress.step
        if self.valid is None:
            self.save_weights()
            return

        # Rank 0 measures, and all ranks learn the metric that selects the weights and the loss.
        metrics: JsonObject = {}  # filled on rank 0
        experts: JsonObject = {}
        with self.averaged():
            model = self.parallel.full_model()
            value, loss = self.ranks.on_rank_zero(lambda: self.measure(model, metrics, experts))
        best = progress.record_validation(value, loss, self.config, more_is_better=self.selection.more_is_better)
        keep = best or self.config.keep == "last"
        self.metrics = metrics if keep else None
        if keep:
            self.save_weights()

        # The time includes the validation and the writing of weights, which a budget in minutes counts, too.
        progress.seconds = time.perf_counter() - self.began
        position = {"step": progress.step, "epoch": progress.epoch, "seconds": progress.seconds}
        record = {"kind": "valid", **position, **metrics, **experts}
        self.writer.write_record(record)
        self.reporter.tell("validation", {**record, "best": best})
        if progress.begins_averaging(self.config):
            self.average = self.make_average()

    def measure(self, model: nn.Module, metrics: JsonObject, experts: JsonObject) -> tuple[float, float]:
        """Measure the held-out data, and return the metric that selects the weights, and the loss.

        The metrics are added to ``metrics``, and how often each expert was chosen to ``experts``.
        """
        try:
            with count_experts(model) as counts:
                metrics |= self.objective.validate(model, self.valid)
            value, loss = float(metrics[self.selection.key]), float(metrics["loss"])
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

    def averaged(self) -> AbstractContextManager[None]:
        """Give the model the average of its weights for the duration, if the configuration asks for one."""
        return nullcontext() if self.average is None else self.average.applied()

    def save_weights(self) -> None:
        """Write the present weights, or their average, as those of the run."""
        with self.averaged():
            model = self.parallel.full_model()
            self.ranks.on_rank_zero(lambda: self.writer.write_weights(model, self.progress.step))

    def checkpoint(self) -> None:
        """Write a checkpoint, and without validation data also the weights of the run."""
        model, parallel = self.parallel.full_model(), self.parallel
        moments = parallel.full(optimizer_tensors(self.model, self.optimizer))
        average = None if self.average is None else parallel.full(self.average.tensors)
        state = join_carried(self.state, self.objective.carried_state(model), self.ranks, has_rows=self.has_rows)
        train, held_out = self.data_keys()
        progress = replace(self.progress, data=train, held_out=held_out, environment=self.machine())
        self.ranks.on_rank_zero(lambda: self.writer.write_checkpoint(model, moments, average, state, progress))
        if self.valid is None:
            self.save_weights()
