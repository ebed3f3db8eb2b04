"""`python -m tests.fuzz`: inputs from a seed for some minutes, and what no command may do."""

import argparse
import sys
import time

from tests.fuzz.fuzzer import Figures, fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=1, help="how long (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="what decides the inputs (default: 1)")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    shown = 0

    def enough(figures: Figures) -> bool:
        nonlocal shown
        for fault in figures.faults[shown:]:
            print(fault, flush=True)
        shown = len(figures.faults)
        return time.monotonic() > end

    figures = fuzz(arguments.seed, enough)
    print(f"{figures.tried:,} inputs, {figures.taken:,} files taken, {shown} faults")
    return 1 if figures.faults else 0


if __name__ == "__main__":
    sys.exit(main())
