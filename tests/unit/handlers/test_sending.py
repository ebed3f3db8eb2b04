"""Alarms of timers, while they cannot be heard."""

import gc
import weakref
from pathlib import Path

from rebaser_server.commit_log.state import State
from rebaser_server.handlers.content import KeyContent, Timer
from rebaser_server.handlers.sending import Alarms
from rebaser_server.processor.ownership import acquire_ownership
from tests.helpers.deployment import new_change_sets
from tests.helpers.simulated_nats import Nats, simulated


def test_keys_that_wait_for_alarms_keep_no_more_than_their_timers(tmp_path: Path) -> None:
    """A worker goes on for as long as no alarm is heard, and its keys come and go."""

    async def test(nats: Nats) -> None:
        [change_set] = new_change_sets(1)
        own = await acquire_ownership(nats.loader(change_set), "worker")
        timer = Timer("open", "[]", "2030-01-01T00:00:00Z", 1)
        content = KeyContent("rooms", "r-1", "x" * 1_000_000, timers={"t": timer})
        own.state = State(content)
        alarms = Alarms(nats.streams)
        alarms.check_soon(own)
        gone = weakref.ref(own)

        del own, content

        gc.collect()
        assert gone() is None
        kept = KeyContent("rooms", "r-1", timers={"t": timer})
        assert [*alarms._unchecked.values()] == [kept]

    simulated(tmp_path, test)
