"""What becomes of a task: held, worked on, settled, and looked after once it is gone."""

from dataclasses import dataclass
from typing import Final

import structlog
from structlog.contextvars import bound_contextvars

from rebaser_client.errors import ClientError
from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery, JetStreamError
from rebaser_server.change_set import Workshop, look_again, process
from rebaser_server.errors import HistoryBroken, Interrupted, LeaseLost, Overtaken, RetryLater
from rebaser_server.lifetimes import Shutdown
from rebaser_server.slots import Slots, Turn
from rebaser_server.tasks import Lease, held

log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Crew:
    """Those who work on tasks, one in each slot."""

    shop: Workshop
    lease: Lease
    shutdown: Shutdown
    slots: Slots

    async def work_on(self, task: Delivery, turn: Turn) -> None:
        """Settle `task` by working on its change set, then give the slot back. Never raises."""
        try:
            change_set = self.shop.subjects.change_set_of(task.subject)
        except UnknownSubject as error:
            log.error("stray task", subject=task.subject, error=str(error))
            await task.term(str(error))
        else:
            with bound_contextvars(
                workspace=str(change_set.workspace_id), change_set=str(change_set.change_set_id)
            ):
                await self._process(task, change_set, turn)
        finally:
            self.slots.give_back(turn)

    async def _process(self, task: Delivery, change_set: ChangeSet, turn: Turn) -> None:
        """The one place where any error of the work ends: logged, the task settled by `held`."""
        log.info("taken", delivered=task.delivered)
        try:
            async with held(self.shop.js, task, self.lease):
                await process(self.shop, change_set, self.shutdown, turn)
            await look_again(self.shop, change_set)
            log.info("quiet")
        except Interrupted:
            log.info("interrupted")
        except (LeaseLost, Overtaken) as error:
            log.warning("not ours any more", reason=str(error))
        except RetryLater as error:
            log.warning("tried again later", reason=str(error), delay=error.delay)
        except (JetStreamError, ClientError) as error:
            log.warning("NATS failed", error=f"{type(error).__name__}: {error}")
        except HistoryBroken as error:
            log.error("history broken", reason=str(error))
        except Exception:
            log.exception("work failed")
