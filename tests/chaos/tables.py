"""Values that are tables: uploads and queries of them, and what these must come to, in Python."""

import asyncio
import io
import json
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3
from deltalake import DeltaTable
from ulid import ULID

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ObjectStore
from rebaser_core.table_values import TableHandle, upload_of, upload_value
from rebaser_server.commit_log.garbage_collection import CONDEMNED
from rebaser_server.files import SharedFiles
from rebaser_server.graph_application.content import graph_of
from rebaser_server.store.publications import folder_of
from rebaser_server.tables import TableFiles, TableMissing
from tests.chaos.history import History, Kind
from tests.helpers.batches import computed, set_to
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually

Rows = list[dict[str, Any]]

_DAYS: Final = ("mon", "tue", "wed")
_OLD_AT_ONCE: Final = -60.0
"""Grace, in seconds, after which all is old that is there."""
_PUBLISHED_WITHIN: Final = 60.0  # seconds
_COLLECTIONS: Final = 3
"""Collections until nothing is left: a table is condemned, removed, and its directory with it."""


def _parquet(rows: Rows) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


_ORDERS: Final = [
    [{"id": n, "day": _DAYS[n % 3], "amount": (7 * n + size) % 40} for n in range(size)]
    for size in range(3, 15)
]
_UPLOADS: Final = {blake3(_parquet(rows)).hexdigest(): rows for rows in _ORDERS}
"""Rows of each file that clients upload, by its digest."""

_BY_DAY: Final = "SELECT day, sum(amount) * :rate AS total FROM orders GROUP BY day"
_BEST: Final = "SELECT day, max(amount) * :rate AS total FROM orders GROUP BY day"
_LARGE: Final = (
    "SELECT o.id, b.total FROM orders o JOIN by_day b ON o.day = b.day WHERE o.amount > :floor"
)
_TOP: Final = "-- returns: value\nSELECT max(total) FROM large"
_SHARE: Final = "-- returns: value\nSELECT sum(amount) / :rate FROM orders"


class QuerySheet:
    """The tables of one change set, and ordinary values that they are computed from and into."""

    def __init__(self, rng: random.Random) -> None:
        ids = [str(ULID.from_int(rng.getrandbits(127))) for _ in range(13)]
        self._orders, self._rate, self._floor, self._by_day, self._large, self._top = ids[:6]
        self._share, self._sum = ids[6:8]
        self._funcs = dict(zip((_BY_DAY, _LARGE, _TOP, _SHARE, "sum"), ids[8:], strict=True))

    def define(self, rng: random.Random) -> list[dict[str, Any]]:
        funcs, orders, rate = self._funcs, self._orders, self._rate
        return [
            *(_func(func_id, code) for code, func_id in funcs.items()),
            {"putValue": {"valueId": orders, "value": _any_upload(rng)}},
            {"putValue": {"valueId": rate, "value": 2}},
            {"putValue": {"valueId": self._floor, "value": 10}},
            computed(self._by_day, funcs[_BY_DAY], orders=orders, rate=rate),
            computed(
                self._large, funcs[_LARGE], orders=orders, by_day=self._by_day, floor=self._floor
            ),
            computed(self._top, funcs[_TOP], large=self._large),
            computed(self._share, funcs[_SHARE], orders=orders, rate=rate),
            computed(self._sum, funcs["sum"], values=[self._top, rate]),
        ]

    def batch(self, rng: random.Random) -> list[dict[str, Any]]:
        match rng.randrange(10):
            case 0:
                return [_func(self._funcs[_BY_DAY], rng.choice((_BY_DAY, _BEST)))]
            case 1 | 2 | 3:
                return [set_to(self._orders, _any_upload(rng))]
            case 4 | 5 | 6:
                return [set_to(self._rate, rng.randrange(9))]  # 0 fails its share
            case 7:
                return [
                    set_to(self._rate, rng.randrange(9)),
                    set_to(self._orders, _any_upload(rng)),
                ]
            case _:
                return [set_to(self._floor, rng.randrange(50))]


def _any_upload(rng: random.Random) -> dict[str, Any]:
    return upload_value(rng.choice(list(_UPLOADS)))


def _func(func_id: str, code: str) -> dict[str, Any]:
    runtime = "builtin" if code == "sum" else "sql"
    return {"putFunc": {"funcId": func_id, "name": "made", "runtime": runtime, "code": code}}


def _totals(orders: Rows, rate: int, of: Callable[[list[int]], int]) -> Rows:
    days = {row["day"] for row in orders}
    amounts = {day: [row["amount"] for row in orders if row["day"] == day] for day in days}
    return [{"day": day, "total": of(amounts[day]) * rate} for day in days]


