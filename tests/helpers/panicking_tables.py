"""A panic as a library in Rust raises it; as a program, `rebaser` where Delta panics at tables.

`PANICS_AT` is a part of the URI of those tables at which it does.
"""

import os
import sys
from typing import Any

from rebaser_server.commands import cli
from rebaser_server.store import checkpoints
from rebaser_server.store.table_files import CheckpointTable

PanicException = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
"""Each library has its own class of this name, which cannot be imported."""

PANIC = "OS can't spawn worker thread: Resource temporarily unavailable (os error 11)"


class _PanickingTable(CheckpointTable):
    def __init__(self, uri: str, *arguments: Any, **named: Any) -> None:
        if os.environ["PANICS_AT"] in uri:
            raise PanicException(PANIC)
        super().__init__(uri, *arguments, **named)


if __name__ == "__main__":
    checkpoints.CheckpointTable = _PanickingTable  # type: ignore[misc]
    sys.exit(cli.main(sys.argv[1:]))
