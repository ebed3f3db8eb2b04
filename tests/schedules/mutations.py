"""Rules of the protocol, each put out of force: what the schedules must then find."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any
from unittest import mock

from rebaser_client import requests as client_requests
from rebaser_core import requests as core_requests
from rebaser_core.commits import DvuClaim, RequestOutcome
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import AckSubject, Delivery, JetStream
from rebaser_core.jetstream.api import JetStreamRequests
from rebaser_core.jetstream.messages import is_delivery
from rebaser_core.jetstream.ordered import OrderedReader
from rebaser_server.cluster import tasks
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.pauses import PauseMonitor
from rebaser_server.cluster.reconciler import Reconciler
from rebaser_server.commit_log.log import CommitLog, LogEnd
from rebaser_server.commit_log.state import RecentRequests, State
from rebaser_server.commit_log.state_loader import StateCache, StateLoader
from rebaser_server.errors import Fenced
from rebaser_server.graph_application import application, branches, commands
from rebaser_server.handlers.application import HandlerApplication, content_of
from rebaser_server.handlers.content import KeyChange, KeyContent
from rebaser_server.handlers.sending import SendJob, Sent
from rebaser_server.processor import ownership, run
from rebaser_server.processor.dvu import DvuCommitter
from rebaser_server.processor.ownership import Ownership, acquire_ownership
from rebaser_server.processor.request_queue import HandledRequests
from rebaser_server.processor.requests import RequestHandler
from rebaser_server.runtime.failures import EvaluatorAway
from rebaser_server.runtime.progress import JobProgress
from rebaser_server.values.graph import Graph

Mutation = Callable[[], AbstractContextManager[Any]]


def without_looking_again() -> AbstractContextManager[Any]:
    """W12: nobody looks whether a request came while the task was being removed."""
    return mock.patch.object(tasks, "recheck_after_ack", _nothing)


def without_compare_and_swap() -> AbstractContextManager[Any]:
    """W7: whoever believes to own the log can write it."""

    return mock.patch.multiple(
        JetStreamRequests,
        **{name: _unconditional(name) for name in ("publish", "publish_async", "publish_batch")},
    )


def _unconditional(name: str) -> Any:
    real = getattr(JetStreamRequests, name)

    async def publish(self: JetStreamRequests, *args: Any, **options: Any) -> Any:
        options.pop("expected_last_subject_sequence", None)
        options.pop("expected_last_message_id", None)
        return await real(self, *args, **options)

    return publish


def without_remembering_the_need() -> AbstractContextManager[Any]:
    """D1: that an update is due is forgotten with the run that knew it."""

    async def acquire(*args: Any) -> Ownership:
        ownership = await acquire_ownership(*args)
        control = ownership.state.control
        ownership.state.control = control.model_copy(
            update={"clean_sequence": control.dirty_sequence}
        )
        return ownership

    return mock.patch.object(run, "acquire_ownership", acquire)


def beginning_with_states_that_the_log_left_behind() -> AbstractContextManager[Any]:
    """W2c: what this process released is used although other runs have committed since."""

    async def take(self: StateCache, change_set: ChangeSet, _: LogEnd) -> State | None:
        kept = self._drop(change_set)
        return kept and kept.state

    return mock.patch.object(StateCache, "take", take)


def without_knowing_what_was_handled() -> AbstractContextManager[Any]:
    """W5 and the recent ids of W7: what is delivered again is applied again."""

    def is_new(self: RequestHandler, _: Any) -> bool:
        self.ownership.state.recent = RecentRequests()
        return True

    return mock.patch.object(RequestHandler, "_is_new", is_new)


def without_minding_gaps() -> AbstractContextManager[Any]:
    """W6: a request that was skipped is later taken for handled, and deleted."""
    real = OrderedReader._next_buffered

    async def next_buffered(self: OrderedReader) -> Any:
        first = next(filter(is_delivery, self._inbox.queue), None)
        if first is not None:
            self._sequence = AckSubject.parse(first.reply).consumer_sequence - 1
        return await real(self)

    return mock.patch.object(OrderedReader, "_next_buffered", next_buffered)


def deleting_before_committing() -> AbstractContextManager[Any]:
    """W9 before W7: a request is gone before its effect is sure (I3)."""
    real = RequestHandler.handle

    async def handle(self: RequestHandler, requests: Any) -> None:
        for request in requests:
            await self.queue.handled.add(request.stream_sequence)
        await self.queue.handled.send()
        await real(self, requests)

    return mock.patch.object(RequestHandler, "handle", handle)


def with_results_of_any_claim() -> AbstractContextManager[Any]:
    """D4: the result of an update is taken whether or not its claim stands."""

    async def commit(self: DvuCommitter, claim: DvuClaim, base: int, result: Any) -> bool:
        address = await _stored(self, claim, base, result)
        async with self._ownership.lock:
            await self._apply_and_append(claim, address, result)
        return True

    return mock.patch.object(DvuCommitter, "commit", commit)


def looking_at_the_claim_too_early() -> AbstractContextManager[Any]:
    """D4: whether the claim stands is looked at as results are placed, and not again."""

    async def commit(self: DvuCommitter, claim: DvuClaim, base: int, result: Any) -> bool:
        if self._ownership.state.control.claim != claim:
            return False
        address = await _stored(self, claim, base, result)
        await asyncio.sleep(2)  # or hardly anything comes between
        async with self._ownership.lock:
            await self._apply_and_append(claim, address, result)
        return True

    return mock.patch.object(DvuCommitter, "commit", commit)


def with_parts_that_settle_all() -> AbstractContextManager[Any]:
    """D4: who commits a part of a result says that the update is over."""
    real = DvuCommitter._apply_and_append

    async def apply_and_append(
        self: DvuCommitter, claim: DvuClaim, address: Any, result: Any, **_: bool
    ) -> None:
        await real(self, claim, address, result)

    return mock.patch.object(DvuCommitter, "_apply_and_append", apply_and_append)


async def _stored(committer: DvuCommitter, claim: DvuClaim, base: int, result: Any) -> Any:
    log = committer._ownership.loader.log
    return await result.store(claim, base, log.max_batch_bytes) if len(result) else None


@contextmanager
def with_results_of_whoever_was_overtaken() -> Iterator[None]:
    """D4: a result is appended behind whatever is there.

    To be overtaken during an update is rare unless all others are presumed dead.
    """
    real = CommitLog.append

    async def append(self: CommitLog, entries: Any, extra_headers: Any) -> Any:
        settled = entries[-1].settled
        if settled is not None and settled.covers is not None:
            last, _ = await self.last()
            entries = [entries[-1].model_copy(update={"previous": last})]
        return await real(self, entries, extra_headers)

    with presuming_every_other_dead(), mock.patch.object(CommitLog, "append", append):
        yield


def with_results_that_cover_all() -> AbstractContextManager[Any]:
    """D5: a result removes roots that came after its claim, too."""
    real = Graph.clear_roots

    def clear_roots(self: Graph, covers: int) -> None:
        real(self, max(self.roots.values(), default=covers))

    return mock.patch.object(Graph, "clear_roots", clear_roots)


def settling_what_is_not_its_own() -> AbstractContextManager[Any]:
    """W15: a run that was overtaken gives its task back, under whoever works on it now."""

    @asynccontextmanager
    async def settling(
        js: JetStream, task: Delivery, terms: tasks.LeaseTerms
    ) -> AsyncIterator[None]:
        overtaken: list[Fenced] = []
        try:
            async with lease(js, task, terms):
                try:
                    yield
                except Fenced as error:
                    overtaken.append(error)
                    raise _Other from error
        except _Other:
            raise overtaken.pop() from None

    lease = tasks.lease
    return mock.patch.object(tasks, "lease", settling)


@contextmanager
def without_looking_whether_it_was_overtaken() -> Iterator[None]:
    """W10b: a run that is fenced off computes on, and keeps its slot.

    To be overtaken during an update is rare unless all others are presumed dead.
    """
    with presuming_every_other_dead(), mock.patch.object(Ownership, "confirm", _nothing):
        yield


@contextmanager
def without_a_release_after_a_failure() -> Iterator[None]:
    """W14: a run that could not handle a request leaves its name in the log, like one that died.

    Since its process lives, that would count but every tenth time.
    """
    with (
        mock.patch.object(Ownership, "leave", _nothing),
        mock.patch.object(ownership, "LOST_LEASES_PER_DEATH", 1),
    ):
        yield


def without_reconcilers() -> AbstractContextManager[Any]:
    """X1: a request whose client died before the task was published has none, ever."""
    return mock.patch.object(Reconciler, "reconcile", _nothing)


def believing_that_it_is_still_paused() -> AbstractContextManager[Any]:
    """P2: a task that was made on resuming is set aside with the one that was there."""

    async def is_still_paused(*_: Any) -> bool:
        return True

    return mock.patch.object(PauseMonitor, "is_still_paused", is_still_paused)


def passing_over_what_head_did() -> AbstractContextManager[Any]:
    """A branch moves its place in head's log, and takes over nothing."""
    real = commands.head_changes_since

    async def head_changes_since(*args: Any) -> Any:
        return (await real(*args))._replace(changes=[])

    return mock.patch.object(commands, "head_changes_since", head_changes_since)


