"""Whether a query may be computed for each partition of one of its tables by itself.

It may if the rows that it makes of all partitions are those that it makes of each, put together,
and if each row of the result has the value of its partition in the column that the result is
partitioned by. That is read from the syntax tree: the column is handed on as it is, and what takes
rows together (groups, windows, joins of the table with itself) does so within one value of it. What
is not proven so is said to be no such query, which costs time, and no wrong row.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from sqlglot import exp

from rebaser_server.compute.functions.sql import AGGREGATES, GENERATORS, parts_of, read

_Columns = Mapping[str, int | None]
"""Columns of a relation that have the value of the partition, by name in small letters: with their
positions, as far as these can be read."""
_Scope = Mapping[str, "_Columns | _Unclear | None"]
"""Parts of `WITH` clauses by names in small letters; None: it does not read the table."""
_PRESERVING: Final = ("", "INNER", "CROSS", "OUTER", "SEMI", "ANTI")
"""Kinds of joins that hand on rows of the left side, each by itself."""


class _Unclear(Exception):
    """The query cannot be shown to go by partitions."""


@lru_cache(1_000)
def is_partition_wise(text: str, table: str, column: str, result: str) -> bool:
    """Whether the query goes by the partitions of `table`.

    `text`: as printed by `judge`; `column`: the column that the table is partitioned by; `result`:
    the one that the result is.
    """
    try:
        found = _Reader(table.lower(), column.lower()).query(read(text), {})
    except (_Unclear, RecursionError):
        return False
    return found is not None and result.lower() in found


class _Reader:
    """Reader of one query that was judged before: names are what they seem to be."""

    def __init__(self, table: str, column: str) -> None:
        self._table = table
        self._column = column

    def query(self, node: exp.Expr, scope: _Scope) -> _Columns | None:
        """Return the columns of a query's result; None if the query does not read the table."""
        for part in parts_of(node.args.get("with_")):
            for each in part.expressions:
                scope = {**scope, each.alias.lower(): self._part(each, scope)}
        if not self._mentions(node, scope):
            return None
        if any(node.args.get(key) for key in ("limit", "offset", "pivots")):
            raise _Unclear
        if isinstance(node, exp.Subquery):
            found = self.query(node.this, scope)
        elif isinstance(node, exp.SetOperation):
            found = self._set_operation(node, scope)
        elif isinstance(node, exp.Select):
            found = self._select(node, scope)
        else:
            raise _Unclear
        self._require_none([node.args.get("order")], scope)
        return found

    def _part(self, part: exp.Expr, scope: _Scope) -> "_Columns | _Unclear | None":
        try:
            found = self.query(part.this, scope)
        except _Unclear as unclear:
            return unclear
        return found if found is None or not _renames(part) else _Unclear()

    def _mentions(self, node: exp.Expr, scope: _Scope) -> bool:
        """Whether the table is read, or a part of WITH that reads it."""
        names = {self._table, *(name for name, found in scope.items() if found is not None)}
        return any(each.name.lower() in names for each in node.find_all(exp.Table))

    def _require_none(self, nodes: list[Any], scope: _Scope) -> None:
        """Raise `_Unclear` if a query inside an expression reads the table."""
        for node in nodes:
            for part in parts_of(node):
                if self._mentions(part, scope):
                    raise _Unclear

    def _relation(self, node: exp.Expr, scope: _Scope) -> _Columns | None:
        if not self._mentions(node, scope) or isinstance(node.this, exp.Anonymous):
            return None
        if node.args.get("pivots") or _renames(node):
            raise _Unclear
        if not isinstance(node, exp.Table):
            return self.query(node, scope)
        name = node.name.lower()
        found = {self._column: None} if name == self._table else scope.get(name)
        if isinstance(found, _Unclear):
            raise _Unclear
        return found

    def _set_operation(self, node: exp.SetOperation, scope: _Scope) -> _Columns:
        left, right = (self.query(node.args[side], scope) for side in ("this", "expression"))
        if left is None or right is None:  # its rows would be there for each partition
            raise _Unclear
        positions = {place for place in right.values() if place is not None}
        return _required({name: place for name, place in left.items() if place in positions})

    # ------------------------------------------------------------------------------------- SELECT

    def _select(self, node: exp.Select, scope: _Scope) -> _Columns:
        kept = ("expressions", "where", "group", "having", "qualify", "order", "laterals")
        self._require_none([node.args.get(key) for key in kept], scope)
        if node.args.get("windows"):
            raise _Unclear
        sources = self._sources(node, scope)
        self._check_groups(node, sources)
        for key in ("expressions", "qualify", "order"):
            for window in _own(node.args.get(key), exp.Window):
                if not any(
                    _is_one(each, sources) for each in window.args.get("partition_by") or ()
                ):
                    raise _Unclear
        return _required(_projected(node, sources))

    def _sources(self, node: exp.Select, scope: _Scope) -> "_Sources":
        """Return the columns of each relation that has some, by the relation's name."""
        if node.args.get("from_") is None:
            raise _Unclear
        first, where = node.args["from_"].this, node.args.get("where")
        found = self._relation(first, scope)
        sources = {} if found is None else {first.alias_or_name.lower(): found}
        for join in node.args.get("joins") or ():
            self._require_none([join.args.get("on")], scope)
            found = self._relation(join.this, scope)
            if not sources and found is None:
                continue
            using = {each.name.lower() for each in join.args.get("using") or ()}
            is_plain = not join.side and join.kind in ("", "INNER", "CROSS")
            if join.method or join.kind not in _PRESERVING or join.side not in ("", "LEFT"):
                raise _Unclear
            if not (is_plain or join.side == "LEFT" or join.kind in ("SEMI", "ANTI")):
                raise _Unclear
            right = {} if found is None else {join.this.alias_or_name.lower(): found}
            if not sources and (using or not is_plain):
                raise _Unclear
            if sources and right:
                conditions = [join.args.get("on"), where and where.this if is_plain else None]
                pairs = [pair for each in conditions for pair in _equalities(each)]
                if not (
                    any(using & {*each} for each in right.values())
                    and any(using & {*each} for each in sources.values())
                ) and not any(
                    _is_one(one, sources) and _is_one(other, right)
                    for pair in pairs
                    for one, other in (pair, pair[::-1])
                ):
                    raise _Unclear
            if is_plain:  # else its columns may be null, or are not there
                sources |= right
        return sources

    def _check_groups(self, node: exp.Select, sources: "_Sources") -> None:
        group = node.args.get("group")
        if group is None:
            calls = [
                each.name.lower()
                for part in parts_of(node.args.get("expressions"))
                for each in _own(part, exp.Anonymous, exp.Window)
                if isinstance(each, exp.Anonymous)
            ]
            if node.args.get("having") or not AGGREGATES.isdisjoint(calls):
                raise _Unclear
            return
        if any(group.args.get(key) for key in ("grouping_sets", "cube", "rollup", "all")):
            raise _Unclear
        named = {each.alias.lower(): each.this for each in node.expressions if each.alias}
        for key in group.expressions:
            if isinstance(key, exp.Literal) and key.name.isdigit():
                places = node.expressions[int(key.name) - 1 : int(key.name)]
                meant = places[0].unalias() if places else key
            else:
                meant = key if _is_one(key, sources) else named.get(_plain_name(key) or "", key)
            if _is_one(meant, sources):
                return
        raise _Unclear


