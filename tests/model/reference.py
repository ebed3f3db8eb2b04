"""The protocol that ours replaces, as far as it takes to lose a wake-up without any fault."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Step


class State(NamedTuple):
    """One client, one worker, one change set. Nothing fails here."""

    to_publish: int
    client: str = "stores"
    requests: tuple[int, ...] = ()
    task: str = "none"
    worker: str = "idle"
    in_hand: int = 0
    dvu: bool = False
    """A dependent values update runs."""
    signal: bool = False
    """The quiet period has elapsed, which the DVU task is yet to be told."""
    published: int = 0
    handled: int = 0


@dataclass(frozen=True)
class Reference:
    """A task is acked on a signal, and nobody looks at the requests again."""

    requests: int = 2
    dvus: bool = False
    """Each request starts a DVU, which takes the signal only when it has ended."""

    def initial(self) -> State:
        return State(self.requests)

    def broken(self, state: State) -> str:
        del state
        return ""

    def restless(self, state: State) -> str:
        if state.requests:
            return "S1: requests are left, and no run will handle them"
        return "" if state.task == "none" else "S6: a task is left"

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._client(state)
        if state.task == "ready" and state.worker == "idle":
            taken = state._replace(task="held", worker="reads")
            yield Step("the task is given to the worker", taken)
        if state.worker != "idle":
            yield from self._worker(state)
        if state.dvu:
            yield Step("the DVU ends", state._replace(dvu=False))
        elif state.signal:
            told = state._replace(signal=False, worker="ends")
            yield Step("the DVU task takes the signal, and the loop is told to end", told)

    def _client(self, state: State) -> Iterator[Step]:
        if state.client == "pokes":
            words = "the client publishes a task"
            refused = state.task != "none"
            after = state._replace(client="stores", task=state.task if refused else "ready")
            yield Step(words + ": refused, there is one" * refused, after)
        elif state.to_publish:
            number = state.published + 1
            after = state._replace(
                client="pokes",
                to_publish=state.to_publish - 1,
                published=number,
                requests=(*state.requests, number),
            )
            yield Step(f"the client stores request {number}", after)

    def _worker(self, state: State) -> Iterator[Step]:
        if state.worker == "reads" and state.requests:
            after = state._replace(worker="handles", in_hand=state.requests[0])
            yield Step(f"the worker receives request {state.requests[0]}", after)
        elif state.worker == "reads" and not state.signal:
            yield Step("the quiet period elapses, and is signalled", state._replace(signal=True))
        elif state.worker == "handles":
            after = state._replace(
                worker="reads",
                dvu=state.dvu or self.dvus,
                requests=state.requests[1:],
                handled=state.in_hand,
                in_hand=0,
            )
            yield Step(f"the worker commits and deletes request {state.in_hand}", after)
        elif state.worker == "ends":
            after = state._replace(worker="idle", task="none")
            yield Step("the worker acks its task, which is deleted", after)
