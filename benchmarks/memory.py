"""Memory of other processes, where the system tells."""

from pathlib import Path

from benchmarks.cpu import children_of


def proportional(pid: int, *, inner: bool = True) -> int:
    """Octets of the process, what it shares with others divided among them; 0 if it is gone.

    With `inner`, and of all that it has started.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return own + sum(map(proportional, children_of(pid)) if inner else ())
