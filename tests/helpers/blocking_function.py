"""A function that waits for a gate, or fails at it: for tests that look at updates in hand."""

from pathlib import Path
from typing import Any

from tests.helpers.batches import Batch, new_id, put

_CODE = '''"""For tests."""

import time
from pathlib import Path


def gated(*, value, gate):
    gate = Path(gate)
    (gate / "seen").touch()
    while (gate / "closed").exists():
        time.sleep(0.005)
    if (gate / "broken").exists():
        raise ValueError("broken")
    return value
'''


class Gate:
    """A directory that daemons started with `path` in `PYTHONPATH` look at while they compute."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "gated"
        info = self.path / "rebaser_gated-0.dist-info"
        info.mkdir(parents=True)
        (self.path / "rebaser_gated_functions.py").write_text(_CODE)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rebaser-gated\nVersion: 0\n")
        (info / "entry_points.txt").write_text(
            "[rebaser.functions]\ngated = rebaser_gated_functions:gated\n"
        )
        self.source, self.value, self.func, self.gate = (new_id() for _ in range(4))

    def close(self) -> None:
        """Whoever computes the value waits."""
        (self.path / "closed").touch()

    def open(self) -> None:
        (self.path / "closed").unlink()

    def broken(self, *, broken: bool) -> None:
        """Whether computing the value fails."""
        if broken:
            (self.path / "broken").touch()
        else:
            (self.path / "broken").unlink()

    def seen(self) -> bool:
        """Whether the value was computed, or is on its way, since the last `forget`."""
        return (self.path / "seen").exists()

    def forget(self) -> None:
        (self.path / "seen").unlink(missing_ok=True)

    def define(self, value: Any) -> Batch:
        """A source, and a value computed from it behind the gate."""
        inputs = {"value": self.source, "gate": self.gate}
        return [
            {"putFunc": {"funcId": self.func, "name": "g", "runtime": "python", "code": "gated"}},
            put(self.source, value),
            put(self.gate, str(self.path)),
            {
                "putValue": {
                    "valueId": self.value,
                    "name": "gated",
                    "funcId": self.func,
                    "inputs": inputs,
                }
            },
        ]
