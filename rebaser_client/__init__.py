"""The client: enqueue updates, await their outcome, read values.

A name's module is imported when the name is first used: a program that only declares functions, or
catches an error, does not load the connection's code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rebaser_client.change_set import ChangeSetHandle as ChangeSetHandle
    from rebaser_client.change_set import WorkspaceHandle as WorkspaceHandle
    from rebaser_client.client import RebaserClient as RebaserClient
    from rebaser_client.client import connect as connect
    from rebaser_client.csv_files import read_csv as read_csv
    from rebaser_client.draft import Draft as Draft
    from rebaser_client.draft import arrow as arrow
    from rebaser_client.draft import builtin as builtin
    from rebaser_client.draft import cel as cel
    from rebaser_client.draft import function as function
    from rebaser_client.draft import pyspark as pyspark
    from rebaser_client.draft import python as python
    from rebaser_client.draft import sql as sql
    from rebaser_client.errors import CallRejected as CallRejected
    from rebaser_client.errors import CallTimeout as CallTimeout
    from rebaser_client.errors import ClientClosed as ClientClosed
    from rebaser_client.errors import ClientForked as ClientForked
    from rebaser_client.errors import InvalidDraft as InvalidDraft
    from rebaser_client.errors import MissingPackage as MissingPackage
    from rebaser_client.errors import NoSuchService as NoSuchService
    from rebaser_client.errors import NoSuchValue as NoSuchValue
    from rebaser_client.errors import OutcomeUnknown as OutcomeUnknown
    from rebaser_client.errors import ReadRefused as ReadRefused
    from rebaser_client.errors import RequestDead as RequestDead
    from rebaser_client.errors import RequestIdUsed as RequestIdUsed
    from rebaser_client.errors import RequestRefused as RequestRefused
    from rebaser_client.errors import WrongEventLoop as WrongEventLoop
    from rebaser_client.outcomes import BatchOutcome as BatchOutcome
    from rebaser_client.outcomes import Progress as Progress
    from rebaser_client.outcomes import Settlement as Settlement
    from rebaser_client.plan import EditedDraft as EditedDraft
    from rebaser_client.plan import LoadPlan as LoadPlan
    from rebaser_client.reader import Provenance as Provenance
    from rebaser_client.reader import ValueDifferences as ValueDifferences
    from rebaser_client.reader import ValueSet as ValueSet
    from rebaser_client.services import KeyHandle as KeyHandle
    from rebaser_client.services import KeyState as KeyState
    from rebaser_client.services import ServiceHandle as ServiceHandle
    from rebaser_client.table_reads import TableDifference as TableDifference
    from rebaser_client.table_reads import TableValue as TableValue
    from rebaser_core.errors import AlreadyRegistered as AlreadyRegistered
    from rebaser_core.errors import ClientError as ClientError
    from rebaser_core.errors import MalformedId as MalformedId
    from rebaser_core.errors import MalformedMessage as MalformedMessage
    from rebaser_core.errors import NoSuchChangeSet as NoSuchChangeSet
    from rebaser_core.errors import NotConfirmed as NotConfirmed
    from rebaser_core.errors import NotInWorkspace as NotInWorkspace
    from rebaser_core.errors import QueueFull as QueueFull
    from rebaser_core.errors import QuotaExceeded as QuotaExceeded
    from rebaser_core.errors import RebaserError as RebaserError
    from rebaser_core.errors import TooLarge as TooLarge
    from rebaser_core.errors import Unreachable as Unreachable
    from rebaser_core.ids import ChangeSetId as ChangeSetId
    from rebaser_core.ids import RequestId as RequestId
    from rebaser_core.ids import WorkspaceId as WorkspaceId

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
        *("MissingPackage", "NoSuchService", "NoSuchValue", "OutcomeUnknown", "ReadRefused"),
        *("RequestDead", "RequestIdUsed", "RequestRefused", "WrongEventLoop"),
    ),
    "rebaser_client.outcomes": ("BatchOutcome", "Progress", "Settlement"),
    "rebaser_client.reader": ("Provenance", "ValueDifferences", "ValueSet"),
    "rebaser_client.services": ("KeyHandle", "KeyState", "ServiceHandle"),
    "rebaser_client.table_reads": ("TableDifference", "TableValue"),
    "rebaser_core.ids": ("ChangeSetId", "RequestId", "WorkspaceId"),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}
"""Module of each name in `__all__`."""

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605 - the names above are exported as themselves

if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> Any:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(module), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