@contextmanager
def going_to_head_under_a_new_id() -> Iterator[None]:
    """B1: head does not recognise a difference that is sent again."""
    new_ids = mock.patch.object(branches, "head_request_id", side_effect=lambda _: RequestId())
    with new_ids, mock.patch.object(application, "admit_difference", _admitted):
        yield


def without_an_end_of_branches() -> AbstractContextManager[Any]:
    """Batches behind the end of a branch take effect."""
    return mock.patch.object(application, "closed_reason", return_value=None)


def sending_what_no_commit_has() -> AbstractContextManager[Any]:
    """O1: what a handler sends is not in the commit of its call."""
    real = KeyChange.to_json

    def to_json(self: KeyChange) -> dict[str, Any]:
        return {name: each for name, each in real(self).items() if name != "sends"}

    return mock.patch.object(KeyChange, "to_json", to_json)


def sending_before_the_commit() -> AbstractContextManager[Any]:
    """O2: what a handler sends is on its way before its commit is written."""
    real = HandlerApplication.apply

    async def apply(self: HandlerApplication, ownership: Ownership, *request: Any) -> Any:
        applied = await real(self, ownership, *request)
        content = content_of(ownership.state)
        if applied.is_dirty:
            job = self.planner(ownership.loader.change_set).prepare(content, 0, is_repeated=False)
            with suppress(EvaluatorAway):
                await job.run(is_suspect=False, progress=JobProgress(0), commit_part=_nothing)
        return applied

    return mock.patch.object(HandlerApplication, "apply", apply)


