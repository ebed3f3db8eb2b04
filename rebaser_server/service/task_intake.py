"""Take tasks from the shared consumer while a slot is free, until a stop is asked for."""

import asyncio
from contextlib import suppress
from typing import Final, Never

import structlog

from rebaser_core.jetstream import ConsumerGone, Delivery, PullConsumer
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster.provisioning import Provisioner
from rebaser_server.cluster.slots.slot_pool import SlotPool
from rebaser_server.cluster.task_runner import TaskRunner
from rebaser_server.errors import GraceExceeded, Interrupted
from rebaser_server.runtime.background import background
from rebaser_server.runtime.concurrency import Shutdown

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
    services, slots, shutdown = runner.services, runner.slots, runner.shutdown
    async with (
        PullConsumer(
            services.js,
            services.subjects.tasks_stream,
            TASKS_CONSUMER,
            expires=PULL_EXPIRES,
            idle_heartbeat=PULL_HEARTBEAT,
        ) as tasks,
        background(_enforce_grace(shutdown, grace)),
        background(slots.preempt()),
        asyncio.TaskGroup() as group,
    ):
        with suppress(Interrupted):
            while True:
                task = await _next_task(tasks, provisioner, slots, shutdown)
                group.create_task(runner.dispatch(task))
        log.info("stopping", change_sets=slots.busy)
        await tasks.close()


async def _next_task(
    tasks: PullConsumer, provisioner: Provisioner, slots: SlotPool, shutdown: Shutdown
) -> Delivery:
    task = None
    try:
        async with shutdown.interrupts():
            while task is None:
                await slots.wait_until_free()
                try:
                    task = await tasks.take(slots.free)
                except ConsumerGone as error:
                    await provisioner.recreate_tasks(error)
    except Interrupted:
        if task is not None:  # both came at once
            await task.nak()
        raise
    return task


async def _enforce_grace(shutdown: Shutdown, grace: float) -> Never:
    await shutdown.wait()
    await asyncio.sleep(grace)
    raise GraceExceeded(f"not finished {grace:g} s after a stop was asked for")
