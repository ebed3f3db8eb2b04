"""The server: a daemon that applies each change set's requests in order and recomputes dependents.

From the outside in: `commands` (the command line), `service` (the parts of a daemon), `ops` (status
page and metrics), `doctor`, `queries` (reads), `graph_application` (the meaning of batches),
`cluster` (which Rebaser holds what), `processor` (one change set's run), `commit_log`, `store` and
`compute`, `values` (graph and rebase), `runtime`, `settings`, `telemetry`, `terminal`. Each imports
only what is below it; `.importlinter` enforces that. Begin with `processor/run.py`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rebaser_server.handlers import Context, Reject, Service

__all__ = ["Context", "Reject", "Service"]

if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> Any:
        # Late: every module of the server imports this one first.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("rebaser_server.handlers"), name)
