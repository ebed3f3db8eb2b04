"""How the packages become a batch of updates."""

from __future__ import annotations

import base64
import difflib
import hashlib
import importlib.resources
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from rebaser_client.tables import read_updates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from rebaser_core.table_updates import TableUpdates

    Indices = NDArray[np.int64]

Update = dict[str, Any]

FUNCS: Final = {"any": "builtin", "identity": "builtin", "hops": "python"}
"""Function → runtime. Its code is its name: a builtin's, or an entry point's."""
RELEASED: Final = "01H2H9MJ00"
"""The time part of every ULID: 2023-06-10 UTC, the day bookworm came out."""
CROCKFORD: Final = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
)

_INPUTS: Final = {
    "values": pa.list_(pa.string()),
    "own": pa.string(),
    "dependencies": pa.list_(pa.string()),
    "value": pa.string(),
}
_COLUMNS: Final = {
    "id": ("valueId", pa.string()),
    "name": ("name", pa.string()),
    "value": ("value", pa.bool_()),
    "function": ("funcId", pa.string()),
    "inputs": ("inputs", pa.struct(_INPUTS.items())),
}
"""Column of a table → field of an update, and its type."""


class UnknownPackage(LookupError):
    """No package has that name; the message offers those that come close."""


@dataclass(frozen=True)
class Packages:
    """Each package in order of name: whether a fix is pending for it, what it depends on.

    Packages that depend on each other count as one, and the first of them, their *head*,
    speaks for all.
    """

    names: list[str]
    pending: list[bool]
    heads: list[int]
    """For each package the index of its head: its own unless it is in a cycle."""
    dependencies: dict[int, list[int]]
    """Head → the other heads that it depends on, all of which come before it."""

    @cached_property
    def own_ids(self) -> list[str]:
        return _ids(f"package/{name}/own" for name in self.names)

    @cached_property
    def exposed_ids(self) -> list[str]:
        return _ids(f"package/{name}/exposed" for name in self.names)

    @cached_property
    def distance_ids(self) -> list[str]:
        return _ids(f"package/{name}/distance" for name in self.names)

    def own_id(self, name: str) -> str:
        """Name the source that becomes false once the package is fixed.

        Raises:
            UnknownPackage: there is none of that name.
        """
        return self.own_ids[self._find(name)]

    def is_pending(self, name: str) -> bool:
        """Whether a fix is pending for the package; if not, fixing it changes nothing.

        Raises:
            UnknownPackage: there is none of that name.
        """
        return self.pending[self._find(name)]

    def _find(self, name: str) -> int:
        if name in self._indices:
            return self._indices[name]
        close = difflib.get_close_matches(name, self.names)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise UnknownPackage(f"no package is named {name!r}{hint}")

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def updates(self) -> list[Update]:
        """One batch that defines everything, the same in each run, inputs before dependents.

        Three values a package: the source `package/<name>/own`, and `/exposed` and `/distance`.
        For a cycle these are computed once, for its head, from `cycle/<head>/own` and all that
        its packages depend on outside of it; the others' are identities of the head's.
        """
        func_ids = _ids(f"func/{name}" for name in FUNCS)
        funcs = [
            {"putFunc": {"funcId": func_id, "name": name, "runtime": runtime, "code": name}}
            for func_id, (name, runtime) in zip(func_ids, FUNCS.items(), strict=True)
        ]
        sources = [
            {"putValue": {"valueId": value_id, "name": f"package/{name}/own", "value": own}}
            for value_id, name, own in zip(self.own_ids, self.names, self.pending, strict=True)
        ]
        return [*funcs, *sources, *self._dependents(*func_ids)]

    def batch(self) -> TableUpdates:
        """The same as a table, which costs client and Rebaser a tenth. Blocks."""
        updates = self.updates()
        funcs, puts = updates[: len(FUNCS)], [each["putValue"] for each in updates[len(FUNCS) :]]
        columns = {
            column: pa.array([put.get(field) for put in puts], kind)
            for column, (field, kind) in _COLUMNS.items()
        }
        return read_updates(pa.table(columns), funcs)

    def _dependents(self, any_: str, identity: str, hops: str) -> Iterator[Update]:
        exposed, distance = self.exposed_ids, self.distance_ids
        cycles = self._cycles()
        for head, dependencies in self.dependencies.items():
            name, own = self.names[head], self.own_ids[head]
            members = cycles.get(head, [])
            if members:
                owns = [self.own_ids[member] for member in members]
                [own] = _ids([f"cycle/{name}/own"])
                yield _dependent(own, f"cycle/{name}/own", any_, {"values": owns})
            inputs: dict[str, Any] = {"values": [own, *(exposed[d] for d in dependencies)]}
            yield _dependent(exposed[head], f"package/{name}/exposed", any_, inputs)
            inputs = {"own": own, "dependencies": [distance[d] for d in dependencies]}
            yield _dependent(distance[head], f"package/{name}/distance", hops, inputs)
            for member in members[1:]:
                for kind, ids in ("exposed", exposed), ("distance", distance):
                    of_member = f"package/{self.names[member]}/{kind}"
                    yield _dependent(ids[member], of_member, identity, {"value": ids[head]})

    def _cycles(self) -> dict[int, list[int]]:
        """Head of a cycle → all in it, the head first. Most packages are in none."""
        cycles: dict[int, list[int]] = {}
        for index, head in enumerate(self.heads):
            if index != head:
                cycles.setdefault(head, [head]).append(index)
        return cycles


