"""The picture of a branch's effects: nodes by level, near to their inputs, and no more than fit."""

from typing import Any

from rebaser_core.queries import ChangedDefinition, ComputedDifference
from rebaser_core.updates import PutFunc, PutValue
from rebaser_server.ops.review import FAMILY, MAX_NODES, effects_graph
from rebaser_server.queries.comparisons import Diff
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase

F = "FN".rjust(26, "0")


def key(name: str) -> str:
    return name.upper().replace("/", "Z").rjust(26, "0")


def graph_of(inputs: dict[str, str]) -> Graph:
    """Names, and the one-letter names of what each is computed from; sources have none."""
    graph = Graph()
    puts: list[Any] = [PutFunc(func_id=F, name="f", runtime="builtin", code="sum")]
    for name, takes in inputs.items():
        if takes:
            given = {"values": [key(each) for each in takes]}
            puts.append(PutValue(value_id=key(name), name=name, func_id=F, inputs=given))
        else:
            puts.append(PutValue(value_id=key(name), name=name, value=1))
    rebase(graph, 1, puts)
    return graph


def edit(name: str, *, both: bool = False, what: str = "value") -> ChangedDefinition:
    return ChangedDefinition(
        id=key(name), name=name, what=what, head=1, branch=2, base=1, both=both
    )


def effect(name: str) -> ComputedDifference:
    return ComputedDifference(id=key(name), name=name, head="x" * 100, branch=2)


def test_a_node_is_behind_its_inputs_and_near_to_them() -> None:
    """What does not differ is left out, and so are the edges to it."""
    graph = graph_of({"a": "", "b": "", "x": "", "c": "ax", "d": "bc", "e": "b", "f": "a"})
    found = Diff(1, "", [], [edit("b"), edit("a", both=True)], [*map(effect, "dcef")], 0, 0, graph)

    picture = effects_graph(found)

    nodes = picture["nodes"]
    names = [node["name"] for node in nodes]
    columns = [[n["name"] for n in nodes if n["level"] == level] for level in range(3)]
    assert columns == [["a", "b"], ["c", "f", "e"], ["d"]]
    assert {n["name"]: n["row"] for n in nodes} == {
        **dict.fromkeys("acd", 0),
        **dict.fromkeys("bf", 1),
        "e": 2,
    }
    assert {names[one] + names[other] for one, other in picture["edges"]} == {
        *("ac", "af", "bd", "be", "cd")
    }
    assert [n["name"] for n in nodes if n["edited"]] == ["a", "b"]
    assert [n["name"] for n in nodes if n["both"]] == ["a"]
    assert len(nodes[-1]["head"]) < 50
    assert picture["inAll"] == 6


def test_a_changed_function_leads_to_what_it_computes_and_the_removed_stand_alone() -> None:
    """A value that the branch removed is in no graph any more."""
    graph = graph_of({"a": "", "b": "a"})
    function = ChangedDefinition(
        id=F, name="f", what="function", head={}, branch={}, base={}, both=False
    )
    found = Diff(1, "", [], [function, edit("gap", what="removed")], [effect("b")], 0, 0, graph)

    picture = effects_graph(found)

    assert [node["name"] for node in picture["nodes"]] == ["f", "gap", "b"]
    assert picture["edges"] == [(0, 2)]
    assert [node["level"] for node in picture["nodes"]] == [0, 0, 1]


def test_of_very_many_those_nearest_to_the_edits_are_drawn() -> None:
    """Half of the room is left for effects, however many edits there are."""
    chain = {"0": ""} | {str(n): str(n - 1) for n in range(1, 10)}
    wide = dict.fromkeys(unlike("w"), "0")
    graph = graph_of(chain | wide)
    effects = [effect(name) for name in [*chain, *wide] if name != "0"]
    lone = [edit(name, what="removed") for name in unlike("z")]

    picture = effects_graph(Diff(1, "", [], [edit("0"), *lone], effects, 0, 0, graph))

    nodes = picture["nodes"]
    in_all = len(chain) + len(wide) + len(lone)
    assert (len(nodes), picture["inAll"], picture["left"]) == (
        MAX_NODES,
        in_all,
        in_all - MAX_NODES,
    )
    assert sum(node["edited"] for node in nodes) == MAX_NODES // 2
    assert {node["level"] for node in nodes} == {0, 1}, "the far end of the chain is left out"


def unlike(first: str) -> list[str]:
    """As many names as are drawn at most, of which no two are of one pattern."""
    letters = "abcdefghjkmn"
    names = [f"{first}/{a}/{b}/{c}" for a in letters for b in letters for c in "xy"]
    return names[:MAX_NODES]


def test_effects_of_one_pattern_are_one_node_with_their_sums() -> None:
    """An edge to one of them is one to the node; what is in conflict stays alone."""
    prices = [f"p/{n}/x" for n in range(20)]
    graph = graph_of({"a": "", **dict.fromkeys(prices, "a"), "t": ""})
    computed = [
        ComputedDifference(id=key(name), name=name, head=n, branch=2 * n)
        for n, name in enumerate(prices)
    ]
    edits = [edit(f"n/{n}", both=n == 0) for n in range(20)]

    picture = effects_graph(Diff(1, "", [], [edit("a"), *edits], computed, 0, 0, graph))

    nodes = {node["name"]: node for node in picture["nodes"]}
    assert sorted(nodes) == ["a", "n/*", "n/0", "p/*/x"]
    assert (nodes["p/*/x"]["count"], nodes["p/*/x"]["head"], nodes["p/*/x"]["branch"]) == (
        *(20, 190, 380),
    )
    assert (nodes["n/*"]["count"], nodes["n/*"]["edited"], nodes["n/0"]["both"]) == (19, True, True)
    names = [node["name"] for node in picture["nodes"]]
    assert [(names[one], names[other]) for one, other in picture["edges"]] == [("a", "p/*/x")]
    assert (picture["inAll"], picture["left"]) == (41, 0)


def test_families_that_follow_from_each_other_are_drawn_once() -> None:
    """One of them is placed first; their edges form a circle."""
    rows = range(FAMILY + 10)
    takes = (
        {"a/0": ""} | {f"b/{n}": f"a/{n}" for n in rows} | {f"a/{n + 1}": f"b/{n}" for n in rows}
    )
    graph = Graph()
    puts: list[Any] = [PutFunc(func_id=F, name="f", runtime="builtin", code="sum")]
    puts.append(PutValue(value_id=key("a/0"), name="a/0", value=1))
    for name, one in sorted(takes.items(), key=lambda item: (int(item[0][2:]), item[0])):
        if one:
            given = {"values": [key(one)]}
            puts.append(PutValue(value_id=key(name), name=name, func_id=F, inputs=given))
    rebase(graph, 1, puts)
    effects = [effect(name) for name in takes if name != "a/0"]

    picture = effects_graph(Diff(1, "", [], [edit("a/0")], effects, 0, 0, graph))

    assert sorted(node["name"] for node in picture["nodes"]) == ["a/*", "a/0", "b/*"]
    assert len({(node["level"], node["row"]) for node in picture["nodes"]}) == 3