def _large(orders: Rows, by_day: Rows, floor: int) -> Rows:
    totals = {row["day"]: row["total"] for row in by_day}
    return [{"id": o["id"], "total": totals[o["day"]]} for o in orders if o["amount"] > floor]


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    _BY_DAY: lambda orders, rate: _totals(orders, rate, sum),
    _BEST: lambda orders, rate: _totals(orders, rate, max),
    _LARGE: _large,
    _TOP: lambda large: max((row["total"] for row in large), default=None),
    _SHARE: lambda orders, rate: sum(row["amount"] for row in orders) / rate,
}


def query(code: str) -> Callable[..., Any]:
    """Rows that the query computes from uploads and from tables as `table_of` has them."""
    function = _FUNCTIONS[code]

    def compute(**arguments: Any) -> Any:
        found = function(**{name: _rows(value) for name, value in arguments.items()})
        return table_of(found) if isinstance(found, list) else found

    return compute


def _rows(value: Any) -> Any:
    if digest := upload_of(value):
        return _UPLOADS[digest]
    return value["rows"] if isinstance(value, dict) else value


def table_of(rows: Rows) -> dict[str, Rows]:
    """Stands for a table with these rows, in any order."""
    return {"rows": sorted(rows, key=json.dumps)}


async def upload_tables(deployment: Deployment, change_sets: Iterable[ChangeSet]) -> None:
    """Store what clients refer to in the workspace of each change set."""
    bucket = ObjectStore(deployment.js, deployment.streams.batches_bucket)
    workspaces = {str(change_set.workspace_id) for change_set in change_sets}
    for workspace, (digest, rows) in product(sorted(workspaces), _UPLOADS.items()):
        await bucket.part(workspace).put_once(digest, _parquet(rows))


def with_rows(deployment: Deployment, workspace: str, value: Any) -> Any:
    """The value, or the table that its handle names; an upload stays if it is what was sent."""
    handle, upload = TableHandle.of(value), upload_of(value)
    key = handle.key if handle else upload
    if key is None:
        return value
    tables = _tables_of(deployment)
    try:
        manifest = tables.get(workspace, key)
    except TableMissing as error:
        return {"missing": str(error)}
    found = manifest.handle(key)
    if handle and (handle.content, handle.schema) != (found.content, found.schema):
        return {"another": found.to_value()}
    names = [field["name"] for field in manifest.fields]
    batches = tables.batches(workspace, manifest, names)
    table = table_of([row for batch in batches for row in batch.to_pylist()])
    return value if upload and table == table_of(_UPLOADS[upload]) else table


async def write_down_tables(deployment: Deployment, head: ChangeSet, history: History) -> None:
    """Collect garbage as if all were old, and write down what is left beside whole tables.

    The published tables of `head` have the rows that its values have, each version another commit.
    """
    collector = deployment.collector(_OLD_AT_ONCE)
    for _ in range(_COLLECTIONS):
        await collector.remove(await collector.find())
    garbage, tables = await collector.find(), _tables_of(deployment)
    left = [
        f"{table.key} is not removed"
        for kind in (CONDEMNED, "tables")
        for table in garbage.held[kind]
    ]
    stored = await asyncio.to_thread(lambda: list(tables.stored()))
    left += [str(each) for each in stored if each.written is None or len(each.attempts) > 1]
    wrong = ["no look at what is published"]

    async def is_right() -> bool:
        wrong[:] = await _wrongly_published(deployment, head)
        return not wrong

    with suppress(AssertionError):
        await eventually(is_right, within=_PUBLISHED_WITHIN)
    history.add(Kind.TABLES, tables=len(stored), left=left + wrong)


def published_in(deployment: Deployment) -> Path:
    """Folder in which the tables of heads are published."""
    return deployment.directory / "published"


async def _wrongly_published(deployment: Deployment, head: ChangeSet) -> list[str]:
    wrong, workspace = [], str(head.workspace_id)
    graph = graph_of(await deployment.archive(head).load())
    for value in graph.referring_values():
        table = with_rows(deployment, workspace, value.value)
        path = published_in(deployment) / workspace / folder_of(value.name or value.id)
        if not DeltaTable.is_deltatable(str(path)):
            wrong.append(f"{value.id} is not published")
            continue
        found = await asyncio.to_thread(lambda path=path: DeltaTable(str(path)).to_pyarrow_table())
        if table_of(found.to_pylist()) != table_of(_rows(table)):
            wrong.append(f"{value.id} is published with other rows")
        lines = [each.read_text() for each in sorted((path / "_delta_log").glob("*.json"))]
        actions = [json.loads(line) for text in lines for line in text.splitlines()]
        commits = [action["txn"]["version"] for action in actions if "txn" in action]
        if len(commits) != len(lines) or sorted(set(commits)) != commits:
            wrong.append(f"the versions of {value.id} are of the commits {commits}")
    return wrong


def _tables_of(deployment: Deployment) -> TableFiles:
    store = deployment.settings.store
    return TableFiles(SharedFiles(store.root, store.options))
