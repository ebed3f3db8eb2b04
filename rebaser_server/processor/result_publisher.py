"""What follows a request's commit: its activity, its reply, and its place in the statistics."""

from typing import Final

from rebaser_core.activities import ActivityKind
from rebaser_core.commits import RequestOutcome
from rebaser_core.jetstream import Delivery
from rebaser_core.messages import total_count
from rebaser_core.versioning import CONTENT_TYPE, REPLY_INBOX, header
from rebaser_server.processor.context import RunContext
from rebaser_server.processor.replies import CommittedRequest, build_response

_ACTIVITIES: Final = {
    RequestOutcome.DEAD: ActivityKind.REQUEST_DEAD,
    RequestOutcome.REFUSED: ActivityKind.REQUEST_REFUSED,
}


async def publish_result(run: RunContext, request: Delivery, result: CommittedRequest) -> None:
    """Count the result of a committed request, publish its activity and send its reply."""
    spans, sequence = run.ownership.spans, request.stream_sequence
    with spans.use(sequence):
        outcome = result.handled.outcome
        said = outcome.value
        corrected = total_count(result.handled.corrections)
        change_set, notifier = run.change_set, run.services.notifier
        notifier.stats.request(change_set, outcome, request.stored, corrected)
        await notifier.activity(
            change_set,
            _ACTIVITIES.get(outcome, ActivityKind.REQUEST_APPLIED),
            result.handled.id,
            commit=result.commit,
            outcome=said,
            corrections=corrected,
        )
        inbox = header(request.headers, REPLY_INBOX)
        if inbox:
            content_type = header(request.headers, CONTENT_TYPE)
            with spans.reply_span(sequence):
                await notifier.reply(inbox, build_response(change_set, result), content_type)
        spans.end(sequence, outcome=said, commit=result.commit)
