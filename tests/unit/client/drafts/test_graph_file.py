"""The same graph in each format is the same draft as the program's."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from rebaser_client import Draft, InvalidDraft, arrow, builtin, cel, python, sql
from rebaser_client.graph_files import read_graph_file

YAML = """
functions:
  add: {builtin: sum}
  gross: {cel: "net * rate"}
  price: {python: "price@2"}
  sums: {arrow: "totals@2"}
sources:
  rate: 2
values:
  total: {function: add, inputs: ["gross/1/us", "gross/1/de"]}
  pays: {function: price, inputs: {net: "net/1"}}
  sum: {function: sums, inputs: {orders: "net/1"}}
tables:
  - file: products.csv
    text: [sku]
    sources: {"net/{sku}": net, "product/{sku}": null}
  - file: [products.csv, markets.csv]
    values:
      "gross/{sku}/{market}": {function: gross, inputs: {net: "net/{sku}", rate: rate}}
remove: [old]
"""

TOML = """
remove = ["old"]
[functions]
add = {builtin = "sum"}
gross = {cel = "net * rate"}
price = {python = "price@2"}
sums = {arrow = "totals@2"}
[sources]
rate = 2
[values]
total = {function = "add", inputs = ["gross/1/us", "gross/1/de"]}
pays = {function = "price", inputs = {net = "net/1"}}
sum = {function = "sums", inputs = {orders = "net/1"}}
[[tables]]
file = "products.csv"
text = ["sku"]
sources = {"net/{sku}" = "net"}
[[tables]]
file = ["products.csv", "markets.csv"]
[tables.values."gross/{sku}/{market}"]
function = "gross"
inputs = {net = "net/{sku}", rate = "rate"}
"""


def written() -> Draft:
    g = Draft()
    rate = g.source("rate", 2)
    g.value("total", builtin("sum", name="add"), "gross/1/us", "gross/1/de")
    g.value("pays", python("price@2", name="price"), net="net/1")
    g.value("sum", arrow("totals@2", name="sums"), orders="net/1")
    products = [{"sku": "1", "net": 10}]
    net = g.sources("net/{sku}", products, "net")
    g.sources("product/{sku}", products)
    both = [{**products[0], "market": market} for market in ("us", "de")]
    g.values("gross/{sku}/{market}", cel("net * rate", name="gross"), both, net=net, rate=rate)
    g.remove("old")
    return g


@pytest.mark.parametrize("suffix", ["yaml", "json", "toml"])
def test_a_file_says_what_a_program_says(suffix: str, tmp_path: Path) -> None:
    """TOML has no null, so it names a column always."""
    text = {"yaml": YAML, "toml": TOML}.get(suffix) or json.dumps(yaml.safe_load(YAML))
    file = tmp_path / f"graph.{suffix}"
    file.write_text(text)
    (tmp_path / "products.csv").write_text("sku,net\n1,10\n")
    (tmp_path / "markets.csv").write_text("market\nus\nde\n")

    draft, wanted = read_graph_file(file), written()

    if suffix == "toml":
        del wanted.definitions["product/1"]
    assert draft.definitions == wanted.definitions
    assert draft.removed == wanted.removed


TABLES = """
functions:
  by day:
    sql: |
      SELECT day, sum(net) AS net
      FROM orders
      GROUP BY day
sources:
  orders: {$table: orders.csv}
  codes: {$table: {file: orders.csv, text: [net], partition_by: day}}
values:
  days: {function: by day, inputs: {orders: orders}}
"""


def test_a_source_is_a_table_and_a_function_is_sql(tmp_path: Path) -> None:
    """What stands under `$table` could not be a value."""
    orders = tmp_path / "orders.csv"
    orders.write_text("day,net\nd1,10\n")
    (tmp_path / "graph.yaml").write_text(TABLES)
    wanted = Draft()
    wanted.table("orders", orders)
    wanted.table("codes", orders, text=["net"], partition_by="day")
    query = sql("SELECT day, sum(net) AS net\nFROM orders\nGROUP BY day\n", name="by day")
    wanted.value("days", query, orders="orders")

    draft = read_graph_file(tmp_path / "graph.yaml")

    assert draft.definitions == wanted.definitions
    assert draft.uploads.keys() == wanted.uploads.keys()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fil": "a.csv"}, "sources.orders.$table: fil: no such key; there is 'file'"),
        ({}, "'orders': give either a table, or the uri of one"),
        ({"file": "a.csv", "uri": "/lake"}, "'orders': give either a table, or the uri of one"),
        ({"uri": "/lake"}, "'orders': the version of a table of Delta is a number"),
        ({"uri": "/lake", "version": -1}, "'orders': the version of a table of Delta is a number"),
        ({"uri": "s3://id:key@lake/a", "version": 1}, "'orders': a URI with credentials"),
        ({"uri": "s3://lake/a", "version": 1}, "'orders': a URI that begins with s3: is no path"),
        ({"uri": "lake", "version": 1}, "'orders': 'lake' is no path from the root"),
        ({"uri": "/lake/../etc", "version": 1}, "'orders': '/lake/../etc' has .. in it"),
        ({"file": "a.csv", "texts": []}, "sources.orders.$table: texts: no such key; there is 'te"),
        ("a.tsv", "a.tsv: a file with a table is .parquet or .csv"),
        (["a.csv"], "sources.orders.$table: the file: an object is expected, with file, text"),
        ("\0.csv", "null byte"),
        ("\0.parquet", "null byte"),
    ],
)
def test_a_mistake_in_a_table_is_named(given: object, message: str, tmp_path: Path) -> None:
    text = json.dumps({"sources": {"orders": {"$table": given}}})
    (tmp_path / "graph.json").write_text(text)

    with pytest.raises(InvalidDraft, match=re.escape(message)):
        read_graph_file(tmp_path / "graph.json")


def test_what_stands_beside_a_table_is_refused_with_its_place(tmp_path: Path) -> None:
    """A Rebaser would take the value for none, and a source would be null."""
    path = tmp_path / "graph.yaml"
    path.write_text("sources:\n  orders:\n    $table: orders.csv\n    text: [id]\n")

    with pytest.raises(InvalidDraft, match=r"sources\.orders: 'text' stands beside \$table: write"):
        read_graph_file(path)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            {"sources": {"orders": {"$table": "data/order.csv"}}},
            "sources.orders: there is no file 'data/order.csv'; there is 'orders.csv'",
        ),
        (
            {"sources": {"orders": {"$table": {"file": "data/order.csv"}}}},
            "sources.orders: there is no file 'data/order.csv'; there is 'orders.csv'",
        ),
        (
            {"sources": {"orders": {"$table": "data/o.parquet"}}},
            "sources.orders: there is no file 'data/o.parquet'",
        ),
        ({"tables": [{"file": "none/a.csv"}]}, "tables: there is no file 'none/a.csv'"),
    ],
)
def test_a_file_that_is_not_there_is_named_as_it_is_written(
    graph: object, message: str, tmp_path: Path
) -> None:
    """With its value, and the files there whose names are like it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "orders.csv").write_text("a\n1\n")
    (tmp_path / "graph.json").write_text(json.dumps(graph))

    with pytest.raises(InvalidDraft, match=f"graph.json: {re.escape(message)}$"):
        read_graph_file(tmp_path / "graph.json")


