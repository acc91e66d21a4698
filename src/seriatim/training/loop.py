"""The training loop: teacher forcing, truncated backpropagation through time, one optimizer step after another.

What is random is a function of the seed and of the step or epoch alone, so that a training that was cut off and goes on
from a checkpoint does what it would have done.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..core.auxiliary_losses import collect
from ..core.errors import TrainingError
from ..core.interruption import Interrupted, noted
from ..core.state import State, map_state
from ..evaluation.intervals import Metrics
from ..layers.experts import count_experts
from ..storage.weights import save_weights
from .checkpoints import load_checkpoint, save_checkpoint, saving
from .environment import environment
from .finite import MOST_SKIPPED, finite_state, refuse_odd, whats_wrong
from .going_on import check_same, keys
from .optimizers import learning_rate, make_optimizer
from .progress import Progress
from .reporting import MetricsLog, Record, Reporter
from .setup import Job
from .task import TaskBatch

LOG_EVERY = 10
"""Steps averaged in one line of `metrics.jsonl`."""


class Trainer:
    """Trains one job.

    Args:
        job: everything it needs.
        device: where to compute.
        reporter: who listens.
        metadata: written beside the weights, to tell them from those of another run.

    Attributes:
        metrics: of the last validation where its weights are the run's, else None.
        ended: why the training ended, in words.
    """

    def __init__(self, job: Job, device: torch.device, reporter: Reporter, metadata: dict[str, str]) -> None:
        self.job, self.device, self.reporter, self.metadata = job, device, reporter, metadata
        self.task, self.config = job.task, job.task.config.training
        self.model = job.model.to(device)
        self.optimizer = make_optimizer(self.model, self.config)
        self.dtype = next(self.model.parameters()).dtype
        self.progress = Progress()
        self.state: State | None = None
        self.windows = job.batches.windows(job.batches.shuffled(self.config.seed, 0))
        self.metrics: Metrics | None = None
        self.ended = ""

    def resume(self) -> None:
        """Goes back to the run's last checkpoint.

        Raises:
            InputError: there is none, or it is of another run or text.

        Warns:
            UserWarning: something is not as it was; see `going_on`.
        """
        like = self.task.carried(self.model)
        folder = self.job.folder / "checkpoints"
        self.state, self.progress = load_checkpoint(folder, self.model, self.optimizer, like, self.metadata)
        check_same(self.progress, self.job, environment(self.device))

    def run(self) -> Progress:
        """Trains until the budget is spent or patience ends.

        Raises:
            Interrupted: SIGINT or SIGTERM came; a checkpoint of the step before is written.
        """
        self.model.train()
        self.log = MetricsLog(self.job.folder, step=self.progress.step, records=self.progress.records)
        self.began = time.perf_counter() - self.progress.seconds
        try:
            if self.progress.step == 0:
                self.checkpoint()
            with noted() as signal:
                self.train(signal)
                self.ended = self.why_ended(time.perf_counter() - self.began)
                self.validate()
                self.write_metrics()
                self.progress.seconds = time.perf_counter() - self.began
                self.checkpoint()
                self.stop_at(signal())
        finally:
            self.log.close()
        return self.progress

    def train(self, signal: Callable[[], int | None]) -> None:
        """Epoch after epoch, step after step, as long as no ``signal`` comes."""
        while not self.finished():
            for batches in self.steps_of_epoch():
                self.step(batches)
                self.after_step()
                if self.finished():
                    break
                if (number := signal()) is not None:
                    self.checkpoint()
                    self.stop_at(number)
            else:
                self.progress.epoch, self.progress.window = self.progress.epoch + 1, 0
                self.validate()
                self.checkpoint()

    def stop_at(self, number: int | None) -> None:
        """Ends a training that is saved, where a signal came."""
        if number is not None:
            raise Interrupted(f"interrupted at step {self.progress.step}, which is saved", number)

    def finished(self) -> bool:
        """Whether the budget or the patience is spent."""
        return self.spent() >= 1 or self.progress.impatient(self.config)

    def why_ended(self, seconds: float) -> str:
        """Why the training has ended, in words; empty where something is left to do.

        Args:
            seconds: since the training began.
        """
        return self.progress.ended(self.config, windows=self.windows, seconds=seconds)

    def spent(self) -> float:
        """The share of the budget spent."""
        return self.progress.spent(self.config, windows=self.windows, seconds=time.perf_counter() - self.began)

    def steps_of_epoch(self) -> Iterator[list[TaskBatch]]:
        """The windows of the rest of the epoch, ``accumulate`` of them a step."""
        batches, progress = self.job.batches, self.progress
        groups = batches.shuffled(self.config.seed, progress.epoch)
        step: list[TaskBatch] = []
        for batch in batches.read(groups, skip=progress.window):
            step.append(batch)
            if len(step) == self.config.accumulate:
                yield step
                step = []
        if step:
            yield step

    def step(self, batches: list[TaskBatch]) -> None:
        """One optimizer step: the mean loss over the tokens of all its windows."""
        progress, started = self.progress, time.perf_counter()
        torch.manual_seed(self.config.seed * 1_000_003 + progress.step)
        share = self.spent()
        rate = learning_rate(self.config, step=progress.step, progress=share, annealed=progress.annealed)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        tokens, terms = sum(batch.tokens for batch in batches), sum(batch.terms for batch in batches)
        self.optimizer.zero_grad(set_to_none=True)
        self.auxiliary = 0.0
        losses = [self.backward(batch, terms, share) for batch in batches]
        norm = self.clip()
        wrong = whats_wrong(self.model, losses, norm)
        progress.step += 1
        progress.window += len(batches)
        progress.tokens += tokens
        self.progress.last = {
            "kind": "train",
            "step": progress.step,
            "epoch": progress.epoch,
            "tokens": progress.tokens,
            "loss": sum(losses) / terms,
            "learning_rate": rate,
            "gradient_norm": norm,
        }
        if self.auxiliary:
            self.progress.last["auxiliary"] = self.auxiliary
        if wrong is not None:
            self.skip(*wrong, batches)
        else:
            self.optimizer.step()
            progress.skipped_in_a_row = 0
            progress.loss_sum += sum(losses)
            progress.loss_terms += terms
        progress.training_seconds += time.perf_counter() - started

    def skip(self, what: str, which: range, batches: list[TaskBatch]) -> None:
        """Leaves the parameters as they are, where that is configured.

        Args:
            what: is wrong.
            which: of the batches it comes from.
            batches: of the step.

        Raises:
            TrainingError: it is not configured, or no step could be made for a while.
        """
        progress = self.progress
        first, epoch = progress.window - len(batches) + 1, progress.epoch + 1
        named = [f"batch {first + i} of epoch {epoch} ({self.task.name_batch(batches[i])})" for i in which]
        wrong = f"{what} in {', '.join(named)}"
        reason = f"step {progress.step}: {wrong}"
        rate = self.progress.last["learning_rate"]
        advice = f"lower training.learning_rate (now {rate:g}), set training.clip, or look at that data"
        if self.config.nonfinite == "stop":
            raise TrainingError(f"{reason}; {advice} (training.nonfinite skip leaves such steps out)")
        progress.skipped, progress.skipped_in_a_row = progress.skipped + 1, progress.skipped_in_a_row + 1
        if progress.skipped_in_a_row >= MOST_SKIPPED:
            raise TrainingError(f"{reason}, as in the {MOST_SKIPPED - 1} steps before, which were skipped; {advice}")
        self.state = finite_state(self.state)
        self.write({**self.progress.last, "kind": "skipped", "reason": wrong})
        warnings.warn(f"{reason}; the step is skipped", stacklevel=2)

    def backward(self, batch: TaskBatch, terms: int, share: float) -> float:
        """Adds one window's share of the gradient; returns its summed loss in nats and carries the state on."""
        start = None if batch.fresh else self.state
        precision = torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16")
        with precision, collect() as contributed:
            loss, state = self.task.loss(self.model, batch, start, progress=share)
        auxiliary = batch.terms / terms * sum(contributed, torch.zeros((), device=self.device))
        (loss / terms + auxiliary).backward()  # type: ignore[no-untyped-call]
        self.auxiliary += auxiliary.item()
        self.state = None if state is None else map_state(self.carry, state)
        return loss.item()

    def carry(self, leaf: Tensor) -> Tensor:
        """One leaf of the state from a window to the next: cut from the graph, in the parameters' type."""
        return leaf.detach().to(self.dtype) if leaf.is_floating_point() else leaf.detach()

    def clip(self) -> float:
        """Scales the gradient down to norm ``clip``; returns its norm before. One that is not finite is left alone."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if self.config.clip is not None and norm.isfinite():
            torch.nn.utils.clip_grads_with_norm_(parameters, self.config.clip, norm)
        return float(norm)

    def after_step(self) -> None:
        """What is due after a step: a line of metrics, a validation, a checkpoint."""
        progress = self.progress
        progress.seconds = time.perf_counter() - self.began
        speed = progress.tokens / max(progress.training_seconds, 1e-9)
        if progress.step % LOG_EVERY == 0:
            self.write_metrics()
        share = min(self.spent(), 1.0)
        left = progress.seconds * (1 - share) / share if share else None
        self.reporter.step({**self.progress.last, "tokens_per_second": speed, "progress": share, "seconds_left": left})
        if self.config.evaluate_every and progress.step % self.config.evaluate_every == 0:
            self.validate()
        if progress.step % self.config.checkpoint_every == 0:
            self.checkpoint()

    def write_metrics(self) -> None:
        """A line of `metrics.jsonl`: the mean loss over the tokens since the last one."""
        progress = self.progress
        if progress.loss_terms:
            mean, speed = progress.loss_sum / progress.loss_terms, progress.tokens / progress.training_seconds
            timed = {"seconds": progress.seconds, "tokens_per_second": speed}
            self.write({"kind": "train", "step": progress.step, **progress.last, "loss": mean, **timed})
            progress.loss_sum, progress.loss_terms = 0.0, 0

    def validate(self) -> None:
        """Measures the held-out text, once a step at most, and saves the weights where they are to be kept."""
        progress = self.progress
        if progress.evaluated_at == progress.step:
            return
        progress.evaluated_at = progress.step
        if self.job.valid is None:
            self.keep()
            return
        with count_experts(self.model) as chosen:
            metrics = self.task.validate(self.model, self.job.valid)
        found = float(metrics[self.task.selection_metric(self.job.vocabulary)])
        if not (math.isfinite(found) and math.isfinite(metrics["loss"])):
            raise TrainingError(
                f"step {progress.step}: the held-out loss is {metrics['loss']}; go on from the last checkpoint with a "
                "lower training.learning_rate"
            )
        best = progress.judge(found, float(metrics["loss"]), self.config, more_is_better=self.task.more_is_better)
        kept = best or self.config.keep == "last"
        self.metrics = metrics if kept else None
        if kept:
            self.keep()
        progress.seconds = time.perf_counter() - self.began
        reached = {"step": progress.step, "epoch": progress.epoch, "seconds": progress.seconds}
        record = {"kind": "valid", **reached, **metrics}
        if chosen:
            record["experts"] = {name: counts.tolist() for name, counts in chosen.items()}
        self.write(record)
        self.reporter.validation({**record, "best": best})

    def write(self, record: Record) -> None:
        """A line of `metrics.jsonl`."""
        with saving(self.job.folder):
            self.log.write(record)

    def keep(self) -> None:
        """Makes the present weights the run's."""
        refuse_odd(self.model, step=self.progress.step)
        with saving(self.job.folder):
            save_weights(self.model, self.job.folder / "model.safetensors", self.metadata)

    def checkpoint(self) -> None:
        """Writes a checkpoint; a run without validation also keeps the present weights.

        Raises:
            TrainingError: weights are not finite, or the disk takes no more.
        """
        refuse_odd(self.model, step=self.progress.step)
        train, held_out = keys(self.job)
        progress = replace(self.progress, data=train, held_out=held_out, environment=environment(self.device))
        with saving(self.job.folder):
            self.log.flush()
            progress.records = self.log.records
            folder = self.job.folder / "checkpoints"
            save_checkpoint(folder, self.model, self.optimizer, self.state, progress, self.metadata)
        if self.job.valid is None:
            self.keep()
