"""Asking: enqueue updates and await their outcome."""

from rebaser_client.client import RebaserClient, connect
from rebaser_client.drafts.differences import ValueDifferences
from rebaser_client.drafts.draft import Draft
from rebaser_client.drafts.functions import builtin, cel, function, python
from rebaser_client.drafts.named_change_set import EditedDraft, NamedChangeSet
from rebaser_client.drafts.named_workspace import NamedBranch, NamedWorkspace
from rebaser_client.drafts.plan import LoadPlan
from rebaser_client.drafts.rows import read_csv
from rebaser_client.errors import (
    AlreadyRegistered,
    ClientError,
    InvalidDraft,
    MissingPackage,
    NoSuchChangeSet,
    NoSuchValue,
    NotConfirmed,
    NotInWorkspace,
    OutcomeUnknown,
    QueueFull,
    QuotaExceeded,
    ReadRefused,
    RequestDead,
    RequestRefused,
    TooLarge,
    Unreachable,
)
from rebaser_client.outcomes.batch_outcome import BatchOutcome
from rebaser_client.outcomes.settlement import Progress, Settlement
from rebaser_client.queries.provenance import Provenance
from rebaser_client.value_reader import ValueSet
from rebaser_core.errors import MalformedMessage, RebaserError
from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId

__all__ = [
    "AlreadyRegistered",
    "BatchOutcome",
    "ChangeSetId",
    "ClientError",
    "Draft",
    "EditedDraft",
    "InvalidDraft",
    "LoadPlan",
    "MalformedMessage",
    "MissingPackage",
    "NamedBranch",
    "NamedChangeSet",
    "NamedWorkspace",
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
    "RequestRefused",
    "Settlement",
    "TooLarge",
    "Unreachable",
    "ValueDifferences",
    "ValueSet",
    "WorkspaceId",
    "builtin",
    "cel",
    "connect",
    "function",
    "python",
    "read_csv",
]