def test_yaml_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other formats need nothing."""
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    (tmp_path / "graph.yml").write_text("{}")

    with pytest.raises(InvalidDraft, match=r"pip install 'rebaser\[yaml\]'"):
        read_graph_file(tmp_path / "graph.yml")


@pytest.mark.parametrize("name", ["products.tsv", "products"])
def test_a_file_of_another_format_is_told_those_that_there_are(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("sku,net\n1,10\n")

    with pytest.raises(InvalidDraft, match=r"no format of graphs; .* values are .csv, .parquet"):
        read_graph_file(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "the file: an object is expected, with functions, sources, values, tables, remove"),
        (
            '{"values": {"net": 100}}',
            "values.net: an object is expected, with function, inputs; values that are not c",
        ),
        (
            '{"values": {"z": {"function": "sum", "inputs": [["a"]]}}}',
            "values.z.inputs: names of values are expected, by argument or as a list",
        ),
        ('{"tables": ["a.csv"]}', "tables.0: an object is expected, with file, text, sources"),
        ('{"sourcs": {}}', "sourcs: no such key; there is 'sources'"),
        ('{"functions": {"f": {"cel": "1", "sql": "select 1"}}}', "function 'f' is one of builtin"),
        ('{"functions": {"f": {"pyton": "f"}}}', "functions.f.pyton: no such key; there is 'pyth"),
    ],
)
def test_a_mistake_is_named_in_the_words_of_the_file(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "graph.json").write_text(text)

    with pytest.raises(InvalidDraft, match=re.escape(f"graph.json: {message}")):
        read_graph_file(tmp_path / "graph.json")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", ""),
        ("a.yaml", "# soon\n"),
        ("a.yaml", "null"),
        ("a.json", "null"),
        ("a.json", "[]"),
        ("a.json", " \n"),
        ("a.toml", "# soon\n"),
    ],
)
def test_a_file_that_says_nothing_is_no_order_to_remove_all(
    name: str, text: str, tmp_path: Path
) -> None:
    """Which an explicit `{}` is."""
    (tmp_path / name).write_text(text)
    (tmp_path / "none.json").write_text("{}")
    (tmp_path / "none.toml").write_text("sources = {}")

    with pytest.raises(
        InvalidDraft, match=f"{name}: it is empty. A file that says .* holds `{{}}`"
    ):
        read_graph_file(tmp_path / name)
    assert read_graph_file(tmp_path / "none.json").definitions == {}
    assert read_graph_file(tmp_path / "none.toml").definitions == {}


@pytest.mark.parametrize("name", ["a.json", "a.toml", "a.yaml"])
def test_a_byte_order_mark_is_taken_in_each_format(name: str, tmp_path: Path) -> None:
    text = "[sources]\na = 1" if name == "a.toml" else '{"sources": {"a": 1}}'
    (tmp_path / name).write_text(text, "utf-8-sig")

    assert [*read_graph_file(tmp_path / name).definitions] == ["a"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"file": ["c.csv", "c.csv"]}, "c.csv and c.csv both have a column 'sku'"),
        ({"file": ["a.csv", "b.csv"], "sources": {"{sku}/{b}": None}}, "with what is made of each"),
        ({"file": "\0.csv"}, "is no path"),
    ],
)
def test_tables_that_cannot_be_combined_are_refused(
    table: dict[str, object], message: str, tmp_path: Path
) -> None:
    """A column in both, or more combinations of rows than any change set has values."""
    for column, name in {"sku": "a.csv", "b": "b.csv"}.items():
        rows = "".join(f"{i}\n" for i in range(3000))
        (tmp_path / name).write_text(f"{column}\n{rows}")
    (tmp_path / "c.csv").write_text("sku\n1\n")
    (tmp_path / "graph.json").write_text(json.dumps({"tables": [table]}))

    with pytest.raises(InvalidDraft, match=message):
        read_graph_file(tmp_path / "graph.json")
