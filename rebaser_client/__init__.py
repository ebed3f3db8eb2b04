"""The client: enqueue updates, await their outcome, read values.

A name's module is imported when the name is first used: a program that only declares functions, or
catches an error, does not load the connection's code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rebaser_client.change_set import ChangeSetHandle, WorkspaceHandle
    from rebaser_client.client import RebaserClient, connect
    from rebaser_client.csv_files import read_csv
    from rebaser_client.draft import Draft, arrow, builtin, cel, function, pyspark, python, sql
    from rebaser_client.errors import (
        CallRejected,
        CallTimeout,
        ClientClosed,
        ClientForked,
        InvalidDraft,
        MissingPackage,
        NoSuchService,
        NoSuchValue,
        OutcomeUnknown,
        ReadRefused,
        RequestDead,
        RequestIdUsed,
        RequestRefused,
        WrongEventLoop,
    )
    from rebaser_client.outcomes import BatchOutcome, Progress, Settlement
    from rebaser_client.plan import EditedDraft, LoadPlan
    from rebaser_client.reader import Provenance, ValueDifferences, ValueSet
    from rebaser_client.services import KeyHandle, KeyState, ServiceHandle
    from rebaser_client.table_reads import TableDifference, TableValue
    from rebaser_core.errors import (
        AlreadyRegistered,
        ClientError,
        MalformedId,
        MalformedMessage,
        NoSuchChangeSet,
        NotConfirmed,
        NotInWorkspace,
        QueueFull,
        QuotaExceeded,
        RebaserError,
        TooLarge,
        Unreachable,
    )
    from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId

_NAMES_OF = {
    "rebaser_client.client": ("RebaserClient", "connect"),
    "rebaser_client.change_set": ("ChangeSetHandle", "WorkspaceHandle"),
    "rebaser_client.draft": (
        *("Draft", "arrow", "builtin", "cel", "function", "pyspark", "python", "sql"),
    ),
    "rebaser_client.plan": ("EditedDraft", "LoadPlan"),
    "rebaser_client.csv_files": ("read_csv",),
    "rebaser_core.errors": (
        *("AlreadyRegistered", "ClientError", "NoSuchChangeSet", "NotConfirmed"),
        *("NotInWorkspace", "QueueFull", "QuotaExceeded", "TooLarge", "Unreachable"),
        *("MalformedId", "MalformedMessage", "RebaserError"),
    ),
    "rebaser_client.errors": (
        *("CallRejected", "CallTimeout", "ClientClosed", "ClientForked", "InvalidDraft"),
        *("MissingPackage", "NoSuchService", "NoSuchValue"),
        *("OutcomeUnknown", "ReadRefused", "RequestDead", "RequestIdUsed", "RequestRefused"),
        *("WrongEventLoop",),
    ),
    "rebaser_client.outcomes": ("BatchOutcome", "Progress", "Settlement"),
    "rebaser_client.reader": ("Provenance", "ValueDifferences", "ValueSet"),
    "rebaser_client.services": ("KeyHandle", "KeyState", "ServiceHandle"),
    "rebaser_client.table_reads": ("TableDifference", "TableValue"),
    "rebaser_core.ids": ("ChangeSetId", "RequestId", "WorkspaceId"),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}
"""Module of each name in `__all__`."""

__all__ = [
    "AlreadyRegistered",
    "BatchOutcome",
    "CallRejected",
    "CallTimeout",
    "ChangeSetHandle",
    "ChangeSetId",
    "ClientClosed",
    "ClientError",
    "ClientForked",
    "Draft",
    "EditedDraft",
    "InvalidDraft",
    "KeyHandle",
    "KeyState",
    "LoadPlan",
    "MalformedId",
    "MalformedMessage",
    "MissingPackage",
    "NoSuchChangeSet",
    "NoSuchService",
    "NoSuchValue",
    "NotConfirmed",
    "NotInWorkspace",
    "OutcomeUnknown",
    "Progress",
    "Provenance",
    "QueueFull",
    "QuotaExceeded",
    "ReadRefused",
    "RebaserClient",
    "RebaserError",
    "RequestDead",
    "RequestId",
    "RequestIdUsed",
    "RequestRefused",
    "ServiceHandle",
    "Settlement",
    "TableDifference",
    "TableValue",
    "TooLarge",
    "Unreachable",
    "ValueDifferences",
    "ValueSet",
    "WorkspaceHandle",
    "WorkspaceId",
    "WrongEventLoop",
    "arrow",
    "builtin",
    "cel",
    "connect",
    "function",
    "pyspark",
    "python",
    "read_csv",
    "sql",
]

if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> Any:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(module), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
