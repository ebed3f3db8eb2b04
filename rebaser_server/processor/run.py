"""One run's loop: requests in order, the update beside them, until the change set is idle."""

import random
from asyncio import sleep
from contextlib import suppress
from typing import Never

from rebaser_core.jetstream import Delivery, JetStreamError
from rebaser_server.errors import Preempted, Resumed
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.context import RunContext
from rebaser_server.processor.dvu.scheduler import DvuScheduler
from rebaser_server.processor.request_handler import RequestHandler
from rebaser_server.processor.request_queue import RequestQueue
from rebaser_server.runtime.tasks import BackgroundTasks


class ChangeSetRun:
    """The work on one delivery of a task, by the owner of the change set."""

    def __init__(self, context: RunContext) -> None:
        services, settings = context.services, context.services.settings
        self._context = context
        self._ownership = context.ownership
        self._slot = context.slot
        self._settings = settings
        self._queue = RequestQueue(
            services.js, services.subjects, context.change_set, first=context.first
        )
        self._handler = RequestHandler(context, self._queue)
        self._dvu = DvuScheduler(context)
        self._checkpointer = Checkpointer(
            context.ownership, settings.checkpoint_every, settings.retention
        )
        self._companion = services.application.companion(context.ownership, self._checkpointer)
        context.ownership.observers = (
            self._handler.on_commit,  # what to answer
            self._slot.on_commit,  # how long without a request
            self._companion.on_commit,
            self._dvu.on_commit,
            self._checkpointer.on_commit,
        )

    async def until_idle(self) -> bool:
        """Work until the change set is idle; False if the run yields its slot before.

        No request is half handled then, and a checkpoint holds all that was committed, unless
        another change set needs the slot.
        """
        await self._start()
        async with self._queue, BackgroundTasks() as tasks:
            self._dvu.notify()
            tasks.start_on(self._dvu.wakeup, self._dvu.run)
            tasks.start_on(self._companion.needed, self._companion.run)
            tasks.start_on(self._checkpointer.requested, self._checkpointer.run)
            tasks.start_after(self._pause_of_watch(), self._watch_ownership)
            is_idle = await self._loop()
            await self._queue.handled.wait()
            if not self._ownership.state.control.deleted:
                await self._checkpointer.on_end(is_preempted=self._slot.is_wanted)
        return is_idle

    async def _start(self) -> None:
        ownership = self._ownership
        if owner := ownership.unreleased_owner:
            former_owners = self._context.services.former_owners
            if await former_owners.counts_as_death(self._context.change_set, owner):
                await self._handler.count_death(owner)
                await self._dvu.count_death()
        await self._companion.start()
        in_vain = ownership.entries_since_checkpoint - ownership.requests_since_checkpoint
        has_other_work = self._context.first is not None or ownership.state.control.unfinished
        was_released = not (has_other_work or ownership.unreleased_owner)
        only_unsaved = was_released and ownership.requests_since_checkpoint > 0
        if only_unsaved or in_vain >= self._settings.checkpoint_every:
            self._checkpointer.requested.set()  # of what runs wrote that made room or had no work

    async def _loop(self) -> bool:
        while True:
            requests = await self._next_requests()
            if self._slot.paused and await self._drain():
                return False  # P4
            if requests:
                await self._handler.handle(requests)
                if self._slot.expired and self._may_yield():
                    return False  # W10c
            elif self._must_yield():
                return False  # what it waits for may need the slot
            elif self._is_idle():
                return True  # W10

    async def _next_requests(self) -> list[Delivery]:
        """The next requests; none after the quiet period, or once another waits for the slot."""
        self._context.shutdown.check()
        if requests := await self._queue.take_buffered(self._handler.batch_size):
            return requests
        ownership = self._ownership
        wait = self._companion.idle_timeout(
            self._settings.quiet_period, unfinished=ownership.state.control.dvu_due
        )
        async with self._context.shutdown.interrupts():
            try:
                async with self._slot.wait_for_work(self._has_work):
                    request = await self._queue.next(wait)
            except Preempted:  # without a look at the stream: what it has is found by W12
                return await self._queue.take_buffered(self._handler.batch_size)
        return [request] if request else []

    async def _drain(self) -> bool:
        """Of a paused change set: see the update in hand through; False: resumed meanwhile."""
        try:
            async with self._context.shutdown.interrupts(), self._slot.resume.interrupts():
                await self._dvu.drain()
        except Resumed:
            self._dvu.resume()
            return False
        return True

    def _may_yield(self) -> bool:
        """Whether the run may end although the change set is not idle (W10c).

        Not while an update is in hand, which would be lost; and only if a request tells
        the reconciler of what is left, should this process die before it makes the new task.
        """
        control = self._ownership.state.control
        return control.claim is None and (self._queue.backlog > 0 or not control.dvu_due)

    def _has_work(self) -> bool:
        """Whether the run has work of its own, also without a request."""
        companion = self._companion
        is_working = companion.busy and not companion.awaits_another
        return self._ownership.state.control.dvu_due or is_working

    def _must_yield(self) -> bool:
        """Whether the run is in the way of what it waits for."""
        companion = self._companion
        return companion.awaits_another and (self._slot.is_set or companion.must_yield)

    def _is_idle(self) -> bool:
        return not self._ownership.state.control.dvu_due and not self._companion.busy

    async def _watch_ownership(self) -> Never:
        """A run that was overtaken while idle must not keep the task from redelivery (W10b)."""
        while True:
            with suppress(JetStreamError):  # an unanswered question shows nothing
                await self._ownership.confirm()
            await sleep(self._pause_of_watch())

    def _pause_of_watch(self) -> float:
        """Seconds until the next look."""
        return self._settings.confirm_every * random.uniform(0.75, 1.0)