def sending_in_any_order() -> AbstractContextManager[Any]:
    """O2: calls to one target are on their way together."""

    async def send(self: SendJob, **_: Any) -> Sent:
        await asyncio.gather(*(self._send(call) for call in self.calls))
        return Sent(self.affected)

    return mock.patch.object(SendJob, "run", send)


def taking_for_sent_what_is_on_its_way() -> AbstractContextManager[Any]:
    """O3: a commit says that all is sent before it is confirmed."""
    real = SendJob.run

    async def run_later(self: SendJob, **options: Any) -> Sent:
        background_tasks.append(asyncio.ensure_future(_contained(real(self, **options))))
        return Sent(self.affected)

    background_tasks: list[asyncio.Future[None]] = []
    return mock.patch.object(SendJob, "run", run_later)


async def _contained(work: Any) -> None:
    with suppress(EvaluatorAway):
        await work


def sending_nothing_that_another_run_left() -> AbstractContextManager[Any]:
    """O3: what a run had not sent when it ended is dropped by the next one."""

    async def acquire(*args: Any) -> Ownership:
        ownership = await acquire_ownership(*args)
        content_of(ownership.state).outgoing.clear()
        return ownership

    return mock.patch.object(run, "acquire_ownership", acquire)


def without_knowing_what_was_heard() -> AbstractContextManager[Any]:
    """O4: a call that is sent once more, after its id was forgotten, takes effect once more."""
    return mock.patch.object(KeyContent, "has_heard", return_value=False)


