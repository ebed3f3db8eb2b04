"""Each example runs as it stands, against a Rebaser that is up."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.conftest import ROOT, Up, install, javascript
from tests.helpers.eventually import eventually
from tests.helpers.machine_requirements import program

EXAMPLES = ROOT / "examples"


def change_set_told(output: str) -> tuple[str, str]:
    [(workspace, change_set)] = re.findall(r"in change set: (\w{26}) (\w{26})", output)
    return workspace, change_set


def test_a_client_enqueues_and_reads_what_was_computed(up: Up) -> None:
    done = up.python(EXAMPLES / "ask.py")

    assert done.returncode == 0, done.stderr
    assert re.match(r"committed: \d+\ngross: 119\n", done.stdout), done.stdout


def test_values_are_computed_by_a_users_function(up: Up) -> None:
    done = up.python(EXAMPLES / "own-function" / "use.py")

    assert done.returncode == 0, done.stderr
    message = "ValueError: discounts of 120.0 on 100.0 (at prices.py:15 in price)"
    assert done.stdout == f"ok 95.2 \nfailed None {message}\n"


def test_the_two_forms_of_the_function_agree(functions: Path) -> None:
    """To the last digit, and what is refused by the one is left to it by the other."""
    code = """
import numpy as np
from shop.prices import price
net, rate = np.array([100.0, 0.1, 5.0]), np.array([0.19, 0.07, 0.0])
discounts = np.array([[20.0, 1.5], [0.0, 0.0], [4.0, 2.0]])
many = price.vectorised(net=net, rate=rate, discounts=discounts)
assert many.mask.tolist() == [False, False, True]
for n in (0, 1):
    assert many[n] == price(net=net[n], rate=rate[n], discounts=list(discounts[n])), n
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=functions, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


async def test_the_quickstart_needs_no_checkout_for_a_function_and_a_table(
    up: Up, tmp_path: Path
) -> None:
    """The files that it shows are a distribution, and what it types shows each table."""
    page = (ROOT / "docs" / "quickstart.md").read_text()
    file = re.compile(r'title="prices/([^"]+)"\n(.*?)^```', re.DOTALL | re.MULTILINE)
    (tmp_path / "prices").mkdir()
    for name, content in file.findall(page):
        (tmp_path / "prices" / name).write_text(content)
    [reading] = re.findall(r"^python -c '([^']*)'$", page, re.MULTILINE)
    (tmp_path / "rebaser-data").mkdir()
    (tmp_path / "rebaser-data" / "store").symlink_to(up.store)
    await table_of(up, *change_set_told(up.python(EXAMPLES / "ask.py").stdout))

    install(tmp_path / "installed", tmp_path / "prices")
    asked = """
from importlib.metadata import entry_points
[price] = entry_points(group="rebaser.functions", name="price")
print(price.value, price.load()(net=100, rate=0.19, discounts=[20]))
"""
    found = up.run(sys.executable, "-c", asked, cwd=tmp_path / "installed")
    tables = up.run(sys.executable, "-c", reading, cwd=tmp_path)

    assert found.stdout == "prices:price 95.2\n", found.stderr
    assert re.search(r"gross +119 +ok", tables.stdout), tables.stderr


async def table_of(up: Up, workspace: str, change_set: str) -> None:
    """Return once the change set has a table."""
    table = up.store / "change_sets" / workspace / change_set / "_delta_log"
    await eventually(lambda: len(list(table.glob("*.json"))) > 1, within=120)


async def test_tables_are_read_and_their_values_enqueued_again(up: Up) -> None:
    workspace, change_set = change_set_told(up.python(EXAMPLES / "ask.py").stdout)
    await table_of(up, workspace, change_set)

    read = up.python(EXAMPLES / "read_tables.py", up.store)
    salvaged = up.python(EXAMPLES / "salvage.py", up.store, workspace, change_set)

    assert read.returncode == 0, read.stderr
    assert re.search(r"gross *│ 119 *│ ok", read.stdout), read.stdout
    assert salvaged.returncode == 0, salvaged.stderr
    assert salvaged.stdout.startswith("4 updates, 0 corrected\n")


def test_a_client_in_javascript_enqueues_and_awaits_the_reply(up: Up, tmp_path: Path) -> None:
    there = javascript(tmp_path)

    done = up.run(program("node", package="nodejs"), "ask.mjs", cwd=there)

    assert done.returncode == 0, done.stderr
    assert re.match(r"committed: \d+\ngross: 119\n", done.stdout), done.stdout


def test_a_price_list_is_loaded_branched_applied_and_undone(up: Up, tmp_path: Path) -> None:
    """Few commands and lines, without an id or a commit's number; here with ten products."""
    here = shutil.copytree(EXAMPLES / "price-list", tmp_path / "price-list")
    products = (here / "products.csv").read_text().splitlines()
    (here / "products.csv").write_text("\n".join(products[:11]) + "\n")
    program = (here / "price_list.py").read_text()
    shown = re.findall(r"```sh\n(.*?)```", (here / "README.md").read_text(), re.DOTALL)[0]
    commands = [line.partition("#")[0].split() for line in shown.splitlines()]
    setup, asked = commands[:3], commands[3:]

    loaded, again = up.python(here / "price_list.py"), up.python(here / "price_list.py")
    said = [up.rebaser(*words[1:]) for words in asked]
    after = up.rebaser("values", "price-list", "fx/us")

    started = ["pip install", "rebaser up", "python examples/price-list/price_list.py"]
    assert [" ".join(words[:2]) for words in setup] == started
    assert {words[0] for words in asked} == {"rebaser"}
    assert "98 added, 0 changed, 0 removed, 0 as they are\nfailed: []\n" in loaded.stdout
    assert again.stdout == "failed: []\n"
    assert [done.code for done in said] == [0] * 5, said
    assert re.search(r"pays/SKU-0001/us +\d", said[2].out)
    assert "pays/SKU-0001/de" not in said[2].out
    assert "fx/us is 1.09 again" in said[-1].out
    assert re.search(r"fx/us +1\.09 +ok", after.out), after.out
    assert len(commands) <= 8
    assert len([line for line in program.splitlines() if line.strip()]) <= 25
    assert not re.search(r"[0-9A-HJKMNP-TV-Z]{26}", program + shown)
    assert not [word for words in asked for word in words if word.isdigit()]


@pytest.mark.long
@pytest.mark.spark
def test_tables_of_tpch_follow_a_tax_and_a_rule(up: Up) -> None:
    """Values that a branch changed are computed once, and none to set back, apply or revert."""
    done = up.run(sys.executable, EXAMPLES / "tpch" / "tpch.py", "--scale=0.01", timeout=600)

    assert done.returncode == 0, done.stderr
    computed = re.findall(r"^\S.* (\d+) values computed anew", done.stdout, re.MULTILINE)
    assert computed == ["16", "7", "1", "0", "0", "0", "0"], done.stdout
    differ = re.findall(r"^    (\w+): [\d,]+ of", done.stdout, re.MULTILINE)
    assert differ == [
        *("local_suppliers", "pricing_summary", "returned_items", "shipping_modes"),
        *("shipping_priority", "supplier_revenue", "top_suppliers"),
    ]
