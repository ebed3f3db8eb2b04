"""Manifests of dbt as drafts: what stands for what, and what cannot be taken over."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rebaser_client.draft import Computed
from rebaser_client.errors import InvalidDraft
from rebaser_client.graph_files import read_graph_file
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
    assert "SELECT `stg_orders`.order_id FROM stg_orders_ AS `stg_orders` )" in text


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


def test_what_dbt_puts_into_its_readers_is_no_value(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["nodes"]["model.shop.stg_payments"]["config"]["materialized"] = "ephemeral"

    assert "stg_payments" not in read(tmp_path, edit)


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


def test_sql_of_an_unknown_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDraft, match="SQL of this project's database cannot be read"):
        read(tmp_path, lambda data: data["metadata"].update(adapter_type="ownsql"))