def presuming_every_other_dead() -> AbstractContextManager[Any]:
    """F6: each member that is heard, for as long as it is; it is no rule that this breaks."""

    def suspected(self: Membership) -> set[str]:
        return self._last_heard.keys() - {self.instance}

    return mock.patch.object(Membership, "suspected", suspected)


@contextmanager
def without_tasks_from_clients() -> Iterator[None]:
    """C2: a request is stored, and nobody is told."""
    with (
        mock.patch.object(core_requests, "ensure_task", _yes),
        mock.patch.object(client_requests, "ensure_task", _yes),
    ):
        yield


def passing_over_a_stream_made_anew() -> AbstractContextManager[Any]:
    """S-5: what has a number that was handled passes for handled, whatever its id and time."""
    return mock.patch.object(StateLoader, "require_settled", _ignore)


def without_confirmed_deletes() -> AbstractContextManager[Any]:
    """W9: a run is idle while the deletes of what it handled are on their way."""
    return mock.patch.object(HandledRequests, "wait", HandledRequests.send)


def purging_what_was_not_handled() -> AbstractContextManager[Any]:
    """W9: a purge takes the requests along that came after those that were handled."""
    real = JetStream.request_async

    async def request_async(self: JetStream, verb: str, body: Any) -> Any:
        all_of_them = {key: value for key, value in body.items() if key != "seq"}
        return await real(self, verb, all_of_them if verb.startswith("STREAM.PURGE.") else body)

    return mock.patch.object(JetStream, "request_async", request_async)


class _Other(Exception):
    """What the lease does not take for a loss."""


async def _admitted(*_: Any) -> RequestOutcome:
    return RequestOutcome.APPLIED


async def _nothing(*_: Any, **__: Any) -> int:
    return 0


def _ignore(*_: Any) -> None:
    """Whatever it is."""


async def _yes(*_: Any, **__: Any) -> bool:
    return True


MUTATIONS: dict[Mutation, tuple[int, ...]] = {
    without_looking_again: (59, 94),
    without_compare_and_swap: (80,),
    without_remembering_the_need: (11,),
    beginning_with_states_that_the_log_left_behind: (32, 75),
    without_knowing_what_was_handled: (32, 1),
    without_minding_gaps: (64,),
    deleting_before_committing: (22,),
    with_results_of_any_claim: (10, 11),
    looking_at_the_claim_too_early: (16, 83),
    with_results_of_whoever_was_overtaken: (7, 18),
    with_parts_that_settle_all: (0,),
    with_results_that_cover_all: (10, 11),
    settling_what_is_not_its_own: (80, 38),
    without_a_release_after_a_failure: (72,),
    without_reconcilers: (55,),
    believing_that_it_is_still_paused: (1,),
    without_tasks_from_clients: (1,),
    passing_over_what_head_did: (1,),
    going_to_head_under_a_new_id: (10, 16),
    without_an_end_of_branches: (12,),
    passing_over_a_stream_made_anew: (6,),
    without_confirmed_deletes: (230, 120),
    purging_what_was_not_handled: (130,),
    without_looking_whether_it_was_overtaken: (69, 2),
}
"""With schedules that show it soon, each on some Python; otherwise one of the first shows it.

A change of the product may change them, and the test then looks through hundreds, for minutes: name
another one that shows it.
"""

OF_CALLS: dict[Mutation, tuple[int, ...]] = {
    sending_what_no_commit_has: (0,),
    sending_before_the_commit: (157, 234),
    sending_in_any_order: (109,),
    taking_for_sent_what_is_on_its_way: (53,),
    sending_nothing_that_another_run_left: (7,),
    without_knowing_what_was_heard: (22, 72),
}
"""Those that schedules of a bank show."""
