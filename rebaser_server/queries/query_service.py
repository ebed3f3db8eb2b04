"""Answer what is asked over plain NATS: any Rebaser does, from the log and the store."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from nats.aio.client import Client

from rebaser_core.ids import RequestId
from rebaser_core.messages import OutcomeQuery, OutcomeQueryV1, OutcomeReply, OutcomeReplyV2
from rebaser_core.queries import (
    DifferenceQuery,
    DifferenceReply,
    ProvenanceQuery,
    ProvenanceReply,
    RevertQuery,
    RevertReply,
    ValuesQuery,
    ValuesReply,
)
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import REQUEST_DIGEST, header
from rebaser_server.processor.outcomes import OutcomeLookup
from rebaser_server.processor.ownership import HeldStates
from rebaser_server.queries.bounds import QueryBounds
from rebaser_server.queries.comparison_service import (
    ComparisonService,
    no_difference,
    no_revert,
)
from rebaser_server.queries.intake import Intake, QueryKind
from rebaser_server.queries.provenance.provenance_service import ProvenanceService, no_provenance
from rebaser_server.queries.state_cache import OpenLoader
from rebaser_server.queries.value_service import ValueService, refusal

DEFAULT: Final = QueryBounds()


class QueryService:
    """Answers each kind of question, within bounds; owns and changes nothing."""

    def __init__(
        self,
        subjects: Subjects,
        open_loader: OpenLoader,
        outcomes: OutcomeLookup,
        bounds: QueryBounds = DEFAULT,
        held: HeldStates | None = None,
    ) -> None:
        """`held`: the states that the process holds for its runs; none by default."""
        self._subjects = subjects
        self._bounds = bounds
        self._outcomes = outcomes
        self.values = ValueService(open_loader, bounds, held)
        self.provenance = ProvenanceService(open_loader, self.values.cache)
        self.comparisons = ComparisonService(open_loader, bounds.answer_bytes)

    @asynccontextmanager
    async def serve(self, nc: Client) -> AsyncIterator[None]:
        """Answer questions for as long as the body runs."""
        values = QueryKind("values", ValuesQuery, ValuesReply, self.values.replies, refusal)
        outcomes = QueryKind("outcomes", OutcomeQuery, OutcomeReply, self._outcome, _no_outcome)
        provenance = QueryKind(
            "provenance",
            ProvenanceQuery,
            ProvenanceReply,
            self.provenance.replies,
            no_provenance,
        )
        differences = QueryKind(
            "differences",
            DifferenceQuery,
            DifferenceReply,
            self.comparisons.difference,
            no_difference,
        )
        reverts = QueryKind("reverts", RevertQuery, RevertReply, self.comparisons.revert, no_revert)
        async with (
            Intake(nc, self._subjects, provenance, self._bounds).open(),
            Intake(nc, self._subjects, values, self._bounds).open(),
            Intake(nc, self._subjects, outcomes, self._bounds).open(),
            Intake(nc, self._subjects, differences, self._bounds).open(),
            Intake(nc, self._subjects, reverts, self._bounds).open(),
        ):
            yield

    async def _outcome(
        self, query: OutcomeQueryV1, headers: Mapping[str, str]
    ) -> AsyncGenerator[OutcomeReplyV2, None]:
        yield await self._outcomes.find(query, header(headers, REQUEST_DIGEST) or "")


def _no_outcome(query_id: RequestId, why: str) -> OutcomeReplyV2:
    return OutcomeReplyV2(id=query_id, error=why)
