"""What a plan changes: only what differs, and nothing if nothing does."""

import sys
from collections.abc import Callable

import pyarrow as pa
import pytest

from rebaser_client import Draft, InvalidDraft, LoadPlan, builtin, cel
from rebaser_client.draft import FunctionName
from rebaser_client.plan import build_plan, new_value_id
from rebaser_core.queries import FunctionSnapshot, ValueSnapshot
from rebaser_core.table_updates import TableUpdates
from rebaser_core.updates import PutValue, RemoveFunc
from rebaser_server.queries.values import function_rows, row_of
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase

ADD = builtin("sum", name="add")


def shop(net: object = 100, *, function=ADD, takes=("net", "tax")) -> Draft:
    g = Draft()
    g.source("net", net)
    g.source("tax", 19)
    g.value("gross", function, *takes)
    return g


class Shop:
    """A change set, as a client sees it."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.sequence = 0

    def values(self) -> dict[str, ValueSnapshot]:
        graph = self.graph
        values = [row_of(graph, value_id).read() for value_id in graph.values]
        return {value.name: value for value in values if value.name is not None}

    def functions(self) -> list[FunctionSnapshot]:
        rows, _ = function_rows(self.graph, [])
        return [row.read() for row in rows]

    def load(self, draft: Draft, *, prune: bool = False) -> LoadPlan:
        plan = self.plan(draft, prune=prune)
        self.sequence += 1
        assert rebase(self.graph, self.sequence, plan.batch()).corrections == []
        assert not self.plan(draft, prune=prune)
        return plan

    def plan(self, draft: Draft, *, prune: bool = False) -> LoadPlan:
        taken, there = [*self.graph.values], self.functions()
        return build_plan(draft, self.values(), taken, prune=prune, functions=there)


def test_a_second_run_changes_nothing() -> None:
    """Names are the identity: what is there is found by them."""
    there = Shop()

    first, second = there.load(shop()), there.load(shop())

    assert [update.KIND for update in first.updates] == ["putFunc", *["putValue"] * 3]
    assert first.summary() == "3 added, 0 changed, 0 removed, 0 as they are"
    assert (bool(second), second.unchanged) == (False, 3)


@pytest.mark.parametrize(
    ("changed", "kinds", "shown"),
    [
        (shop(90), ["setValue"], "changed net  value: 100 -> 90"),
        (shop(100.0), ["setValue"], "changed net  value: 100 -> 100.0"),
        (
            shop(takes=("net",)),
            ["setInputs"],
            "changed gross  inputs: {'values': ['net', 'tax']} -> {'values': ['net']}",
        ),
        (
            shop(function=builtin("max")),
            ["putFunc", "putValue"],
            "changed gross  function: another function -> max",
        ),
        (shop("free"), ["setValue"], "changed net  value: 100 -> free"),
    ],
)
def test_only_what_differs_is_sent(changed: Draft, kinds: list[str], shown: str) -> None:
    """By the smallest update that does it."""
    there = Shop()
    there.load(shop())

    plan = there.load(changed)

    assert [update.KIND for update in plan.updates] == kinds
    assert str(plan) == f"{shown}\n0 added, 1 changed, 0 removed, 2 as they are"


def test_wires_are_turned_round_by_one_load() -> None:
    """Inputs that the file takes away close no cycle with those that it adds before."""
    there, first, turned = Shop(), Draft(), Draft()
    first.source("c", 1)
    first.value("b", ADD, "c")
    first.value("a", ADD, "b")
    turned.value("b", ADD, "a")
    turned.value("a", ADD, "c")
    there.load(first)

    there.load(turned)

    ids = {name: value.id for name, value in there.values().items()}
    assert there.values()["b"].inputs == {"values": [ids["a"]]}
    assert there.values()["a"].inputs == {"values": [ids["c"]]}


def test_a_removed_value_closes_no_cycle() -> None:
    there, first, later = Shop(), Draft(), Draft()
    for name in ("a", "c"):
        first.source(name, 1)
    first.value("middle", ADD, "a")
    first.value("top", ADD, "middle", "c")
    later.remove("middle")
    later.value("a", ADD, "top")
    there.load(first)

    there.load(later)

    ids = {name: value.id for name, value in there.values().items()}
    assert there.values()["top"].inputs == {"values": [ids["c"]]}
    assert there.values()["a"].inputs == {"values": [ids["top"]]}


def test_a_function_that_was_removed_is_defined_again() -> None:
    """Values of a function that a revert removed would fail for good otherwise."""
    there = Shop()
    there.load(shop())
    [func_id] = there.graph.funcs
    rebase(there.graph, 2, [RemoveFunc(func_id=func_id)])

    plan = there.load(shop())

    assert [update.KIND for update in plan.updates] == ["putFunc", "putValue"]
    assert str(plan).splitlines()[0] == "changed gross  function: none -> add"
    assert there.graph.funcs.keys() == {func_id}


def test_a_source_becomes_computed() -> None:
    """Its id stays, and so do those that depend on it."""
    there, g = Shop(), Draft()
    g.source("gross", 120)
    there.load(g)
    before = there.values()["gross"].id

    plan = there.load(shop())

    assert str(plan).splitlines()[2] == "changed gross  function: 120 -> add"
    assert there.values()["gross"].id == before


def test_a_computed_value_gets_no_content() -> None:
    """The error names its inputs, each once; what it says to do keeps id and dependents."""
    there, g, fixed = Shop(), Draft(), Draft()
    there.load(shop(takes=("net", "tax", "net")))
    before = there.values()["gross"].id
    g.source("gross", 120)
    fixed.value("gross", builtin("identity"), fixed.source("gross by hand", 120))

    with pytest.raises(InvalidDraft, match="'gross' is computed; set its inputs instead: net, tax"):
        there.load(g)
    there.load(fixed)

    assert there.values()["gross"].id == before
    many = shop(takes=tuple(f"net/{number}" for number in range(30)))
    many.sources("net/{n}", [{"n": number} for number in range(30)], "n")
    there.load(many)
    with pytest.raises(InvalidDraft, match="net/18, net/19, …; or let"):
        there.load(g)


def test_values_are_removed_only_when_that_is_asked_for() -> None:
    """By name, or all that the draft does not name; also functions stay without that."""
    there, g, small = Shop(), Draft(), Draft()
    there.load(shop())
    small.source("net", 100)

    assert not there.load(small)
    g.remove("gross", "never")
    assert there.load(g).count("removed") == 1
    assert list(there.values()) == ["net", "tax"]
    assert str(there.load(small, prune=True)).startswith("removed tax  value: 19 -> none")
    assert list(there.values()) == ["net"]


def test_an_input_may_be_there_already() -> None:
    """By name; what is neither there nor defined is refused, and so is what is removed."""
    there, g, lost, gone = Shop(), Draft(), Draft(), Draft()
    there.load(shop())

    g.value("due", cel("gross * 2"), gross="gross")
    there.load(g)
    assert there.values()["due"].inputs == {"gross": there.values()["gross"].id}

    lost.value("due", cel("gross * 2"), gross="gros")
    with pytest.raises(InvalidDraft, match="'due' is computed from 'gros', and no value is"):
        there.load(lost)
    gone.value("due", cel("gross * 2"), gross="gross")
    with pytest.raises(InvalidDraft, match="from 'gross', which is removed"):
        there.load(gone, prune=True)


def test_a_function_of_the_change_set_is_known_by_its_name() -> None:
    """Inputs in order as for one of the draft; its id stays, and it is not defined again."""
    there, g = Shop(), Draft()
    there.load(shop())
    g.value("more", FunctionName("add"), "gross", "tax")

    plan = build_plan(g, there.values(), functions=there.functions())

    [put] = plan.updates
    assert isinstance(put, PutValue)
    gross, tax = (there.values()[name] for name in ("gross", "tax"))
    assert (put.func_id, put.inputs) == (gross.func_id, {"values": [gross.id, tax.id]})
    g.value("wrong", FunctionName("add"), addends="tax")
    with pytest.raises(InvalidDraft, match="'wrong': input 'addends' is unknown; add takes val"):
        build_plan(g, there.values(), functions=there.functions())


def test_of_functions_of_one_name_the_one_that_computes_other_values_is_meant() -> None:
    """Not one that was replaced; of several that are in use, none is taken."""
    there, more = Shop(), Draft()
    there.load(shop())
    more.value("more", FunctionName("add"), "gross")
    replaced = build_plan(more, there.values(), functions=there.functions())
    rebase(there.graph, 9, replaced.batch())
    there.load(shop(function=builtin("max", name="add")))

    plan = build_plan(more, there.values(), functions=there.functions())
    assert str(plan).startswith("changed more  function: another function -> add")
    assert plan.updates[0].func_id == there.values()["gross"].func_id

    other = Draft()
    other.value("other", FunctionName("add"), "gross")
    with pytest.raises(InvalidDraft, match=r"2 functions called 'add' \(builtin 'sum'; buil"):
        build_plan(other, there.values(), functions=there.functions())


def test_a_function_that_is_nowhere_is_refused_with_similar_names() -> None:
    """Of the file, of the change set, and of the builtin ones."""
    there = Shop()
    there.load(shop())
    for name, known in (("ad", "add"), ("prices", "price"), ("summ", "sum")):
        g = Draft()
        g.value("x", FunctionName(name, ("price",)), "net")
        with pytest.raises(InvalidDraft, match=f"'x': no .*'{name}'; there is '{known}'"):
            build_plan(g, there.values(), functions=there.functions())


def test_ids_follow_from_names_and_give_way_to_values_that_were_renamed() -> None:
    """Two programs that define the same value at once define one."""
    first = new_value_id("net")

    assert first == new_value_id("net") == "7SHGMCTFQPFQHX03Y8K6JVGFQ7"
    assert new_value_id("net", [first]) not in (first, new_value_id("tax"))


def test_a_name_that_is_free_again_gets_another_id() -> None:
    """Its former value was renamed, and is there."""
    g, taken = Draft(), new_value_id("net")
    g.source("net", 1)

    [put] = build_plan(g, {}, [taken]).updates

    assert isinstance(put, PutValue)
    assert put.value_id != taken


def test_a_plan_removes_before_it_adds() -> None:
    there, g = Shop(), Draft()
    there.load(shop())
    g.source("more", 1)
    g.remove("gross")

    assert [update.KIND for update in there.load(g).updates] == ["removeValue", "putValue"]


def test_a_plan_lists_few_of_many_changes() -> None:
    """A line a change, and how many more there are."""
    g = Draft()
    g.sources("net/{n}", [{"n": n} for n in range(1000)], "n")

    lines = str(build_plan(g, {})).splitlines()

    assert lines[0] == "added   net/0  value: none -> 0"
    assert lines[-2:] == ["and 980 more", "1,000 added, 0 changed, 0 removed, 0 as they are"]


def test_a_large_plan_is_sent_as_a_table_with_the_same_updates() -> None:
    """A small one, and one with an update that no table can say, as they are."""
    g = Draft()
    for number in range(600):
        g.source(f"net/{number}", number)
    g.value("total", builtin("sum"), *(f"net/{number}" for number in range(600)))
    there = Shop()

    plan = there.load(g)

    table = plan.batch()
    assert isinstance(table, TableUpdates)
    assert list(table) == list(plan.updates)
    for few_or_odd in (there.load(shop()), there.load(Draft(), prune=True)):
        assert few_or_odd.batch() is few_or_odd.updates


def test_a_cycle_is_refused_by_names() -> None:
    """Inside a draft, and together with what the change set has."""
    g = Draft()
    g.value("a", ADD, "b")
    g.value("b", ADD, "a")
    there = Shop()
    there.load(shop())
    over = Draft()
    over.value("price", ADD, "gross")
    there.load(over)
    back = Draft()
    back.value("gross", ADD, "price")

    with pytest.raises(InvalidDraft, match=r"a cycle.*: a -> b -> a;"):
        build_plan(g, {})
    with pytest.raises(InvalidDraft, match=r"a cycle.*: gross -> price -> gross;"):
        there.load(back)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("net *", r"'net \*' is no CEL with the inputs net; line 1, column 6: Syntax error"),
        ("1 +\n rate", "line 2, column 2: undeclared reference to 'rate'"),
    ],
)
def test_cel_that_cannot_be_compiled_is_refused_with_its_place(
    expression: str, message: str
) -> None:
    """Also for a variable that is no input."""
    g = Draft()
    g.value("x", cel(expression), net=g.source("net", 1))

    with pytest.raises(InvalidDraft, match=message):
        build_plan(g, {})


def test_a_plan_says_if_cel_cannot_be_checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the engine the client cannot know; the values would fail."""
    monkeypatch.setitem(sys.modules, "cel_expr_python.cel", None)
    g = Draft()
    g.value("x", cel("net *"), net=g.source("net", 1))

    [warning] = build_plan(g, {}).warnings

    assert "CEL is not checked here" in warning
    assert warning in str(build_plan(g, {}))


