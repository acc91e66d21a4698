"""Trainings that several ranks do one after another, as a file of JSON lists them: ``torchrun rank_script.py FILE``.

A case is ``{"config": ..., "resume": FOLDER, "stop_at": STEP, "only": RANK}``: what is trained or resumed, the step at
which the leader fails, and the rank that ``changes`` of the configuration and a ``fault`` concern: at a step its
loss is not a number, or it hangs. The error of every rank, or the digest of its parameters at the end, is written to a
file beside the run, under the name ``errors`` if the case has one.
"""

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import ClassVar

import torch

import seriatim
from seriatim.core.state import map_state
from seriatim.processes.sharded_tensors import full_tensor
from seriatim.processes.signals import Interrupted
from seriatim.runs import train
from seriatim.storage.weights import digest
from seriatim.training.checkpoints import Progress
from seriatim.training.loop import Trainer
from seriatim.training.reporting import Reporter


class Failing(Reporter):
    """Fails after a step, as a training does whose machine breaks."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, record) -> None:
        if record["step"] == self.at:
            raise LookupError("this rank breaks")


class Observed(Trainer):
    """A trainer that has a fault at one step, and remembers the digest of its parameters."""

    fault: ClassVar[str] = ""
    digest: ClassVar[str] = ""

    def backward(self, *arguments, **named) -> tuple[float, float]:
        at_fault = self.progress.step == 6
        if at_fault and self.fault == "hang":
            time.sleep(15)
        losses = super().backward(*arguments, **named)
        if at_fault and self.fault == "nan":
            self.state = map_state(lambda leaf: leaf * math.nan if leaf.is_floating_point() else leaf, self.state)
            return math.nan, losses[1]
        return losses

    def fit(self) -> Progress:
        progress = super().fit()
        Observed.digest = digest({name: full_tensor(value).detach() for name, value in self.model.named_parameters()})
        return progress


def run(case: dict) -> None:
    concerned = case.get("only") == int(os.environ["RANK"])
    changes = case.get("changes", {}) if concerned else {}
    Observed.fault = case.get("fault", "") if concerned else ""
    reporter = Failing(case["stop_at"]) if "stop_at" in case else None
    if "resume" in case:
        run = seriatim.resume(case["resume"], overrides=case.get("overrides", {}), reporter=reporter)
    else:
        run = seriatim.train(case["config"], overrides=changes, reporter=reporter)
    assert run.summary["ranks"] == int(os.environ["WORLD_SIZE"])


def main() -> None:
    torch.set_num_threads(1)
    train.Trainer = Observed
    for case in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        out = case.get("resume") or case["config"]["out"]
        text = ""
        try:
            run(case)
        except (Exception, Interrupted) as error:
            text = f"{type(error).__name__}: {error} [{'; '.join(getattr(error, '__notes__', []))}]"
            if not case.get("may_fail"):
                raise
        out = Path(out).with_name(case["errors"]) if "errors" in case else out
        Path(f"{out}.rank{os.environ['RANK']}").write_text(text or Observed.digest, encoding="utf-8")


if __name__ == "__main__":
    main()
