"""Updates of random graphs end where computing everything anew would, and do no more than said."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rebaser_server.compute.affected import RoundSizes
from rebaser_server.compute.functions.builtin import BUILTINS
from rebaser_server.compute.results import RunStore
from rebaser_server.files import SharedFiles
from rebaser_server.values.graph import Graph, Value
from tests.helpers.graph_builder import UNHURRIED, Builder

NO_STORE = RunStore(SharedFiles("/nowhere"), "0" * 64)
"""All results are in memory."""
State = dict[str, tuple[str, Any]]

MIXED = st.sampled_from([0, 1, 2, 0.0, -0.0, 1.0, True, False, None, "a", "", [1], {"a": 1}])
FAITHFUL = ("collect", "coalesce", "sum")  # pass most changes on
LOSSY = ("min", "count", "any", "concat", "json_merge")  # fail, or swallow changes
PAIRS = ("equal", "subtract", "divide")


@st.composite
def definitions(draw: st.DrawFn, below: int) -> tuple[str, Any]:
    """A function and its inputs, or `source` and its data, for a value above `below` others."""
    kind = draw(st.sampled_from([*["faithful"] * 4, "lossy", "pair", "if", "missing", "source"]))
    if kind == "source" or not below:
        return "source", draw(st.integers(0, 2) | MIXED)
    one = st.integers(max(0, below - 4), below - 1).map(str)  # near, for long chains
    match kind:
        case "pair":
            return draw(st.sampled_from(PAIRS)), {"left": draw(one), "right": draw(one)}
        case "if":
            return "if", {"condition": draw(one), "then": draw(one)}
        case "missing":
            return "no such function", {"value": draw(one)}
    code = draw(st.sampled_from(FAITHFUL if kind == "faithful" else LOSSY))
    return code, {"values": draw(st.lists(one, min_size=1, max_size=3))}


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[str, str, Any]]]:
    """Rounds of definitions: all values first, then mostly sources again."""
    count = draw(st.integers(4, 16))
    first = [(str(n), *draw(definitions(n))) for n in range(count)]
    sources = st.sampled_from([value_id for value_id, code, _ in first if code == "source"])
    rounds = [first]
    for _ in range(draw(st.integers(1, 3))):
        data = draw(st.dictionaries(sources, st.integers(0, 2) | MIXED, min_size=1, max_size=3))
        rounds.append([(value_id, "source", new) for value_id, new in data.items()])
        for n in draw(st.lists(st.integers(0, count - 1), max_size=1)):
            rounds[-1].append((str(n), *draw(definitions(n))))
    return rounds


def define(build: Builder, value_id: str, code: str, data: Any) -> None:
    if code == "source":
        build.source(value_id, data)
    else:
        build.dependent(value_id, code, data)


ROUNDS = st.builds(
    RoundSizes,
    ahead=st.sampled_from([0, 0, 0, 2]),
    growth=st.integers(1, 2),
    behind=st.sampled_from([0, 100]),
    steps=st.integers(1, 16),
    values=st.sampled_from([0.5, 1.0, 1.0]),
)


@UNHURRIED
@given(histories(), st.integers(1, 3), st.sampled_from([0, 256]), st.none() | ROUNDS)
def test_updates_end_where_full_recomputation_does(
    history: list[list[tuple[str, str, Any]]], slots: int, small: int, sizes: RoundSizes | None
) -> None:
    """Plans are made at once, or in rounds of all sizes."""
    build = Builder()
    for changes in history:
        before = build.state()
        for change in changes:
            define(build, *change)
        roots = set(build.graph.roots)

        outcomes = (
            build.update(slots=slots, small=small)
            if sizes is None
            else build.update_in_rounds(sizes, NO_STORE)
        )

        assert text(build.state()) == text(recomputed(build.graph))
        assert sum(o.recomputed for o in outcomes) == due(build.graph, before, roots)
        results = [result for outcome in outcomes for result in outcome.value_results]
        assert len({value_id for value_id, *_ in results}) == len(results)
        for value_id, status, data in results:
            redefined = value_id in roots
            assert redefined or text(before[value_id]) != text((status, data))


def recomputed(graph: Graph) -> State:
    """Every value from scratch, by recursion: nothing of plan or evaluation is used."""
    done: State = {}

    def look(value: Value) -> tuple[str, Any]:
        if value.id not in done:
            done[value.id] = compute(value)
        return done[value.id]

    def compute(value: Value) -> tuple[str, Any]:
        if value.func_id is None:
            return "ok", value.value
        for input_id in value.input_ids():
            if look(graph.values[input_id])[0] != "ok":
                return "blocked", input_id
        code = graph.funcs[value.func_id].code
        if code not in BUILTINS:
            return "failed", f"there is no builtin function {code!r}"
        arguments = {
            name: look(graph.values[target])[1]
            if isinstance(target, str)
            else [look(graph.values[each])[1] for each in target]
            for name, target in value.inputs.items()
        }
        try:
            return "ok", BUILTINS[code](**arguments)
        except Exception as error:  # noqa: BLE001 - as an evaluation would
            return "failed", f"{type(error).__name__}: {error}"

    for value in graph.values.values():
        look(value)
    return done


def due(graph: Graph, before: State, roots: set[str]) -> int:
    """How many values had to be computed: early cutoff, told by the states before and after."""
    must_compute = roots.union(*(graph.values[root].dependents for root in roots))

    def changed(value_id: str) -> bool:
        if graph.values[value_id].func_id is None:
            return False  # it is a root, or has not changed
        old, new = before.get(value_id, ("pending", None)), seen(graph.values[value_id])
        if value_id in roots:
            old = ("pending", None)
        return "ok" in (old[0], new[0]) and text(old) != text(new)

    return sum(
        value.func_id is not None
        and (value.id in must_compute or any(map(changed, value.input_ids())))
        for value in graph.values.values()
    )


def seen(value: Value) -> tuple[str, Any]:
    return value.status.value, value.value if value.message is None else value.message


def text(state: Any) -> str:
    return json.dumps(state, sort_keys=True)
