"""Explores named worlds: `python -m tests.model [NAME ...]`; without a name it lists them.

It prints the states and steps of each, the seconds that it took, and what was found; `all` stands
for every name.
"""

import argparse
import sys
from collections.abc import Sequence

from tests.model.explorer import explore
from tests.model.instances import describe, model, names


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--most", type=int, default=2_000_000, help="states to give up after")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.names) - {*names(), "all"}:
        parser.error(f"no such world: {', '.join(sorted(unknown))}")
    if not arguments.names:
        sys.stdout.writelines(f"{name}: {describe(name)}\n" for name in names())
    found = 0
    for name in names() if "all" in arguments.names else arguments.names:
        report = explore(model(name), arguments.most)
        sys.stdout.write(f"{name} ({describe(name)}): {report}\n")
        sys.stdout.flush()
        found |= bool(report.problem)
    return found


if __name__ == "__main__":
    sys.exit(main())
