"""`rebaser load --dry-run` and `load`: a change set becomes what a file describes."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rebaser_client import Draft
from rebaser_client.change_set import ChangeSetHandle
from rebaser_client.plan import compare, new_value_id
from rebaser_client.reader import ValueSet
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment

GRAPH = """
functions:
  gross: {cel: "net * rate"}
sources:
  rate: 2
values:
  total: {function: sum, inputs: [gross/a, gross/b]}
tables:
  - file: products.csv
    sources: {"net/{sku}": net}
    values:
      "gross/{sku}": {function: gross, inputs: {net: "net/{sku}", rate: rate}}
"""


@pytest.fixture
async def commands(deployment: Deployment) -> Commands:
    await deployment.start()
    commands = Commands(deployment)
    await commands.tell("workspaces", "create", "shop")
    return commands


async def test_a_reverted_load_takes_no_function_from_another_file(
    commands: Commands, deployment: Deployment, tmp_path: Path
) -> None:
    """A function that is gone all the same comes back with the next load."""
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_text("sources: {a: 1}\nvalues: {b: {function: sum, inputs: [a]}}")
    other.write_text("sources: {x: 2}\nvalues: {y: {function: sum, inputs: [x]}}")
    await commands.tell("load", "shop", one, "--yes", "--wait")
    await commands.tell("load", "shop", other, "--yes", "--wait")
    first = next(each["commit"] for each in await commands.read("log", "shop") if each["updates"])

    reverted = await commands.tell("revert", "shop", first, "--yes", "--wait")
    kept = await commands.read("values", "shop")
    await commands.give("revert", "shop", first, "--force", "--yes", "--wait")
    failed = await commands.read("values", "shop", "y")
    loaded = await commands.tell("load", "shop", other, "--yes", "--wait")
    again = await commands.tell("load", "shop", other, "--yes")

    assert "not undone, because a later commit changed or uses it" in reverted
    assert [(each["name"], each["value"]) for each in kept] == [("x", 2), ("y", 2)]
    assert "does not exist" in failed[0]["message"]
    assert "its values are up to date" in loaded
    assert "nothing differs" in again


async def test_a_file_is_planned_loaded_and_then_nothing_differs(
    commands: Commands, deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each says what differs; a changed cell of a table is one change."""
    graph, products = tmp_path / "graph.yaml", tmp_path / "products.csv"
    graph.write_text(GRAPH)
    products.write_text("sku,net\na,1\nb,2\n")

    planned = await commands.tell("load", "--dry-run", "shop", graph)
    loaded = await commands.tell("load", "shop", graph, "--yes", "--wait")
    again = await commands.tell("load", "shop", graph, "--yes")
    products.write_text("sku,net\na,10\nb,2\n")
    changed = await commands.read("load", "--dry-run", "shop", graph)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    declined = await commands.give("load", "shop", graph)
    two = await commands.give("load", "shop", graph, graph, "--yes")
    graph.write_text("remove: [total]\nsources: {rate: text}\n")
    failed = await commands.give("load", "shop", graph, "--yes", "--wait")
    graph.write_text("sources: {gross/a: 3}\n")
    fixed = await commands.tell("load", "shop", graph, "--yes", code=1)
    graph.write_text("{}")
    pruned = await commands.read("load", "shop", graph, "--prune", "--yes")

    assert "6 added, 0 changed, 0 removed, 0 as they are" in planned
    assert "its values are up to date" in loaded
    assert again == "nothing differs: 0 added, 0 changed, 0 removed, 6 as they are\n"
    assert changed == {
        "changes": [
            {"name": "net/a", "change": "changed", "part": "value", "before": 1, "after": 10}
        ],
        "unchanged": 5,
    }
    assert (declined.code, declined.err) == (1, "Enqueue this? [y/N] not enqueued\n")
    assert (two.code, "one file is loaded at a time" in two.err) == (1, True)
    assert failed.code == 5
    assert "2 values failed by this" in failed.out
    assert "'gross/a' is computed; set its inputs instead: net/a, rate" in fixed
    assert pruned["status"]["success"]["commit"] > 0
    values = await deployment.client.workspace("shop").values()
    assert len(values) == 0


async def test_waiting_ends_with_failure_while_a_named_value_has_no_result(
    commands: Commands, tmp_path: Path
) -> None:
    """Also where nothing differs, where others changed, and where a value is blocked only."""
    graph, blocked = tmp_path / "graph.json", tmp_path / "blocked.json"
    definitions = {"bad": {"function": "missing"}, "sum": {"function": "sum", "inputs": ["bad"]}}
    graph.write_text(
        json.dumps({"functions": {"missing": {"python": "not-there"}}, "values": definitions})
    )
    blocked.write_text(json.dumps({"values": {"sum": definitions["sum"]}}))
    sound = tmp_path / "sound.json"
    sound.write_text(json.dumps({"sources": {"other": 1}}))

    first = await commands.give("load", "shop", graph, "--yes", "--wait")
    again = await commands.give("load", "shop", graph, "--yes", "--wait")
    only_blocked = await commands.give("load", "shop", blocked, "--yes", "--wait")
    unconcerned = await commands.give("load", "shop", sound, "--yes", "--wait")
    unwaited = await commands.give("load", "shop", graph, "--yes")

    codes = [each.code for each in (first, again, only_blocked, unconcerned, unwaited)]
    assert codes == [5, 5, 5, 0, 0]
    step = "`pip install` the function's package, then: `rebaser dvu run shop --failed`"
    assert all(step in each.out for each in (first, again, only_blocked))
    assert "bad: " in again.out
    assert step not in unconcerned.out


