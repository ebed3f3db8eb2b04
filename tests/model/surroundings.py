"""What happens around the runs: clients, the task stream, the reconciler, presumptions of death."""

from collections.abc import Iterator

from tests.model.explorer import Step
from tests.model.numbering import next_sequence
from tests.model.shapes import Instance, Request, Run, State


def steps(world: Instance, state: State) -> Iterator[Step]:
    for number in range(len(state.clients)):
        yield from client(world, state, number)
    yield from task_stream(world, state)
    yield from reconciler(world, state)
    for number in range(len(state.survivors)):
        yield from survivor(world, state, number)


# -- clients: C1, C2 ----------------------------------------------------------------------------


def ids_of(world: Instance, number: int) -> list[int]:
    """The bits of a client's requests."""
    before = sum(map(len, world.clients[:number]))
    return [1 << (before + index) for index in range(len(world.clients[number]))]


def kind_of(world: Instance, request_id: int) -> str:
    return "".join(world.clients)[request_id.bit_length() - 1]


def name(request: Request | int) -> str:
    request_id = request if isinstance(request, int) else request.id
    return f"request {request_id.bit_length()}"


def client(world: Instance, state: State, number: int) -> Iterator[Step]:
    """Stores each request, then has a task for it (C1, C2)."""
    at, doing = state.clients[number]
    ids = ids_of(world, number)
    if at == len(ids) or doing == "dead":
        return
    who, one = f"client {number + 1}", ids[at]

    def then(state: State, at: int, doing: str) -> State:
        clients = list(state.clients)
        clients[number] = (at, doing)
        return state._replace(clients=tuple(clients))

    stored = store(state, Request(next_sequence(state), one))
    stored = stored._replace(published=stored.published | one)
    if doing == "ready":
        yield Step(f"{who} stores {name(one)}", then(stored, at, "stored"))
        if state.losses:
            lost = then(stored, at, "unsure")._replace(losses=state.losses - 1)
            yield Step(f"{who} stores {name(one)}, but does not hear so", lost, fault=True)
    elif doing == "unsure":
        yield Step(f"{who} stores {name(one)} again: a duplicate", then(state, at, "stored"))
        if all(request.id != one for request in state.requests):
            words = f"{who} stores {name(one)} again; its id was forgotten, it is there anew"
            yield Step(words, then(stored, at, "stored"), fault=True)
    else:
        words, poked = poke(state)
        yield Step(f"{who} {words}", then(poked, at + 1, "ready"))
        if state.losses and not world.rules.poke_confirmed:
            lost = then(state, at + 1, "ready")._replace(losses=state.losses - 1)
            yield Step(f"{who} publishes a task, which is lost", lost, fault=True)
        if state.client_crashes:
            dead = then(state, at, "dead")._replace(client_crashes=state.client_crashes - 1)
            yield Step(f"{who} dies before it publishes a task", dead, fault=True)


def store(state: State, request: Request) -> State:
    return state._replace(requests=(*state.requests, request))


def deleted(state: State, sequence: int) -> State:
    """That request is gone; it had better be handled."""
    gone = [request for request in state.requests if request.sequence == sequence]
    left = tuple(request for request in state.requests if request.sequence != sequence)
    state = state._replace(requests=left)
    for request in gone:
        if request.id & ~(state.head.applied | state.dead):
            state = state._replace(broken=f"S1: {name(request)} was deleted without effect")
    return state


def poke(state: State) -> tuple[str, State]:
    """See to it that there is a task."""
    if state.task == "none":
        return "publishes a task", state._replace(task="ready")
    return "publishes a task: refused, there is one", state


# -- the stream TASKS and its consumer: S-2, S-3 ------------------------------------------------


def task_stream(world: Instance, state: State) -> Iterator[Step]:
    if state.task == "ready":
        free = next((n for n, run in enumerate(state.runs) if run.doing == "idle"), None)
        if free is not None:  # idle ones are all alike
            taken = state._replace(task="held")
            run = Run(doing="given", holds=True)
            yield Step(f"the task is given to {who(free)}", with_run(taken, free, run))
    elif state.task == "held":
        again = state._replace(task="ready")
        holders = [n for n, run in enumerate(state.runs) if run.holds]
        if not holders:
            yield Step("the task's ack wait passes: nobody holds it any more", again)
        elif state.zombies:
            late = tuple(run._replace(late=run.late or run.holds) for run in state.runs)
            again = again._replace(runs=late, zombies=state.zombies - 1)
            alive = " and ".join(map(who, holders))
            yield Step(f"the task's ack wait passes although {alive} lives", again, fault=True)
    elif state.task == "acked":
        yield Step("the acked task disappears from the stream", without_task(state))


def who(number: int) -> str:
    return "ABC"[number]


def with_run(state: State, number: int, run: Run) -> State:
    runs = state.runs
    return state._replace(runs=(*runs[:number], run, *runs[number + 1 :]))


def without_task(state: State) -> State:
    """The task is gone, and with it what was known by its sequence."""
    return state._replace(
        task="none",
        runs=tuple(run._replace(holds=False) for run in state.runs),
        survivors=tuple((doing, False) for doing, _ in state.survivors),
    )


# -- X1, X2 -------------------------------------------------------------------------------------


def reconciler(world: Instance, state: State) -> Iterator[Step]:
    if state.task != "none":
        return
    if world.rules.pending_requests and state.requests:
        words = "the reconciler finds requests without a task and publishes one"
        yield Step(words, state._replace(task="ready"))
    elif world.rules.pending_dvus and world.rules.need_in_head and state.head.due:
        words = "the reconciler finds a due DVU without a task and publishes one"
        yield Step(words, state._replace(task="ready"))


# -- fast takeover ------------------------------------------------------------------------------


def survivor(world: Instance, state: State, number: int) -> Iterator[Step]:
    """A Rebaser that presumes the owner dead, rightly or wrongly, and has its task given anew.

    Whom it presumes dead it need not remember here: it may as well be whoever the head names.
    """
    doing, sees = state.survivors[number]
    whose = f"survivor {number + 1}"

    def then(state: State, doing: str, *, sees: bool = False) -> State:
        survivors = list(state.survivors)
        survivors[number] = (doing, sees)
        return state._replace(survivors=tuple(survivors))

    if doing == "listens":
        once = world.rules.presumed_once
        there = (
            state.task in ("ready", "held") if once else state.task == "held" and state.head.owned
        )
        if state.presumptions and there:
            left = state.presumptions - 1 if once else state.presumptions
            seen = then(state, "reads head", sees=True)._replace(presumptions=left)
            yield Step(f"{whose} presumes a Rebaser dead and notes the task", seen, fault=once)
        return
    if doing == "reads head":
        if state.head.owned or world.unowned:
            words = f"{whose} reads the head: it names the one presumed dead"
            if not state.head.owned:
                words = f"{whose} reads the head: nobody owns it, so the task was given back"
            yield Step(words, then(state, "deletes", sees=sees))
        else:
            yield Step(f"{whose} reads the head: nobody owns it", then(state, "listens"))
    elif doing == "deletes":
        gone = without_task(state) if sees else state
        words = "deletes that task" if sees else "deletes that task, which is gone already"
        yield Step(f"{whose} {words}", then(gone, "pokes"))
    elif doing == "pokes":
        words, poked = poke(state)
        yield Step(f"{whose} {words}", then(poked, "listens"))
    if state.crashes:
        dead = then(state, "listens")._replace(crashes=state.crashes - 1)
        yield Step(f"{whose} dies", dead, fault=True)
