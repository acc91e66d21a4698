"""Trainings that several ranks do one after another, as a file of JSON lists them: ``torchrun rank_script.py FILE``.

A case is ``{"config": ..., "resume": FOLDER, "stop_at": STEP, "only": RANK}``: what is trained or resumed, the step at
which the leader fails, and the rank that ``changes`` of the configuration concern. The error of every rank is written
to a file beside the run.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

import seriatim
from seriatim.core.interruption import Interrupted
from seriatim.training.reporting import Reporter


class Failing(Reporter):
    """Fails after a step, as a training does whose machine breaks."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, record) -> None:
        if record["step"] == self.at:
            raise LookupError("this rank breaks")


def run(case: dict) -> None:
    rank = int(os.environ["RANK"])
    changes = case.get("changes", {}) if case.get("only") == rank else {}
    if changes.pop("hang", False):
        time.sleep(3600)
    reporter = Failing(case["stop_at"]) if "stop_at" in case else None
    if "resume" in case:
        run = seriatim.resume(case["resume"], overrides=case.get("overrides", {}), reporter=reporter)
    else:
        run = seriatim.train(case["config"], overrides=changes, reporter=reporter)
    assert run.summary["ranks"] == int(os.environ["WORLD_SIZE"])


def main() -> None:
    torch.set_num_threads(1)
    for case in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        out = case.get("resume") or case["config"]["out"]
        text = ""
        try:
            run(case)
        except (Exception, Interrupted) as error:
            text = f"{type(error).__name__}: {error} [{'; '.join(getattr(error, '__notes__', []))}]"
            if not case.get("may_fail"):
                raise
        Path(f"{out}.rank{os.environ['RANK']}").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