async def test_a_table_is_loaded_by_name_and_then_nothing_differs(
    commands: Commands, deployment: Deployment, tmp_path: Path
) -> None:
    """As one table, which is too large for a message; inputs may be there already."""
    prices, totals = tmp_path / "prices.csv", tmp_path / "totals.jsonl"
    lines = ["sku,price", *(f"{sku},{sku}.5" for sku in range(600))]
    prices.write_text("\n".join(lines))
    totals.write_text(json.dumps({"name": "most", "function": "max", "inputs": ["7", "599"]}))
    renamed = "--map", "sku=name", "--map", "price=value"

    loaded = await commands.tell("load", "shop", prices, *renamed, "--yes", "--wait")
    again = await commands.tell("load", "shop", prices, *renamed, "--yes")
    total = await commands.tell("load", "shop", totals, "--yes", "--wait")
    prices.write_text("\n".join([*lines[:-1], "599,1000"]))
    changed = await commands.read("load", "--dry-run", "shop", prices, *renamed)

    assert "its values are up to date" in loaded
    assert again == "nothing differs: 0 added, 0 changed, 0 removed, 600 as they are\n"
    assert "its values are up to date" in total
    assert [each["name"] for each in changed["changes"]] == ["599"]
    values = await deployment.client.workspace("shop").values("7", "most")
    assert {value.name: value.value for value in values.values()} == {"7": 7.5, "most": 599.5}


async def test_a_file_with_a_cycle_is_refused_whole(commands: Commands, tmp_path: Path) -> None:
    """By names, and nothing of it is sent, not even what is right."""
    values = {"z": {"function": "sum", "inputs": ["z"]}}
    (tmp_path / "graph.json").write_text(json.dumps({"sources": {"a": 1}, "values": values}))

    done = await commands.give("load", "shop", tmp_path / "graph.json", "--yes", "--wait")

    assert done.code == 1
    assert "a cycle, where each is computed from the next: z -> z" in done.err
    assert await commands.read("values", "shop") == []


async def test_each_mistake_in_a_file_is_named(commands: Commands, tmp_path: Path) -> None:
    """With the place and the remedy, before anything is sent."""
    files = {
        "a.json": ("{", "a.json: line 1, column 2: not JSON: Expecting property name"),
        "b.toml": ("x = ", "b.toml: not TOML: "),
        "c.yaml": ("a: [", "c.yaml: line 1, column 5: not YAML: "),
        "d.txt": ("", "d.txt: '.txt' is no format of graphs; use .yaml, .yml, .json, .toml"),
        "e.json": ('{"source": {}}', "e.json: source: no such key; there is 'sources'"),
        "f.json": (
            json.dumps({"values": {"x": {"function": "summ"}}}),
            "'x': no function is called 'summ'; there is 'sum'; ",
        ),
        "g.json": (json.dumps({"functions": {"x": {}}}), "function 'x' is one of builtin, cel"),
        "h.json": (
            json.dumps({"values": {"x": {"function": "sum", "inputs": ["y"]}}}),
            "'x' is computed from 'y', and no value is called so",
        ),
        "i.json": (json.dumps({"tables": [{"file": "no.csv"}]}), "no.csv"),
        "k.yaml": ("# soon\n", "k.yaml: it is empty. A file that says that there are no values"),
        "l.yaml": ("sources: {a: 1}\nsources: {b: 2}\n", "l.yaml: line 2, column 1: the key 'so"),
        "j.csv": ("sku,value\na,1\n", "j.csv: it has no column 'name'; it has 'sku', 'value'"),
        "semicolons.csv": (
            "name;value\na;1\n",
            f"rebaser: {tmp_path}/semicolons.csv: its one column is called 'name;value'",
        ),
    }
    for name, (text, message) in files.items():
        file = tmp_path / name
        file.write_text(text)
        assert message in await commands.tell("load", "--dry-run", "shop", file, code=1), name
    mapped = "load", "--dry-run", "shop", tmp_path / "e.json", "--map"
    assert "--map is for tables" in await commands.tell(*mapped, "sku=name", code=1)
    assert "expected COLUMN=MEANING (for example sku=name), got 'sku'" in await commands.tell(
        *mapped, "sku", code=2
    )