@pytest.mark.parametrize(
    ("code", "inputs", "message"),
    [("divide", ["net"], "input 'right' is missing"), ("sum", [], "input 'values' is missing")],
)
def test_an_input_that_a_function_needs_is_asked_for(code, inputs, message: str) -> None:
    """Others may be left out: digits of `round`."""
    g = Draft()
    g.value("rounded", builtin("round"), "net")

    with pytest.raises(InvalidDraft, match=message):
        g.value("x", builtin(code), *inputs)


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda draft: draft.source("n" * 513, 1), "name: String should have at most 512"),
        (
            lambda draft: draft.value("n" * 513, builtin("sum"), []),
            "name: String should have at most",
        ),
        (lambda draft: draft.value("v", cel("1" + " " * 70_000)), "code: String should have at"),
        (lambda draft: draft.value("v", cel("1", name="n" * 513)), "name: String should have at"),
    ],
)
def test_what_no_update_can_say_is_refused(define: Callable[[Draft], object], message: str) -> None:
    """As all that makes no draft, by the one error that tells of it."""

    def plan() -> None:
        draft = Draft()
        define(draft)
        build_plan(draft, {})

    with pytest.raises(InvalidDraft, match=message):
        plan()


def test_a_table_is_uploaded_only_if_its_rows_differ() -> None:
    """A plan shows how many rows it has; equal rows are no change."""
    there, draft, later = Shop(), Draft(), Draft()
    draft.table("orders", pa.table({"id": [1, 2]}))
    later.table("orders", pa.table({"id": [1, 2, 3]}))
    later.table("copy", pa.table({"id": [1, 2]}))

    first = there.load(draft)
    second = build_plan(draft, there.values())
    third = build_plan(later, there.values())

    assert "added   orders  value: none -> table: 2 rows" in str(first)
    assert "table: 2 rows" in first._repr_html_()
    assert [*first.uploads] == [*draft.uploads]
    assert (bool(second), second.uploads) == (False, {})
    assert [file.rows for file in third.uploads.values()] == [3]
    assert "orders  value: table: upload " in str(third)
