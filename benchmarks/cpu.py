"""Processor time of other processes, where the system tells."""

import os
from pathlib import Path


def seconds(pid: int, *, children: bool = False) -> float | None:
    """What the process used so far, in user and system mode; None if that is not to be seen.

    With `children`, what those used, too, that still run or that it waited for.
    """
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return None
    used = sum(map(int, after_name[11 : 15 if children else 13])) / os.sysconf("SC_CLK_TCK")
    return used + sum(seconds(child) or 0.0 for child in (children_of(pid) if children else ()))


def children_of(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except FileNotFoundError:
            continue
    return found