async def test_a_function_of_one_file_computes_values_of_the_next(
    commands: Commands, deployment: Deployment, tmp_path: Path
) -> None:
    """By its name, in graph files and tables; the one of the file itself comes first."""
    one, two, own = tmp_path / "one.yaml", tmp_path / "two.yaml", tmp_path / "own.yaml"
    table, typo = tmp_path / "table.csv", tmp_path / "typo.yaml"
    functions = 'functions: {gross: {cel: "net * 2"}, most: {builtin: max}}\n'
    one.write_text(
        functions + "sources: {x: 3}\nvalues:\n  a: {function: gross, inputs: {net: x}}\n"
        "  m: {function: most, inputs: [x, a]}\n"
    )
    two.write_text(
        "values:\n  b: {function: gross, inputs: {net: a}}\n  n: {function: most, inputs: [a, b]}\n"
    )
    table.write_text('name,function,inputs\nc,gross,"{""net"": ""b""}"\n')
    typo.write_text("values: {d: {function: gros, inputs: {net: x}}}\n")
    own.write_text(
        'functions: {gross: {cel: "net * 10"}}\nvalues: {e: {function: gross, inputs: {net: x}}}\n'
    )
    await commands.tell("load", "shop", one, "--yes", "--wait")

    await commands.tell("load", "shop", two, "--yes", "--wait")
    again = await commands.tell("load", "shop", two, "--yes")
    mistyped = await commands.give("load", "shop", typo, "--yes")
    one.write_text(one.read_text().replace("net * 2", "net * 3"))
    await commands.tell("load", "shop", one, "--yes", "--wait")
    replanned = await commands.read("load", "--dry-run", "shop", two)
    for file in (two, table, own):
        await commands.tell("load", "shop", file, "--yes", "--wait")
    typo.write_text(typo.read_text().replace("gros", "gross"))
    ambiguous = await commands.give("load", "--dry-run", "shop", typo)

    values = await deployment.client.workspace("shop").values()
    shown = {value.name: value.value for value in values.values()}
    assert shown == {"x": 3, "a": 9, "m": 9, "b": 27, "n": 27, "c": 81, "e": 30}
    assert "nothing differs" in again
    assert mistyped.code == 1
    assert "'d': no function is called 'gros'; there is 'gross'" in mistyped.err
    assert [(each["name"], each["part"]) for each in replanned["changes"]] == [("b", "function")]
    assert ambiguous.code == 1
    assert "'d': the change set has 2 functions called 'gross' (cel " in ambiguous.err


async def test_values_of_a_function_are_computed_again_by_its_name(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is neither a value's nor a function's is refused before anything is sent."""
    graph = tmp_path / "graph.yaml"
    graph.write_text(
        "functions: {double: {cel: net * 2}}\nsources: {net: 1}\n"
        "values: {a: {function: double, inputs: {net: net}}}\n"
    )
    await commands.tell("load", "shop", graph, "--yes", "--wait")

    ran = await commands.tell("dvu", "run", "shop", "double", "--wait")
    refused = await commands.give("dvu", "run", "shop", "doubel")
    monkeypatch.setitem(sys.modules, "deltalake", None)  # as in an installation without the store
    asked = await commands.tell("dvu", "run", "shop", "double", "--wait")

    assert "the values are computed" in ran
    assert "the values are computed" in asked
    assert refused.code != 0
    assert "no value is called 'doubel', and no function" in refused.err
    assert "there is 'double'" in refused.err


async def test_a_new_value_takes_the_id_of_no_value_that_was_given_another_name(
    deployment: Deployment,
) -> None:
    """Ids of new values follow from their names, and values may have got others since."""
    await deployment.start()
    shop = await deployment.client.workspace("shop").create()
    once = new_value_id("net")
    twice = new_value_id("net", [once])
    for value_id, name in ((once, "old"), (twice, "older")):
        await shop.enqueue([{"putValue": {"valueId": value_id, "name": name, "value": name}}])
    draft = Draft()
    draft.source("net", 1)

    await shop.load(draft)

    values = await shop.values()
    assert {value.name: value.value for value in values.values()} == {
        "old": "old",
        "older": "older",
        "net": 1,
    }


async def test_what_another_program_loads_while_a_plan_is_made_is_there_once(
    deployment: Deployment,
) -> None:
    await deployment.start()
    shop = await deployment.client.workspace("shop").create()
    draft = Draft()
    draft.source("net", 1)

    class Reading(ChangeSetHandle):
        """A change set that another program loads behind the first read."""

        async def values(self, *names: str, **options: Any) -> ValueSet:
            read = await super().values(*names, **options)
            await shop.load(draft)
            return read

    reading = Reading(shop._sender, shop._workspaces, await shop.ids())
    plan = await compare(reading, draft)
    await shop.load(plan)

    assert [value.name for value in (await shop.values()).values()] == ["net"]
