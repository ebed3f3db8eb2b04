"""A simulated Delta Lake in memory: what our `Checkpoints` use of it, commit by commit.

A real one takes some 20 ms a checkpoint, most of a schedule's time; a share of the schedules
has the real one all the same. What is simulated is the store, as is the broker; the rows,
their order and the rules of who may write are the product's own code.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import Schema
from deltalake.exceptions import TableNotFoundError

from rebaser_server.store import checkpoints, compaction
from rebaser_server.store.row_digest import Head, heads_in
from tests.schedules.loop import Process

STORE_FAILS: Final = "the simulated store does not answer"


@dataclass
class _Version:
    files: list[pa.Table] = field(default_factory=list)
    transactions: dict[str, int] = field(default_factory=dict)


class Table:
    """One table as of now: nobody else writes while one call of ours runs."""

    def __init__(self, lake: "Lake", uri: str) -> None:
        self.uri = uri
        self.versions = lake.tables[uri]

    def schema(self) -> Schema:
        return Schema.from_arrow(self.versions[-1].files[0].schema)

    def heads(self) -> list[Head]:
        return heads_in(pa.concat_tables(self.versions[-1].files))

    def to_pyarrow_dataset(self, **how: Any) -> ds.Dataset:
        """There are no files that could be read in one way or another."""
        return ds.dataset(pa.concat_tables(self.versions[-1].files))

    def transaction_version(self, app_id: str) -> int | None:
        return self.versions[-1].transactions.get(app_id)

    def get_add_actions(self, *, flatten: bool) -> pa.Table:
        files = [rows for rows in self.versions[-1].files if rows]
        last = [pc.max(rows["commit"]).as_py() for rows in files]
        return pa.table(
            {"num_records": pa.array(map(len, files), pa.int64()), "max.commit": pa.array(last)}
        )

    def count(self) -> int:
        return sum(map(len, self.versions[-1].files))

    @property
    def optimize(self) -> "Table":
        return self

    def version(self) -> int:
        return len(self.versions) - 1

    def compact(
        self, *, target_size: int, writer_properties: Any, post_commithook_properties: Any
    ) -> None:
        last = self.versions[-1]
        self.versions.append(_Version([pa.concat_tables(last.files)], last.transactions))

    def vacuum(self, hours: int, **how: Any) -> list[str]:
        """There is nothing to gain."""
        return []

    def cleanup_metadata(self) -> None:
        """Nor here."""


_FIRST: Final = 2
"""Versions of a table that has one checkpoint: the empty one, and that."""


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
            mock.patch.object(checkpoints, "CheckpointTable", self),
            mock.patch.object(checkpoints, "write_deltalake", self.write),
            mock.patch.object(compaction, "write_deltalake", self.write),
            mock.patch.object(checkpoints, "DeltaFiles", mock.MagicMock()),
        ):
            yield

    def __call__(self, uri: str, *how: Any) -> Table:
        """Open a table."""
        self._answer()
        if uri not in self.tables:
            raise TableNotFoundError(uri)
        if self._unsynced.get(uri) != Process.current().name:
            self._unsynced.pop(uri, None)
        return Table(self, uri)

    def create(
        self, uri: str, schema: pa.Schema, *, mode: str, storage_options: Any, configuration: Any
    ) -> Table:
        self._answer()
        self.tables.setdefault(uri, [_Version([schema.empty_table()])])
        return Table(self, uri)

    def write(
        self,
        table: Table,
        rows: pa.Table | pa.RecordBatchReader,
        *,
        mode: str,
        commit_properties: Any,
        predicate: str = "commit <= 9999999999",
        target_file_size: int = 0,
        writer_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> None:
        self._answer()
        before = table.versions[-1]
        transactions = {t.app_id: t.version for t in commit_properties.app_transactions}
        others = before.files
        if mode == "overwrite":
            limit = int(predicate.removeprefix("commit <= "))
            others = [old.filter(pc.greater(old["commit"], limit)) for old in before.files]
        new = rows.read_all() if isinstance(rows, pa.RecordBatchReader) else rows
        files = [*(old for old in others if old), new]
        table.versions.append(_Version(files, before.transactions | transactions))
        self._unsynced[table.uri] = Process.current().name

    def lose(self, writer: str) -> int:
        """Lose what `writer` wrote last, as where a disk did not keep it; how much.

        Not a table's first checkpoint: it was synced before anything relied on it (S-7), and a
        branch may have nothing else.
        """
        lost = [
            uri
            for uri, name in self._unsynced.items()
            if name == writer and len(self.tables[uri]) > _FIRST
        ]
        for uri in lost:
            self.tables[uri].pop()
            del self._unsynced[uri]
        return len(lost)

    def _answer(self) -> None:
        if self.fails():
            raise OSError(errno.EIO, STORE_FAILS)
