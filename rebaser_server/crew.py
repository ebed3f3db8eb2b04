"""So many tasks at once: each is held, worked on, settled, and looked after once it is gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import structlog
from structlog.contextvars import bound_contextvars

from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery, JetStreamError
from rebaser_server.change_set import Workshop, look_again, process
from rebaser_server.errors import HistoryBroken, Interrupted, LeaseLost, Overtaken, RetryLater
from rebaser_server.lifetimes import Shutdown
from rebaser_server.tasks import Lease, held

log: Final = structlog.get_logger()


class Crew:
    """The process's slots."""

    def __init__(self, shop: Workshop, lease: Lease, shutdown: Shutdown, slots: int) -> None:
        self._shop = shop
        self._lease = lease
        self._shutdown = shutdown
        self._slots = slots
        self._freed = asyncio.Event()
        self.busy = 0

    @property
    def free(self) -> int:
        return self._slots - self.busy

    async def free_slot(self) -> None:
        """Return once a slot is free."""
        while not self.free:
            self._freed.clear()
            await self._freed.wait()

    def work_on(self, task: Delivery) -> Coroutine[Any, Any, None]:
        """Take a slot now; the work to run in it, which settles `task` and never raises."""
        self.busy += 1
        return self._work_on(task)

    async def _work_on(self, task: Delivery) -> None:
        try:
            change_set = self._shop.subjects.change_set_of(task.subject)
        except UnknownSubject as error:
            log.error("stray task", subject=task.subject, error=str(error))
            await task.term(str(error))
        else:
            with bound_contextvars(
                workspace=str(change_set.workspace_id), change_set=str(change_set.change_set_id)
            ):
                await self._process(task, change_set)
        finally:
            self.busy -= 1
            self._freed.set()

    async def _process(self, task: Delivery, change_set: ChangeSet) -> None:
        """The one place where any error of the work ends: logged, the task settled by `held`."""
        log.info("taken", delivered=task.delivered)
        try:
            async with held(self._shop.js, task, self._lease):
                await process(self._shop, change_set, self._shutdown)
            await look_again(self._shop, change_set)
            log.info("quiet")
        except Interrupted:
            log.info("interrupted")
        except (LeaseLost, Overtaken) as error:
            log.warning("not ours any more", reason=str(error))
        except RetryLater as error:
            log.warning("tried again later", reason=str(error), delay=error.delay)
        except JetStreamError as error:
            log.warning("NATS failed", error=f"{type(error).__name__}: {error}")
        except HistoryBroken as error:
            log.error("history broken", reason=str(error))
        except Exception:
            log.exception("work failed")
