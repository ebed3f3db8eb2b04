"""What becomes of a task: held, worked on, settled, and looked after once it is gone."""

from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
from structlog.contextvars import bound_contextvars

from rebaser_client.errors import ClientError
from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery, JetStreamError
from rebaser_server.cluster.pauses import Pauses
from rebaser_server.cluster.slot_pool import Slots
from rebaser_server.cluster.task_lease import Lease, held, remove
from rebaser_server.errors import HistoryBroken, Interrupted, LeaseLost, Overtaken, RetryLater
from rebaser_server.processor.context import Workshop
from rebaser_server.processor.pending_work import look_again
from rebaser_server.processor.processor import process
from rebaser_server.processor.slot_lease import Turn
from rebaser_server.runtime.concurrency import Shutdown
from rebaser_server.runtime.containment import contained, printable
from rebaser_server.runtime.transient_errors import is_transient
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Crew:
    """Those who work on tasks, one in each slot."""

    shop: Workshop
    lease: Lease
    shutdown: Shutdown
    slots: Slots
    pauses: Pauses

    def begin(self, task: Delivery) -> Coroutine[Any, Any, None]:
        """What to do about `task`, which settles it and never raises: its slot is taken by now."""
        try:
            change_set = self.shop.subjects.parse_change_set(task.subject)
        except UnknownSubject as error:
            return self._throw_away(task, error)
        if self.pauses.holds(change_set):
            return self._set_aside(task, change_set)
        turn = self.slots.take(change_set)
        if turn is None:
            return self._put_off(task, self.slots.put_off(change_set))
        return self._work_on(task, change_set, turn)

    async def _throw_away(self, task: Delivery, error: UnknownSubject) -> None:
        log.error("stray task", subject=printable(task.subject), error=printable(error))
        with contained("task", subject=task.subject):  # it comes again
            await task.term(printable(error))

    async def _put_off(self, task: Delivery, delay: float) -> None:
        with contained("task", subject=task.subject):  # it comes again all the same
            await task.nak(delay)

    async def _set_aside(self, task: Delivery, change_set: ChangeSet) -> None:
        """Paused: the task is gone as that of a quiet one is, and nothing was touched (P2)."""
        with contained("task", subject=task.subject):
            await remove(self.shop.js, task)
            await self._look_again(change_set)

    async def _look_again(self, change_set: ChangeSet) -> None:
        """W12, unless paused: who resumes it pokes, but may find the task still there (P2)."""
        if self.pauses.holds(change_set):
            with suppress(JetStreamError):  # else as if it were not: it costs a task too many
                if await self.pauses.still(change_set):
                    return
        await look_again(self.shop, change_set)

    async def _work_on(self, task: Delivery, change_set: ChangeSet, turn: Turn) -> None:
        """Work on the change set, then give the slot back."""
        try:
            with bound_contextvars(
                workspace=str(change_set.workspace_id),
                change_set=str(change_set.change_set_id),
                task=task.stream_sequence,
                delivery=task.consumer_sequence,
            ):
                await self._process(task, change_set, turn)
        finally:
            self.slots.give_back(turn)  # and nothing is left here of the task (W13)

    async def _process(self, task: Delivery, change_set: ChangeSet, turn: Turn) -> None:
        """The one place where any error of the work ends: logged, the task settled by `held`."""
        log.info("taken", delivered=task.delivered)
        metrics.TASKS.labels("first" if task.delivered == 1 else "again").inc()
        how, board = "failed", self.shop.announcer.board
        try:
            with board.hold(change_set), self.pauses.told(change_set, turn):
                async with held(self.shop.js, task, self.lease):
                    quiet = await process(self.shop, change_set, self.shutdown, turn)
            await self._look_again(change_set)
            how = "quiet" if quiet else "paused" if turn.paused else "turn over"
            log.info(how)
        except Interrupted:
            how = "interrupted"
            log.info(how)
        except (LeaseLost, Overtaken) as error:
            how = "lost"
            if isinstance(error, LeaseLost):
                metrics.LEASE_LOSSES.inc()
            else:
                metrics.COMMIT_CONFLICTS.inc()
            log.warning("ownership lost", reason=str(error))
        except RetryLater as error:
            how = "retried"
            metrics.RETRIES.inc()
            board.failure(change_set, "retry scheduled", str(error))
            log.warning("retry scheduled", reason=str(error), delay=error.delay)
        except HistoryBroken as error:
            board.failure(change_set, "history broken", str(error))
            log.error("history broken", reason=str(error), remedy="see `rebaser doctor`")
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            if isinstance(error, OSError | JetStreamError | ClientError) and is_transient(error):
                failed = "store failed" if isinstance(error, OSError) else "NATS failed"
                board.failure(change_set, failed, str(error))
                log.warning(failed, error=what)
            else:
                board.failure(change_set, "work failed", what)
                log.exception("work failed")
        finally:
            metrics.TASK_ENDS.labels(how).inc()
