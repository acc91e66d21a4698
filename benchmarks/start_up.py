"""Measure how soon the command answers.

Claim: `seriatim --help` in under 0.3 s.

    python benchmarks/start_up.py
"""

import shutil
import subprocess
import sys
from pathlib import Path

import machine


def main() -> None:
    beside = Path(sys.executable).with_name("seriatim")
    command = str(beside) if beside.exists() else shutil.which("seriatim")
    found = machine.in_turn(
        {
            "python -c pass": lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
            "seriatim --help": lambda: subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL),
        },
        20,
    )
    for name, taken in found.items():
        print(f"{name:16} {taken:.3f} s")
    print(f"ratio {found['seriatim --help'] / found['python -c pass']:.1f}; the claim is 0.3 s")


if __name__ == "__main__":
    main()
