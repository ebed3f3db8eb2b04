"""An edit without `await`: what is the caller's runs in the caller's thread."""

import threading
from types import SimpleNamespace
from typing import Any, cast

from rebaser_client.change_set import ChangeSetHandle
from rebaser_client.plan import LoadPlan
from rebaser_client.reader import ValueSet
from rebaser_client.sync import LoopThread, SyncChangeSet
from rebaser_core.updates import BatchLimits


class _Empty(ChangeSetHandle):
    """A change set without values, on no server."""

    def __init__(self) -> None:
        options, workspaces = SimpleNamespace(limits=BatchLimits()), cast("Any", None)
        sender = cast("Any", SimpleNamespace(options=options))
        super().__init__(sender, workspaces, "shop")

    async def values(self, *names: str, **_: Any) -> ValueSet:
        return ValueSet(0, [], [*names], may_be_stale=False)


def test_a_confirmation_of_an_edit_holds_up_no_other_thread() -> None:
    """A person who is asked may take long, or the client may be used to answer."""
    asked = list[threading.Thread]()

    def ask(plan: LoadPlan) -> bool:
        asked.append(threading.current_thread())
        return False

    loop = LoopThread()
    with SyncChangeSet(_Empty(), loop).edit(confirm=ask) as g:
        g.source("net", 100)

    assert asked == [threading.current_thread()]
    assert (g.plan.count("added"), g.outcome) == (1, None)
    loop.stop()
