"""Take tasks from the shared consumer while a slot is free, until a stop is asked for."""

import asyncio
from contextlib import suppress
from typing import Final, Never

import structlog

from rebaser_core.jetstream import ConsumerGone, Delivery, PullConsumer
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster.provisioning import Provisioner
from rebaser_server.cluster.tasks import TaskRunner
from rebaser_server.errors import GraceExceeded, Interrupted, WorkStopped
from rebaser_server.runtime.tasks import Shutdown, background

log: Final = structlog.get_logger()

PULL_EXPIRES: Final = 2.5
"""Seconds in which the server may deliver tasks to a process that is frozen or cut off. Less than
the silence after which it is presumed dead: these are among the tasks made anew then (F7)."""
PULL_HEARTBEAT: Final = 1.0  # seconds


async def take_tasks(runner: TaskRunner, provisioner: Provisioner, grace: float) -> None:
    """Work on a change set in each slot; return once all are given back after a stop.

    Raises:
        GraceExceeded: that took longer than `grace` seconds; the work in hand is dropped.
    """
    shutdown = runner.shutdown
    async with (
        background(_enforce_grace(shutdown, grace)),
        background(runner.slots.preempt()),
        asyncio.TaskGroup() as group,
    ):
        with suppress(Interrupted):
            while True:
                async with shutdown.interrupts():
                    await runner.writes.resumed.wait()
                with suppress(WorkStopped):
                    await _take_until_stopped(runner, provisioner, group)
        log.info("stopping", change_sets=runner.slots.busy)


async def _take_until_stopped(
    runner: TaskRunner, provisioner: Provisioner, group: asyncio.TaskGroup
) -> None:
    """Take tasks; what was delivered and not taken is given back at the end."""
    services = runner.services
    async with PullConsumer(
        services.js,
        services.subjects.tasks_stream,
        TASKS_CONSUMER,
        expires=PULL_EXPIRES,
        idle_heartbeat=PULL_HEARTBEAT,
    ) as tasks:
        while True:
            task = await _next_task(tasks, provisioner, runner)
            group.create_task(runner.dispatch(task))


async def _next_task(tasks: PullConsumer, provisioner: Provisioner, runner: TaskRunner) -> Delivery:
    task, slots = None, runner.slots
    try:
        async with runner.shutdown.interrupts(), runner.writes.stop.interrupts():
            while task is None:
                await slots.wait_until_free()
                try:
                    task = await tasks.take(slots.free)
                except ConsumerGone as error:
                    await provisioner.recreate_tasks(error)
    except (Interrupted, WorkStopped):
        if task is not None:  # both came at once
            await task.nak()
        raise
    return task


async def _enforce_grace(shutdown: Shutdown, grace: float) -> Never:
    await shutdown.wait()
    await asyncio.sleep(grace)
    raise GraceExceeded(f"not finished {grace:g} s after a stop was asked for")