_Sources = dict[str, _Columns]


def _projected(node: exp.Select, sources: _Sources) -> dict[str, int | None]:
    """Return the columns of the result that have the value of the partition."""
    found: dict[str, int | None] = {}
    others: set[str] = set()
    place: int | None = 0
    for item in node.expressions:
        star = item if isinstance(item, exp.Star) else item.this
        if isinstance(item, (exp.Star, exp.Column)) and isinstance(star, exp.Star):
            left_out = {each.name.lower() for each in star.args.get("except_") or ()}
            of = item.text("table").lower() if isinstance(item, exp.Column) else None
            place = None
            for name, columns in sources.items():
                if of in (None, name):
                    found |= dict.fromkeys(columns.keys() - left_out)
            continue
        calls = {each.name.lower() for each in _own(item, exp.Anonymous)}
        if isinstance(item, exp.Aliases) or not GENERATORS.isdisjoint(calls):
            place = None  # it may be several columns
        if _is_one(item.unalias(), sources):
            found[item.alias_or_name.lower()] = place
        else:
            others.add(item.alias_or_name.lower())
        place = None if place is None else place + 1
    return {name: where for name, where in found.items() if name not in others}


def _required(columns: _Columns) -> _Columns:
    if not columns:
        raise _Unclear
    return columns


def _is_one(node: exp.Expr, sources: _Sources) -> bool:
    """Whether an expression is a column that has the value of the partition."""
    if isinstance(node, exp.Paren):
        return _is_one(node.this, sources)
    if not isinstance(node, exp.Column) or len(node.parts) > 2:  # noqa: PLR2004 - a table, a name
        return False
    table, name = node.text("table").lower(), node.name.lower()
    of = sources.values() if not table else [sources.get(table, {})]
    return any(name in columns for columns in of)


def _plain_name(node: exp.Expr) -> str | None:
    return node.name.lower() if isinstance(node, exp.Column) and len(node.parts) == 1 else None


def _renames(node: exp.Expr) -> bool:
    """Whether a relation's columns are given other names behind its own."""
    alias = node.args.get("alias")
    return isinstance(alias, exp.TableAlias) and bool(alias.columns)


def _equalities(node: exp.Expr | None) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    """Yield the equalities that hold wherever the condition does."""
    if isinstance(node, exp.Paren):
        yield from _equalities(node.this)
    elif isinstance(node, exp.And):
        for part in node.flatten():
            if part is not node:
                yield from _equalities(part)
    elif isinstance(node, (exp.EQ, exp.NullSafeEQ)):
        yield node.this, node.expression


def _own(part: Any, *kinds: type[exp.Expr]) -> Iterator[exp.Expr]:
    """Yield the nodes of these kinds, but not those of queries inside, nor inside of windows."""
    for node in parts_of(part):
        for each in node.walk(prune=lambda each: isinstance(each, (exp.Query, exp.Window))):
            if isinstance(each, kinds):
                yield each
