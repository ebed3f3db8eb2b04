"""Manifests of dbt as drafts: what stands for what, and what cannot be taken over."""

# ruff: noqa: S608 - queries are texts of this file alone

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rebaser_client.draft import Computed
from rebaser_client.errors import InvalidDraft
from rebaser_client.graph_files import read_graph_file
from rebaser_server.commands.load import _judge
from rebaser_server.compute.tables import read_definition
from tests.helpers.paths import ROOT

MANIFEST = ROOT / "examples" / "dbt" / "target" / "manifest.json"
Edit = Callable[[dict[str, Any]], object]


def read(tmp_path: Path, edit: Edit) -> dict[str, Any]:
    """The definitions of the example's project with an edited manifest."""
    data = json.loads(MANIFEST.read_text())
    edit(data)
    (tmp_path / "target").mkdir()
    (tmp_path / "seeds").symlink_to(MANIFEST.parent.parent / "seeds")
    path = tmp_path / "target" / "manifest.json"
    path.write_text(json.dumps(data))
    return dict(read_graph_file(path).definitions)


def orders(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["nodes"]["model.shop.orders"]
    return found


def query(definitions: dict[str, Any], name: str) -> str:
    content = definitions[name]
    assert isinstance(content, Computed)
    return content.function.code


def test_an_argument_has_no_name_of_a_part_of_the_query(tmp_path: Path) -> None:
    """Spark would read the part; and columns keep the qualifiers that they have."""

    def edit(data: dict[str, Any]) -> None:
        orders(data)["compiled_code"] = (
            'WITH stg_orders AS (SELECT "shop"."main"."stg_orders".order_id '
            'FROM "shop"."main"."stg_orders") SELECT order_id FROM stg_orders'
        )

    found = read(tmp_path, edit)

    assert found["orders"].inputs == {"stg_orders_": "stg_orders"}
    text = " ".join(query(found, "orders").split())
    assert "SELECT `stg_orders`.order_id FROM `stg_orders_` AS `stg_orders` )" in text


def test_a_source_is_a_value_that_is_there_already(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["sources"]["source.shop.crm.people"] = {
            "resource_type": "source", "source_name": "crm", "name": "people",
            "relation_name": '"lake"."crm"."people"',
        }  # fmt: skip
        orders(data)["compiled_code"] = 'SELECT * FROM "lake"."crm"."people"'
        orders(data)["depends_on"]["nodes"] = ["source.shop.crm.people"]

    found = read(tmp_path, edit)

    assert found["orders"].inputs == {"crm_people": "crm/people"}
    assert "crm/people" not in found


def test_an_enforced_contract_is_declared_with_the_query(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        orders(data)["config"]["contract"] = {"enforced": True}
        orders(data)["columns"] = {
            "order_id": {
                "name": "order_id", "data_type": "integer", "constraints": [{"type": "not_null"}],
            },
            "amount": {"name": "amount", "data_type": "decimal(12,2)"},
        }  # fmt: skip
        orders(data)["constraints"] = [{"type": "primary_key", "columns": ["order_id"]}]

    text = query(read(tmp_path, edit), "orders")

    assert text.startswith(
        "-- columns: `order_id` INT not null, `amount` DECIMAL(12, 2)\n-- key: `order_id`\n"
    )


def test_a_seed_has_the_types_that_are_configured(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["nodes"]["seed.shop.orders_raw"]["config"]["column_types"] = {"id": "interval"}

    with pytest.raises(InvalidDraft, match=r"orders_raw\.csv: a column of the type 'interval'"):
        read(tmp_path, edit)


def test_a_model_reads_what_ephemeral_ones_within_it_read(tmp_path: Path) -> None:
    """An ephemeral model is a part of the query, also over another ephemeral one."""

    def edit(data: dict[str, Any]) -> None:
        nodes = data["nodes"]
        for name, parent in (("one", "model.shop.stg_orders"), ("two", "model.shop.one")):
            nodes[f"model.shop.{name}"] = {
                **nodes["model.shop.stg_orders"], "name": name, "unique_id": f"model.shop.{name}",
                "relation_name": None, "depends_on": {"nodes": [parent]},
                "config": {"materialized": "ephemeral"},
            }  # fmt: skip
        orders(data)["depends_on"]["nodes"] = ["model.shop.two"]
        orders(data)["compiled_code"] = (
            'with __dbt__cte__one as (select * from "shop"."main"."stg_orders"), '
            "__dbt__cte__two as (select * from __dbt__cte__one) "
            "select order_id, customer_id, status from __dbt__cte__two"
        )
        only(data, "orders", "stg_orders", "orders_raw", "one", "two")

    found = read(tmp_path, edit)

    assert found["orders"].inputs == {"stg_orders": "stg_orders"}
    assert found.keys() == {"orders_raw", "stg_orders", "orders"}


SPARK_CODE = """-- key: not a declaration
select /*+ broadcast(o) */ {stg_orders}.order_id div 2   as half, -- as it is
    regexp_replace(o.status, '(a)\\\\w', "$1") as s, o.address.city.name, main.stg_orders.order_id
from {relation}, {relation} as o
where o.order_id = stg_orders.order_id
"""


@pytest.mark.parametrize("adapter", ["spark", "databricks", "glue"])
def test_sql_of_spark_stays_as_it_is(adapter: str, tmp_path: Path) -> None:
    """Names of relations alone are others, and comments of the model declare nothing."""

    def edit(data: dict[str, Any]) -> None:
        data["metadata"]["adapter_type"] = adapter
        for node in data["nodes"].values():
            if node.get("relation_name"):
                node["relation_name"] = node["relation_name"].replace('"', "`")
            if node.get("compiled_code"):
                node["compiled_code"] = node["compiled_code"].replace('"', "`")
        orders(data)["compiled_code"] = SPARK_CODE.format(
            relation="`shop`.`main`.`stg_orders`", stg_orders="`shop`.`main`.`stg_orders`"
        )

    code = query(read(tmp_path, edit), "orders")

    expected = SPARK_CODE.format(relation="`stg_orders`", stg_orders="`stg_orders`")
    assert code == f"/* dbt */ {expected.replace('main.', '')}"
    assert read_definition(code).key == ()


def test_each_mistake_is_named_by_model_function_and_line(tmp_path: Path) -> None:
    """Those of all models at once, but not those that follow from others."""

    def edit(data: dict[str, Any]) -> None:
        nodes = data["nodes"]
        nodes["model.shop.stg_payments"]["compiled_code"] = (
            "select id as payment_id, order_id, method,\n  log(cents) as amount\n"
            'from "shop"."main"."payments_raw"'
        )
        nodes["model.shop.stg_customers"]["compiled_code"] = (
            "select id as customer_id,\n  regexp_replace(first_name, 'a', 'b') as first_name,\n"
            "  left(last_name, 0) as last_name,\n\n"
            "  cast(id as text) + 1 as n\n"
            'from "shop"."main"."customers_raw" where id = any(select 1)'
        )

    with pytest.raises(InvalidDraft) as refused:
        read(tmp_path, edit)

    assert [line.strip() for line in str(refused.value).split("\n")[1:]] == [
        "model stg_payments: line 2: LOG is not translated",
        "model stg_customers: line 2: REGEXP_REPLACE is not translated",
        "model stg_customers: line 3: LEFT is translated with a number from 1 alone",
        "model stg_customers: line 5: ADD of text is not translated",
        "model stg_customers: line 6: ANY is not translated",
    ]
    assert str(refused.value).count("2 parts of the dbt project cannot be values") == 1


def test_types_go_from_seeds_and_sources_through_models(tmp_path: Path) -> None:
    """A division or a cast is written by the types that its parts have."""

    def edit(data: dict[str, Any]) -> None:
        data["sources"]["source.shop.crm.people"] = {
            "resource_type": "source", "source_name": "crm", "name": "people",
            "relation_name": '"lake"."crm"."people"',
            "columns": {"age": {"name": "age", "data_type": "decimal(5,2)"}},
        }  # fmt: skip
        orders(data)["compiled_code"] = (
            "select cast(amount as integer) as whole, p.age / 2 as half, p.name = 'x' as is_x "
            'from "shop"."main"."stg_payments" join "lake"."crm"."people" as p '
            "on p.id = payment_id"
        )
        orders(data)["depends_on"]["nodes"] = ["model.shop.stg_payments", "source.shop.crm.people"]
        only(data, "orders", "stg_payments", "payments_raw")

    text = " ".join(query(read(tmp_path, edit), "orders").split())

    assert "CAST(RINT(amount) AS INT) AS whole" in text
    assert "CAST(p.age AS DOUBLE) / 2 AS half" in text


def only(data: dict[str, Any], *names: str) -> None:
    """Leave these nodes alone."""
    data["nodes"] = {
        key: node for key, node in data["nodes"].items() if key.split(".")[-1] in names
    }


IN_PART = "{% if is_incremental() %}\n where day >= '{{ var(\"from\") }}'\n{% endif %}"
WHOLE = 'select order_id from "shop"."main"."stg_orders"'


@pytest.mark.parametrize(
    ("raw", "compiled"),
    [
        (
            f"select order_id from {{{{ ref('stg_orders') }}}} {IN_PART}",
            f"{WHOLE}\n where\n day >= '2'",
        ),
        (
            f"select order_id from {{{{ ref('stg_orders') }}}} {IN_PART}",
            f'{WHOLE} where order_id > (select max(order_id) from "shop"."main"."orders")',
        ),
        ("{% set rows = is_incremental() %} select 1", WHOLE),
        ("select 1 {% if is_incremental() %} {{ only_new() }} {% endif %}", WHOLE),
    ],
)
def test_a_model_that_was_compiled_for_new_rows_alone_is_refused(
    raw: str, compiled: str, tmp_path: Path
) -> None:
    def edit(data: dict[str, Any]) -> None:
        orders(data).update(raw_code=raw, compiled_code=compiled)

    with pytest.raises(InvalidDraft, match=r"--full-refresh|is_incremental\(\) leaves out"):
        read(tmp_path, edit)


def test_an_incremental_model_that_was_compiled_as_a_whole_is_taken(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        raw = (
            f"select order_id from (select * from {{{{ ref('stg_orders') }}}} where true) {IN_PART}"
        )
        orders(data).update(raw_code=raw, compiled_code=f"{WHOLE} where true")
        only(data, "orders", "stg_orders", "orders_raw")

    assert "orders" in read(tmp_path, edit)


def test_hooks_are_refused_by_the_names_of_what_has_them(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        orders(data)["config"]["post-hook"] = [{"sql": "grant select on {{ this }} to all"}]
        data["nodes"]["operation.shop.shop-on-run-end-0"] = {
            "resource_type": "operation", "name": "shop-on-run-end-0", "config": {},
            "depends_on": {"nodes": []}, "unique_id": "operation.shop.shop-on-run-end-0",
        }  # fmt: skip

    with pytest.raises(InvalidDraft) as refused:
        read(tmp_path, edit)

    assert "model orders: its post-hook is not run" in str(refused.value)
    assert "operation shop-on-run-end-0: on-run-start and on-run-end are not" in str(refused.value)


def test_two_packages_with_one_name_are_named_with_their_files(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["nodes"]["model.tools.orders"] = {
            **orders(data), "unique_id": "model.tools.orders", "original_file_path": "models/o.sql",
        }  # fmt: skip

    with pytest.raises(InvalidDraft, match="two parts have this name") as refused:
        read(tmp_path, edit)

    for part in ("shop (models/orders.sql)", "tools (models/o.sql)"):
        assert part in str(refused.value)


def test_queries_that_a_rebaser_refuses_are_listed_at_once(tmp_path: Path) -> None:
    """With the mistakes of the project, by the lines of the compiled code."""
    data = json.loads(MANIFEST.read_text().replace('\\"', "`"))
    data["metadata"]["adapter_type"] = "spark"
    for node in data["nodes"].values():
        if node.get("relation_name"):
            node["relation_name"] = node["relation_name"].replace('"', "`")
    for name in ("stg_orders", "stg_customers"):
        data["nodes"][f"model.shop.{name}"]["compiled_code"] = "select 1 as x,\n  uuid() as y"
    data["nodes"]["model.shop.stg_payments"].pop("compiled_code")
    (tmp_path / "target").mkdir()
    (tmp_path / "seeds").symlink_to(MANIFEST.parent.parent / "seeds")
    path = tmp_path / "target" / "manifest.json"
    path.write_text(json.dumps(data))

    with pytest.raises(InvalidDraft, match="3 parts of the dbt project") as refused:
        read_graph_file(path, _judge)

    for name in ("stg_orders", "stg_customers"):
        assert f"model {name}: line 2, column 3: the function uuid() is not" in str(refused.value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: orders(data).pop("compiled_code"), "run `dbt compile`"),
        (lambda data: orders(data).update(language="python"), "a model in Python"),
        (
            lambda data: orders(data)["depends_on"]["nodes"].append("model.shop.orders"),
            "reads itself",
        ),
        (lambda data: orders(data).update(compiled_code="SELECT FROM WHERE"), "cannot be read"),
        (lambda data: orders(data).update(compiled_code="SELECT 1 AS x; SELECT 2"), "one query"),
        (lambda data: orders(data).update(compiled_code="DROP TABLE t"), "one query"),
        (
            lambda data: orders(data).update(compiled_code="SELECT * FROM secret.people"),
            "it reads secret.people, which is no model",
        ),
        (lambda data: orders(data).update(resource_type="snapshot"), "snapshots are not taken"),
    ],
)
def test_what_cannot_be_a_value_is_named(edit: Edit, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidDraft, match=message) as refused:
        read(tmp_path, edit)

    assert "orders" in str(refused.value)


def test_all_that_cannot_be_values_is_listed_at_once(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        for node in data["nodes"].values():
            node.pop("compiled_code", None)

    with pytest.raises(InvalidDraft, match="25 parts of the dbt project cannot be values"):
        read(tmp_path, edit)


def test_a_seed_whose_file_is_gone_is_named(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["nodes"]["seed.shop.orders_raw"]["original_file_path"] = "seeds/gone.csv"

    with pytest.raises(OSError, match=r"gone\.csv"):
        read(tmp_path, edit)


@pytest.mark.parametrize("adapter", ["postgres", "snowflake", "sqlserver", "synapse", "own", None])
def test_sql_of_another_database_is_refused_with_those_that_are_read(
    adapter: str | None, tmp_path: Path
) -> None:
    with pytest.raises(InvalidDraft, match="spark, databricks, glue") as refused:
        read(tmp_path, lambda data: data["metadata"].update(adapter_type=adapter))

    assert f"compiled for {adapter!r} are not taken over" in str(refused.value)
