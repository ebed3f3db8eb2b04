# ruff: noqa: S608 - never run but by a judge
"""Statements drawn from pieces of good and of hostile ones, by a seed."""

from random import Random
from typing import Final

HOSTILE_RELATIONS: Final = (
    "text.`{canary}`",
    "csv.`{canary}`",
    "`binaryFile`.`{canary}`",
    "secret",
    "default.things",
    "global_temp.secret",
    "identifier('text.`{canary}`')",
    "system.session.secret",
    "things version as of 1",
    "things tablesample (5 rows)",
    "stream(things)",
    "read_files('{canary}')",
    "table(secret)",
    "unnest(array(1))",
)
HOSTILE_EXPRESSIONS: Final = (
    "reflect('java.lang.System', 'getProperty', 'user.name')",
    "`java_method`('java.lang.System', 'exit', 1)",
    "system.builtin.reflect('a', 'b')",
    "try_reflect('java.lang.System', 'getenv', 'PATH')",
    "${{env:HOME}}",
    "`${{env:HOME}}`",
    "rand()",
    "uuid()",
    "current_user",
    "`user`",
    "current_date()",
    "input_file_name()",
    "_metadata.file_path",
    "transform(id) using 'cat'",
    "unknown_function(id)",
    "identifier('id')",
    "version()",
    "/*+ broadcast(things) */ id",
    "?",
    "@@x",
    "'now'",
    "repeat('x', 1000000000)",
    "array_repeat(id, 100000000)",
    "sequence(0, 100000000)",
    "from_avro(note, '{canary}')",
    "xpath('<a/>', 'document(\"{canary}\")')",
    "(select max(value) from text.`{canary}`)",
    "x -> reflect(x)",
    "{{things}}",
)
HOSTILE_ENDS: Final = (
    "; drop table things",
    "; insert overwrite directory '{directory}' using csv select 1",
    " into secret",
    " distribute by reflect('a', 'b')",
    " limit reflect('a', 'b')",
    " for update",
    " tablesample (1 percent)",
    " lateral view reflect('a', 'b') r as x",
    " window w as (partition by rand())",
)
HOSTILE_BEGINNINGS: Final = (
    "create table drawn using csv location '{directory}' as ",
    "insert overwrite local directory '{directory}' using csv ",
    "cache table drawn as ",
    "explain ",
    "create or replace temporary view things as ",
    "with things as (select * from text.`{canary}`) ",
    "with recursive r(n) as (select 1 union all select n + 1 from r) ",
    "execute immediate ",
)
_COLUMNS: Final = (
    "id",
    "kind",
    "price",
    "note",
    "day",
    "a.id",
    "`id`",
    "ID",
    "words[0]",
    "place.city",
)
_LITERALS: Final = (
    "1",
    "'x'",
    "2.5",
    "null",
    "true",
    "date '2024-02-29'",
    "1e2",
    "'it\\'s'",
    ":rate",
)
_BINARY: Final = (
    "+",
    "-",
    "*",
    "/",
    "%",
    "||",
    "&",
    "=",
    "<>",
    "<",
    "<=>",
    "and",
    "or",
    "like",
    "is not distinct from",
)
_CALLS: Final = (
    ("upper", 1), ("coalesce", 2), ("abs", 1), ("if", 3), ("concat", 2), ("length", 1),
    ("greatest", 2), ("nvl", 2), ("substring", 3), ("array", 2), ("size", 1), ("to_json", 1),
    ("struct", 2), ("date_add", 2), ("hash", 2), ("regexp_replace", 3), ("map", 2),
)  # fmt: skip
_AGGREGATES: Final = ("sum", "max", "count", "collect_list", "first")


