"""Checks that the stream of requests and the logs are of one past (S-5)."""

from collections.abc import AsyncIterator
from functools import partial

from rebaser_core.commits import ControlState
from rebaser_core.errors import RebaserError
from rebaser_core.jetstream import JetStream, ordered_reader
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.doctor.findings import Finding, Severity
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.processor.dead_letters import store_dead_letter
from rebaser_server.processor.request_queue import StoredRequests, announced_request


async def check_requests(
    js: JetStream, subjects: Subjects, loaders: list[StateLoader]
) -> AsyncIterator[Finding]:
    """Compare the requests that wait, and the end of their stream, with what was handled."""
    waiting = await js.stream_subjects(subjects.requests_stream)
    ends = (await js.stream_info(subjects.requests_stream)).state.last_seq
    greatest = 0
    for loader in loaders:
        try:
            _, last = await loader.log.last()
            if last is None or last.control.deleted:
                continue
            greatest = max(greatest, last.control.last_sequence)
            if subjects.requests(loader.change_set) in waiting:
                await _require_settled(js, subjects, loader, last.control)
        except HistoryInconsistent as error:
            yield Finding(
                "requests",
                str(loader.change_set),
                str(error),
                Severity.ERROR,
                repair=partial(_bury, js, subjects, loader),
            )
        except RebaserError:
            continue  # the check of histories reports it
    if ends < greatest:
        stream = subjects.requests_stream
        yield Finding(
            "requests",
            stream,
            f"ends at {ends}, but {greatest} was handled: it was made anew, or is of another past",
            Severity.ERROR,
            remedy="restore it, or stop all clients, `rebaser doctor --all --repair`, and "
            f"`nats stream purge {stream} --seq {greatest + 1}` once it is empty",
        )


async def _require_settled(
    js: JetStream, subjects: Subjects, loader: StateLoader, control: ControlState
) -> None:
    first = await StoredRequests(js, subjects, loader.change_set).lowest()
    if first is None or first.sequence > control.last_sequence:
        return
    try:
        state = (await loader.load()).state
    except HistoryInconsistent:
        return  # the check of histories reports it
    request_id = announced_request(first.headers)
    loader.require_settled(state, first.sequence, request_id, first.time)


async def _bury(js: JetStream, subjects: Subjects, loader: StateLoader) -> None:
    """Move the requests that another past hides to the dead letters, which can be replayed."""
    state = (await loader.load()).state
    requests = ordered_reader(js, subjects.requests_stream, subjects.requests(loader.change_set))
    async with requests:
        while (request := await requests.next(idle_timeout=0)) is not None:
            if request.stream_sequence > state.control.last_sequence:
                return
            try:
                loader.require_settled(
                    state,
                    request.stream_sequence,
                    announced_request(request.headers),
                    request.timestamp,
                )
            except HistoryInconsistent as error:
                await store_dead_letter(
                    js, subjects, loader, request, reason=str(error), attempts=0
                )
                await js.delete_message(subjects.requests_stream, request.stream_sequence)
