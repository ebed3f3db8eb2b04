"""The application's part of a change set's state, and the batches that change it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rebaser_core.messages import Correction, DvuResultInfo
from rebaser_core.updates import AnyUpdate
from rebaser_server.files import SharedFiles

SMALL_BATCH: Final = 200
"""Updates up to which a batch is applied on the event loop: more would hold up others."""


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """Files in which a background job left its results; the application knows their format."""

    files: SharedFiles
    run: str
    """The key of the directory that they lie in."""
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Batch:
    """Updates that are applied together."""

    updates: Sequence[AnyUpdate]
    computed: DvuResultInfo | None = None
    """The claim under which a background job computed it."""
    head_side: Sequence[AnyUpdate] | None = None
    """Of a batch by which head's changes reach a branch: what head has under them."""
    results: ResultFiles | None = None
    """Results that are too many for `updates`."""
    payload: bytes | None = field(default=None, repr=False)
    """The bytes that were read, of a client's batch."""
    from_client: bool = False
    """Whether it is as a client sent it; in the log it is as it was performed."""


class AppliedBatch(Protocol):
    """A batch as performed."""

    @property
    def updates(self) -> Sequence[AnyUpdate]:
        """What was done, after corrections. Applied again to the same state it needs none."""

    @property
    def corrections(self) -> Sequence[Correction]: ...

    @property
    def dirty(self) -> bool:
        """Whether it left work to the background job."""

    @property
    def failed(self) -> int:
        """How many of a background job's results are failures."""


class Content(Protocol):
    """The application's part of a change set's state.

    The core calls it in the order of the commits, from one task at a time.
    """

    async def apply(self, sequence: int, batch: Batch, covers: int | None = None) -> AppliedBatch:
        """Apply a batch: live, and again when the commit log is replayed, with the same outcome.

        Args:
            sequence: the stream sequence of the request; 0 for a background job's results.
            batch: as the client sent it; in a replay, as it was performed.
            covers: of a background job's results: the requests up to this sequence are in them.

        Raises:
            MissingBatch: files that it names are gone; nothing was changed.
        """

    def complete(self, covers: int) -> None:
        """The background job has done what requests up to this sequence left to it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A change set as of one commit."""

    commit: int
    metadata: dict[str, Any]
    """The protocol's part, as `State.metadata` gave it, and what the application added."""
    content: Content
    damage: str = ""
    """Why a later checkpoint cannot be read; empty if there is none."""
