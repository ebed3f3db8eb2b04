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
        ClientClosed,
        ClientForked,
        InvalidDraft,
        MissingPackage,
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

_MODULE_OF = {
    "RebaserClient": "rebaser_client.client",
    "connect": "rebaser_client.client",
    "ChangeSetHandle": "rebaser_client.change_set",
    "WorkspaceHandle": "rebaser_client.change_set",
    "Draft": "rebaser_client.draft",
    "arrow": "rebaser_client.draft",
    "builtin": "rebaser_client.draft",
    "cel": "rebaser_client.draft",
    "function": "rebaser_client.draft",
    "pyspark": "rebaser_client.draft",
    "python": "rebaser_client.draft",
    "sql": "rebaser_client.draft",
    "EditedDraft": "rebaser_client.plan",
    "LoadPlan": "rebaser_client.plan",
    "read_csv": "rebaser_client.csv_files",
    "AlreadyRegistered": "rebaser_core.errors",
    "ClientClosed": "rebaser_client.errors",
    "ClientError": "rebaser_core.errors",
    "ClientForked": "rebaser_client.errors",
    "InvalidDraft": "rebaser_client.errors",
    "MissingPackage": "rebaser_client.errors",
    "NoSuchChangeSet": "rebaser_core.errors",
    "NoSuchValue": "rebaser_client.errors",
    "NotConfirmed": "rebaser_core.errors",
    "NotInWorkspace": "rebaser_core.errors",
    "OutcomeUnknown": "rebaser_client.errors",
    "QueueFull": "rebaser_core.errors",
    "QuotaExceeded": "rebaser_core.errors",
    "ReadRefused": "rebaser_client.errors",
    "RequestDead": "rebaser_client.errors",
    "RequestIdUsed": "rebaser_client.errors",
    "RequestRefused": "rebaser_client.errors",
    "TooLarge": "rebaser_core.errors",
    "Unreachable": "rebaser_core.errors",
    "WrongEventLoop": "rebaser_client.errors",
    "BatchOutcome": "rebaser_client.outcomes",
    "Progress": "rebaser_client.outcomes",
    "Settlement": "rebaser_client.outcomes",
    "Provenance": "rebaser_client.reader",
    "ValueDifferences": "rebaser_client.reader",
    "ValueSet": "rebaser_client.reader",
    "TableDifference": "rebaser_client.table_reads",
    "TableValue": "rebaser_client.table_reads",
    "MalformedId": "rebaser_core.errors",
    "MalformedMessage": "rebaser_core.errors",
    "RebaserError": "rebaser_core.errors",
    "ChangeSetId": "rebaser_core.ids",
    "RequestId": "rebaser_core.ids",
    "WorkspaceId": "rebaser_core.ids",
}
"""Module of each name in `__all__`."""

__all__ = [
    "AlreadyRegistered",
    "BatchOutcome",
    "ChangeSetHandle",
    "ChangeSetId",
    "ClientClosed",
    "ClientError",
    "ClientForked",
    "Draft",
    "EditedDraft",
    "InvalidDraft",
    "LoadPlan",
    "MalformedId",
    "MalformedMessage",
    "MissingPackage",
    "NoSuchChangeSet",
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
