"""What NATS does not permit to this user ends a command at once, not with a timeout."""

import asyncio
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from rebaser_core.errors import RebaserError

_VIOLATION: Final = re.compile(r'permissions violation for (\w+) to "([^"]+)"', re.IGNORECASE)
"""NATS names the operation and the subject in the text of the error only."""


class NotPermitted(RebaserError):
    """The NATS user in the settings may not do this. The last step of the command had no effect."""


class PermissionWatch:
    """Receives the errors of a connection; a refusal ends the command that waits for a reply."""

    def __init__(self, user: str | None, optional: Collection[str] = ()) -> None:
        """`optional`: subjects whose refusal ends nothing."""
        self._optional = optional
        self.lacks_optional = False
        """Whether NATS refused one of those."""
        self._user = f"user {user!r}" if user else "this user"
        self._task: asyncio.Task[object] | None = None
        self._refusal: str | None = None

    def on_error(self, error: Exception) -> None:
        """Handle an error that the connection reports."""
        violation = _VIOLATION.search(str(error))
        if violation is None or self._refusal is not None or self._task is None:
            return
        if violation[2] in self._optional:
            self.lacks_optional = True
            return
        verb = "subscribe to" if violation[1].lower().startswith("subs") else "publish to"
        self._refusal = f"NATS does not let {self._user} {verb} {violation[2]!r}"
        self._task.cancel()

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Cancel the body, as a timeout does, as soon as NATS refuses an operation.

        Raises:
            NotPermitted: NATS refused one.
        """
        task = asyncio.current_task()
        self._task, cancelled = task, task.cancelling() if task else 0
        try:
            yield
        except asyncio.CancelledError:
            if self._refusal is None or task is None or task.uncancel() > cancelled:
                raise
            raise NotPermitted(self._refusal) from None
        finally:
            self._task = None
