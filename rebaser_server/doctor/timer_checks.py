"""Check of timers: whether NATS has an alarm for each that a key's state names."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial

from rebaser_core.errors import RebaserError, many
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import StreamNotFound
from rebaser_core.streams import Streams
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.doctor.findings import Finding
from rebaser_server.handlers.checkpoints import KeyMachine, content_of
from rebaser_server.handlers.content import KeyContent, Timer
from rebaser_server.handlers.sending import Alarms

Timers = Sequence[tuple[str, Timer]]


async def check_timers(
    streams: Streams, loaders: Sequence[StateLoader], sample: int | None
) -> AsyncIterator[Finding]:
    """Check the keys among the change sets; a `sample` of them, unless an alarm is gone."""
    keys = [each for each in loaders if isinstance(each.machine, KeyMachine)]
    alarms, is_any_lost = Alarms(streams), False
    waiting = await streams.js.stream_subjects(streams.requests_stream)
    for number, loader in enumerate(random.sample(keys, len(keys))):
        if sample is not None and number >= sample and not is_any_lost:
            return
        change_set = loader.change_set
        with suppress(RebaserError, OSError):  # the check of histories reports it
            state = await loader.load()
            # The run of the key sets those that are not set yet.
            if streams.requests(change_set) in waiting or state.control.dvu_due:
                continue
            content = content_of(state)
            try:
                lost: Timers = await alarms.lost(change_set, content)
            except StreamNotFound:
                lost = list(content.timers.items())
            if lost:
                is_any_lost = True
                yield Finding(
                    "timers",
                    str(change_set),
                    f"key {content.key!r} of {content.service} has "
                    f"{many(len(lost), 'timer')} without an alarm",
                    repair=partial(_set, alarms, change_set, content, lost),
                )


async def _set(alarms: Alarms, change_set: ChangeSet, content: KeyContent, lost: Timers) -> None:
    for name, timer in lost:
        await alarms.arm(change_set, content.service, content.key, name, timer)