def load_packages() -> Packages:
    """Read the packages that ship with Rebaser; the README beside them says where they are from."""
    data = importlib.resources.files(__package__) / "data" / "debian_bookworm.parquet"
    with data.open("rb") as file:
        table = pq.read_table(file, columns=["package", "security_version", "depends"])
    names, depends = table["package"].combine_chunks(), table["depends"].combine_chunks()
    # An index into `names` at both ends of each dependency.
    dependents = pc.list_parent_indices(depends).to_numpy()
    targets = pc.index_in(pc.list_flatten(depends), names).to_numpy()
    heads, dependencies = _condense(dependents, targets, len(names))
    pending = table["security_version"].is_valid().to_pylist()
    return Packages(names.to_pylist(), pending, heads, dependencies)


def _condense(
    dependents: Indices, targets: Indices, count: int
) -> tuple[list[int], dict[int, list[int]]]:
    """Find each package's head, and what the heads depend on, in an order with inputs first."""
    edges = csr_array((np.ones(len(targets)), (dependents, targets)), shape=(count, count))
    _, labels = connected_components(edges, connection="strong")
    _, first = np.unique(labels, return_index=True)
    heads = first[labels]

    between = np.unique(heads[dependents] * count + heads[targets])  # a pair as one number
    between = between[between // count != between % count]
    above, below = np.divmod(between, count)
    depth = np.zeros(count, int)
    while (shallow := depth[above] <= depth[below]).any():  # ends: without cycles depth is finite
        np.maximum.at(depth, above[shallow], depth[below[shallow]] + 1)

    order = first[np.lexsort((first, depth[first]))]
    dependencies: dict[int, list[int]] = {head: [] for head in order.tolist()}
    for head, target in zip(above.tolist(), below.tolist(), strict=True):
        dependencies[head].append(target)
    return heads.tolist(), dependencies


def _dependent(value_id: str, name: str, func_id: str, inputs: dict[str, Any]) -> Update:
    value = {"valueId": value_id, "name": name, "funcId": func_id, "inputs": inputs}
    return {"putValue": value}


def _ids(names: Iterable[str]) -> list[str]:
    """Make a ULID of each name, the same in every run: its time is fixed, the rest a hash.

    Encoded together, as ten bytes are exactly 16 characters: half the time of one by one.
    """
    digests = b"".join(hashlib.blake2b(n.encode(), digest_size=10).digest() for n in names)
    text = base64.b32encode(digests).translate(CROCKFORD).decode()
    return [RELEASED + text[i : i + 16] for i in range(0, len(text), 16)]
