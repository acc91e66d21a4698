"""The command of each record, in the order of RESULTS.md.

`python benchmarks/figures.py NAME` runs it; DATA stands for the folder that `--data` names. A script that is run
otherwise prints its figures and writes no record.
"""

from typing import NamedTuple


class Run(NamedTuple):
    """How a record is measured: its title, the command after `python benchmarks/`, and minutes on two cores."""

    title: str
    command: str
    minutes: float

    @property
    def script(self) -> str:
        return self.command.split()[0]


RUNS = {
    "names": Run("A character model of first names", "names.py --names DATA/names-first/names.txt --peer", 5),
    "architectures": Run("Every architecture on real text", "architectures.py --names DATA/names-first/names.txt", 60),
    "distance": Run("The benefit of gates and attention", "distance.py", 120),
    "reach": Run("The reach of gradients", "reach.py --distance 20", 5),
    "reach-mixed": Run("The reach of gradients, trained on short texts, too", "reach.py --distance 30 --mixed", 5),
    "reversal": Run("Reversed names with noise", "reversal.py --names DATA/names-first/names.txt", 40),
    "alignment": Run("What attention learns", "alignment.py", 5),
    "dropout": Run("The dropout of language models", "dropout.py --data DATA", 600),
    "two_trees": Run(
        "Before and after the source was arranged",
        "two_trees.py 12241bd1f40a --data DATA/tinyshakespeare/input.txt --turns 9",
        20,
    ),
    "defaults": Run("What the defaults reach", "defaults.py --data DATA --seeds 3", 900),
    "word_models": Run("Language models of words", "word_models.py --data DATA", 100),
    "ranks": Run("Training on several processes", "ranks.py", 20),
}
