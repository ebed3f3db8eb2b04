"""A few values out of a table, without its graph: for large change sets that are not in memory."""

from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rebaser_core.ids import ChangeSet
from rebaser_server.store.checkpoints import APP_ID, Checkpoints
from rebaser_server.store.graph_checkpoint import read_metadata
from rebaser_server.store.store_errors import translate_store_errors
from rebaser_server.store.table_files import data_files

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset, Expression, ParquetFileFragment  # these import pandas

_MAX_COMPARED: Final = 100
"""Texts of which each is compared with the bounds of each row group; of more none is."""


class StoredValue(NamedTuple):
    """A value as its row has it."""

    id: str
    name: str | None
    value: str
    """JSON; `null` if there is none."""
    func_id: str | None
    inputs: str | None
    """JSON: argument → id or list of ids."""
    status: str
    message: str | None


class StoredValues(NamedTuple):
    """Values as of a checkpoint."""

    commit: int
    commit_id: str | None
    """Of that commit; None in a table of an early release."""
    values: dict[str, StoredValue]
    """By the id or name that was asked for."""


def find_values(
    checkpoints: Checkpoints, change_set: ChangeSet, which: Sequence[str], min_rows: int
) -> StoredValues | None:
    """The values of these ids or names as of the last checkpoint; what there is not is left out.

    Reads of each row group that may have one the column `id`, for names `name`, and all columns
    only where one is. So it takes the memory of one row group. Blocks.

    None: the table has fewer than `min_rows` rows, or there is none, or values share a name.

    Raises:
        NewerVersion: only a newer release can read the table.
        OSError: the table is damaged, or the store cannot be read now.
    """
    with translate_store_errors():
        delta = checkpoints.open(change_set)
        if delta is None or sum(file.rows for file in data_files(delta)) < min_rows:
            return None
        metadata, commit = read_metadata(delta, ""), delta.transaction_version(APP_ID)
        if metadata is None or commit is None:
            return None
        dataset = delta.to_pyarrow_dataset()
        found = _live_values(dataset, which)
        names = set(which) - found.keys()
        for value in _live_values(dataset, _ids_of(dataset, names)).values():
            if value.name in names:
                if value.name in found:
                    return None
                found[value.name] = value
        return StoredValues(commit, metadata.get("commitId"), found)


def _live_values(dataset: "Dataset", ids: Collection[str]) -> dict[str, StoredValue]:
    """By id the row of the greatest commit, unless that says that the value is removed."""
    commits: dict[str, int] = {}
    live: dict[str, StoredValue] = {}
    for group, is_wanted in _row_groups(dataset, "id", ids):
        if not group.count_rows(filter=is_wanted):
            continue
        columns = ["commit", "removed", *StoredValue._fields]
        for row in _read(dataset, group, columns, is_wanted):
            commit, is_removed = row.pop("commit"), row.pop("removed")
            value = StoredValue(**row)
            if commit < commits.get(value.id, 0):
                continue
            commits[value.id] = commit
            live.pop(value.id, None)
            if not is_removed:
                live[value.id] = value
    return live


def _ids_of(dataset: "Dataset", names: Collection[str]) -> set[str]:
    """Ids of values that have, or had, one of these names."""
    return {
        row["id"]
        for group, is_wanted in _row_groups(dataset, "name", names)
        for row in _read(dataset, group, ["id"], is_wanted)
    }


def _read(
    dataset: "Dataset", group: "ParquetFileFragment", columns: list[str], wanted: "Expression"
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = group.to_table(dataset.schema, columns, wanted).to_pylist()
    return rows


def _row_groups(
    dataset: "Dataset", column: str, texts: Collection[str]
) -> Iterator[tuple["ParquetFileFragment", "Expression"]]:
    """The row groups that may have values with one of these texts, and the condition for rows."""
    if not texts:
        return
    field = pc.field(column)
    wanted = (pc.field("kind") == "value") & field.isin(pa.array(list(texts), pa.string()))
    may_have = wanted
    if len(texts) <= _MAX_COMPARED:
        may_have = reduce(or_, (field == text for text in texts))
    for fragment in dataset.get_fragments(may_have):
        for group in fragment.split_by_row_group(may_have, dataset.schema):
            yield group, wanted