class DrawnSql:
    """A grammar that is drawn from. `spice`: how likely each piece is a hostile one."""

    def __init__(self, seed: int, spice: float, canary: str = "/canary", directory: str = "/out"):
        self._random = Random(seed)
        self._spice = spice
        self._names = {"canary": canary, "directory": directory}

    def statement(self) -> str:
        text = self._query(2)
        if self._hostile():
            text = self._filled(self._random.choice(HOSTILE_BEGINNINGS)) + text
        if self._hostile():
            text += self._filled(self._random.choice(HOSTILE_ENDS))
        if self._random.random() < self._spice / 4:  # neither good nor hostile: noise
            at = self._random.randrange(len(text))
            text = text[:at] + self._random.choice("`'\"();,.:-/*\\$\x00é<") + text[at:]
        return text

    def _hostile(self) -> bool:
        return self._random.random() < self._spice

    def _filled(self, text: str) -> str:
        return text.format(**self._names)

    def _query(self, depth: int) -> str:
        draw = self._random.random()
        if depth > 1 and draw < 0.15:
            return f"with c as ({self._query(depth - 1)}) {self._select(depth - 1, 'c')}"
        if depth > 1 and draw < 0.3:
            how = self._random.choice(("union all", "union", "except", "intersect"))
            return f"{self._query(depth - 1)} {how} {self._query(depth - 1)}"
        if draw < 0.35:
            return f"values ({self._expression(1)}, 2), (3, 4)"
        return self._select(depth)

    def _select(self, depth: int, relation: str | None = None) -> str:
        pick = self._random.choice
        source = f"{relation or self._relation(depth)} {pick(('a', 'as a'))}"
        if self._random.random() < 0.3:
            kind = pick(("join", "left join", "left semi join", ",", "cross join"))
            other = f"{self._relation(depth)} b"
            on = pick(
                ("a.id = b.id", "a.id = b.id and " + self._expression(1), "true", "a.id < b.id")
            )
            source += f", {other} where {on}" if kind == "," else f" {kind} {other} on {on}"
        elif self._random.random() < 0.2:
            source += pick(
                (" lateral view explode(words) e as w", ", lateral explode(a.words) as f(w)")
            )
        columns = ", ".join(
            f"{self._expression(depth)} as c{number}"
            for number in range(self._random.randint(1, 3))
        )
        text = f"select {pick(('', 'distinct ', ''))}{columns} from {source}"
        if "where" not in source and self._random.random() < 0.4:
            text += f" where {self._expression(depth)}"
        if self._random.random() < 0.2:
            text += f" group by {self._expression(1)}"
        if self._random.random() < 0.2:
            text += f" order by {self._expression(1)} desc limit 5"
        return text

    def _relation(self, depth: int) -> str:
        if self._hostile():
            return self._filled(self._random.choice(HOSTILE_RELATIONS))
        if depth > 1 and self._random.random() < 0.3:
            return f"({self._query(depth - 1)})"
        return self._random.choice(("things", "nation", "Things", "`things`", "range(3)"))

    def _expression(self, depth: int) -> str:  # noqa: PLR0911 - a choice of ten
        if self._hostile():
            return self._filled(self._random.choice(HOSTILE_EXPRESSIONS))
        draw, pick = self._random.random(), self._random.choice
        if depth <= 0 or draw < 0.35:
            return pick((*_COLUMNS, *_LITERALS))
        one, two = (self._expression(depth - 1) for _ in range(2))
        if draw < 0.5:
            return f"({one} {pick(_BINARY)} {two})"
        if draw < 0.65:
            name, arguments = pick(_CALLS)
            return f"{name}({', '.join(self._expression(depth - 1) for _ in range(arguments))})"
        if draw < 0.72:
            return f"case when {one} then {two} else null end"
        if draw < 0.79:
            return f"cast({one} as {pick(('int', 'string', 'decimal(10, 2)', 'array<int>'))})"
        if draw < 0.85:
            over = pick(("", " over (partition by kind order by id)", " filter (where id > 1)"))
            return f"{pick(_AGGREGATES)}({one}){over}"
        if draw < 0.9:
            return f"transform(words, x -> {pick(('x', 'concat(x, kind)', one))})"
        if draw < 0.95:
            return f"({self._query(depth - 1)})"
        return f"{one} in ({self._query(depth - 1)})"
