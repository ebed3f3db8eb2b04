"""Processor time of other processes, where the system tells."""

import os
from pathlib import Path


def seconds(pid: int) -> float | None:
    """What the process used so far, in user and system mode; None if that is not to be seen."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return None
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
