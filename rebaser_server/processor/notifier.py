"""Messages that a run publishes once and without waiting: replies to callers, activities."""

import re
from typing import Any, Final

import nats.errors
import structlog
from nats.aio.client import Client

from rebaser_core import codecs, trace_context
from rebaser_core.activities import ActivityKind, encode_activity
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream.connection import Connection
from rebaser_core.messages import EnqueueUpdatesResponse, EnqueueUpdatesResponseV2
from rebaser_core.subjects import Subjects
from rebaser_server.processor.replies import shorten
from rebaser_server.telemetry.work_stats import WorkStats

log: Final = structlog.get_logger()

INBOX_LENGTH: Final = 200
"""Most characters of a reply inbox: a longer one gets no reply."""

DETAIL_LENGTH: Final = 1_000
"""Most characters of a text among the details of an activity."""

_SUBJECT: Final = re.compile(r"[!-)+\-/-=?-~]+(\.[!-)+\-/-=?-~]+)*")


class Notifier:
    """Publishes without waiting for an answer. A lost message harms nothing: the log has it all."""

    def __init__(self, nc: Client, subjects: Subjects) -> None:
        self.stats = WorkStats()
        """The statistics that the status page shows."""
        self._nc = nc
        self._subjects = subjects

    async def reply(
        self, inbox: str, response: EnqueueUpdatesResponseV2, content_type: str | None
    ) -> None:
        """Answer to `inbox` in the encoding of the caller's request.

        A subject that is no inbox gets no answer: a caller cannot make us write into streams.
        """
        ours = self._subjects.join("rebaser.")
        fits = len(inbox) <= INBOX_LENGTH and _SUBJECT.fullmatch(inbox)
        if not fits or inbox.startswith(("$", ours)):
            log.warning("reply inbox rejected", inbox=inbox[:200])
            return
        content_type = codecs.content_type_or_default(content_type)
        headers, payload = EnqueueUpdatesResponse.encode(response, content_type)
        headers = dict(trace_context.inject(headers))
        if len(payload) > Connection.of(self._nc).message_limits.max_payload_for(inbox, headers):
            _, payload = EnqueueUpdatesResponse.encode(shorten(response), content_type)
        await self._publish(inbox, payload, headers)

    async def activity(
        self,
        change_set: ChangeSet,
        kind: ActivityKind,
        request_id: RequestId | None = None,
        **details: Any,
    ) -> None:
        """Publish an activity of the change set, and count it; long texts are cut."""
        details = {
            name: detail[:DETAIL_LENGTH] if isinstance(detail, str) else detail
            for name, detail in details.items()
        }
        if kind is not ActivityKind.REQUEST_APPLIED:  # the most frequent, of which it keeps nothing
            self.stats.activity(change_set, kind, request_id, details)
        headers, payload = encode_activity(change_set, kind, request_id, details)
        await self._publish(self._subjects.activities(change_set), payload, headers)

    async def _publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        try:
            await self._nc.publish(subject, payload, headers=headers)
        except (nats.errors.Error, OSError) as error:
            log.warning("publish failed", subject=subject, error=str(error))
