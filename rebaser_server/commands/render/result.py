"""The outcome of a request that a command waited for: as text, as JSON, as exit code."""

from dataclasses import dataclass
from typing import Any

from rebaser_core.errors import many
from rebaser_core.messages import (
    Correction,
    EnqueueUpdatesResponseV2,
    ErrorStatus,
    Inline,
    SuccessStatusV2,
)
from rebaser_server.commands.render.failures import Failures
from rebaser_server.commands.support.exit_codes import Exit


@dataclass(frozen=True)
class RequestResult:
    """The reply to a request and, once its values were computed, which of them failed."""

    response: EnqueueUpdatesResponseV2
    sent: int
    """Number of updates in the batch."""
    failures: Failures | None = None
    """None: the command did not wait for the values that depend on the request."""
    strict: bool = False

    @property
    def code(self) -> Exit:
        if isinstance(self.response.status, ErrorStatus):
            return Exit.FAILED
        if self._all_left_out or (self.strict and self._corrections):
            return Exit.CORRECTED
        if self.failures is not None and self.failures.stand:
            return Exit.VALUES_FAILED
        return Exit.OK

    @property
    def _corrections(self) -> tuple[Correction, ...]:
        status = self.response.status
        return () if isinstance(status, ErrorStatus) else status.success.corrections

    @property
    def _all_left_out(self) -> bool:
        """Whether Rebaser left out all updates."""
        status = self.response.status
        if not self._corrections or not isinstance(status, SuccessStatusV2):
            return False
        performed = status.success.updates_performed
        return isinstance(performed, Inline) and not performed.inline.updates

    def plain(self) -> dict[str, Any]:
        """The response in its wire format and, if the command waited, the failed `values`."""
        plain: dict[str, Any] = self.response.model_dump(mode="json", by_alias=True)
        if self.failures is not None:
            plain["values"] = self.failures.plain()
        return plain

    def lines(self) -> list[str]:
        """Lines for people."""
        request, status = self.response.id, self.response.status
        if isinstance(status, ErrorStatus):
            return [f"request {request} failed: {status.error.message}"]
        commit = status.success.commit
        lines = [f"request {request} is commit {commit}; {self._how()}", *self._corrected()]
        return lines + (self.failures.lines() if self.failures is not None else [])

    def _how(self) -> str:
        if self._all_left_out:
            return "Rebaser left out all updates, and changed nothing"
        if self.failures is None:
            return "the values that depend on it follow"
        return "its values are computed" if self.failures.stand else "its values are up to date"

    def _corrected(self) -> list[str]:
        corrections = self._corrections
        if not corrections:
            return []
        updates = len({correction.index for correction in corrections})
        return [
            f"{updates:,} of {many(self.sent, 'update')} did not fit; Rebaser changed or left out:",
            *(f"  update {each.index}: {each.code}: {each.detail}" for each in corrections),
        ]
