"""A simulated Delta Lake in memory: what our `Checkpoints` use of it, commit by commit.

A real one takes some 20 ms a checkpoint, most of a schedule's time; a share of the schedules
has the real one all the same. What is simulated is the store, as is the broker; the rows,
their order and the rules of who may write are the product's own code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import TableNotFoundError

from rebaser_server.store import checkpoints
from tests.schedules.loop import Process

STORE_FAILS = "the simulated store does not answer"


@dataclass
class _Version:
    files: list[pa.Table] = field(default_factory=list)
    transactions: dict[str, int] = field(default_factory=dict)


class Table:
    """One table as of now: nobody else writes while one call of ours runs."""

    def __init__(self, lake: "Lake", uri: str) -> None:
        self.uri = uri
        self.versions = lake.tables[uri]

    def to_pyarrow_table(self, filters: list[tuple[str, str, str]] | None = None) -> pa.Table:
        rows = pa.concat_tables(self.versions[-1].files)
        for column, _, wanted in filters or ():
            rows = rows.filter(pc.equal(rows[column], wanted))
        return rows

    def transaction_version(self, app_id: str) -> int | None:
        return self.versions[-1].transactions.get(app_id)

    def file_uris(self) -> list[str]:
        return [f"{self.uri}/{number}" for number in range(len(self.versions[-1].files))]

    def vacuum(self, *, dry_run: bool) -> None:
        """There is nothing to gain."""


class Lake:
    """Tables by URI, each with all its versions."""

    def __init__(self) -> None:
        self.tables: dict[str, list[_Version]] = {}
        self.fails: Callable[[], bool] = lambda: False
        """Whether the next call fails, as a store may."""
        self._unsynced: dict[str, str] = {}
        """Table → the process that wrote its last version, while nobody else has seen that."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have `Checkpoints` use it in place of the real one."""
        with (
            mock.patch.object(checkpoints, "DeltaTable", self),
            mock.patch.object(checkpoints, "write_deltalake", self.write),
        ):
            yield

    def __call__(self, uri: str, storage_options: Any = None) -> Table:
        """Open a table."""
        self._answer()
        if uri not in self.tables:
            raise TableNotFoundError(uri)
        if self._unsynced.get(uri) != Process.current().name:
            self._unsynced.pop(uri, None)
        return Table(self, uri)

    def create(self, uri: str, schema: pa.Schema, *, mode: str, storage_options: Any) -> Table:
        self._answer()
        self.tables.setdefault(uri, [_Version([schema.empty_table()])])
        return Table(self, uri)

    def write(self, table: Table, rows: pa.Table, *, mode: str, commit_properties: Any) -> None:
        self._answer()
        before = table.versions[-1]
        transactions = {t.app_id: t.version for t in commit_properties.app_transactions}
        files = [rows] if mode == "overwrite" else [*before.files, rows]
        table.versions.append(_Version(files, before.transactions | transactions))
        self._unsynced[table.uri] = Process.current().name

    def lose(self, writer: str) -> int:
        """Lose what `writer` wrote last, as a power cut may for want of an fsync; how much."""
        lost = [uri for uri, name in self._unsynced.items() if name == writer]
        for uri in lost:
            self.tables[uri].pop()
            del self._unsynced[uri]
        return len(lost)

    def _answer(self) -> None:
        if self.fails():
            raise OSError(STORE_FAILS)
