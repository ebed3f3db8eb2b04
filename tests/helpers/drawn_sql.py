# ruff: noqa: S608 - never run but by a judge
"""Statements drawn from pieces of good and of hostile ones, by a seed."""

import re
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
_LEAVES: Final = {
    "number": (
        "a.id",
        "a.`id`",
        "a.ID",
        "a.tags[0]",
        "a.place.geo.lat",
        "1",
        "2.5",
        "1e2",
        ":rate",
    ),
    "text": (
        "a.kind",
        "a.note",
        "a.words[1]",
        "a.place.city",
        "'x'",
        "'it\\'s'",
        "'${{x}}'",
        ":word",
    ),
    "truth": ("true", "a.note is null", "a.day > date '2024-02-29'", "a.kind in ('a', 'b')"),
}
_FORMS: Final = {
    "number": (
        "({number} + {number})",
        "({number} * {number})",
        "-({number})",
        "abs({number})",
        "coalesce({number}, {number})",
        "if({truth}, {number}, {number})",
        "case when {truth} then {number} end",
        "length({text})",
        "try_cast({text} as int)",
        "array_max(array({number}, {number}))",
        "hash({text}, {number})",
        "size(transform(a.words, x -> concat(x, {text})))",
        "count(1) over (partition by a.kind)",
        "(select max(a.id) as m from nation n join things a on a.id = n.n_nationkey)",
    ),
    "text": (
        "({text} || {text})",
        "upper({text})",
        "substring({text}, 1, 2)",
        "regexp_replace({text}, 'x+', {text})",
        "to_json(struct({number} as n, {text} as t))",
        "cast({number} as string)",
        "map('k', {text})['k']",
        "nvl({text}, {text})",
    ),
    "truth": (
        "({number} < {number})",
        "({text} = {text})",
        "({truth} and {truth})",
        "(not {truth} or {truth})",
        "({text} like {text})",
        "({number} between {number} and {number})",
        "a.id in (select n_nationkey from nation)",
        "exists (select 1 from nation n where n.n_nationkey = a.id)",
    ),
}
"""Forms of expressions of each kind; the words in braces stand for others."""
_TOTALS: Final = ("sum({number})", "max({text})", "count(distinct {text})", "count_if({truth})")


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

    def _query(self, depth: int, columns: int = 0) -> str:
        draw, columns = self._random.random(), columns or self._random.randint(1, 3)
        if depth > 0 and draw < 0.15:
            return f"with c as ({self._plain()}) {self._select(depth, columns, 'c')}"
        if depth > 0 and draw < 0.3:
            how = self._random.choice(("union all", "union", "except", "intersect"))
            sides = (self._query(depth - 1, columns) for _ in range(2))
            return f" {how} ".join(sides)
        return self._select(depth, columns)

    def _plain(self) -> str:
        return f"select a.* from {self._relation()} a where {self._expression('truth', 1)}"

    def _select(self, depth: int, columns: int, relation: str | None = None) -> str:
        pick, draw = self._random.choice, self._random.random()
        source = relation or (f"({self._plain()})" if draw < 0.2 else self._relation())
        source += pick((" a", " as a"))
        if draw > 0.7:
            kind = pick(("join", "left join", "left semi join", ",", "cross join"))
            source += f"{'' if kind == ',' else ' '}{kind} {self._relation()} b"
            on = pick(("a.id = b.id", "a.id = b.id and a.kind <> 'q'", "true", "a.id < b.id"))
            source += f" where {on}" if kind == "," else f" on {on}"
        elif draw > 0.6:
            source += pick(
                (" lateral view explode(words) e as w", ", lateral explode(a.words) f(w)")
            )
        totals = self._random.random() < 0.2
        listed = ", ".join(self._column(number, depth, totals) for number in range(columns))
        text = f"select {pick(('', '', 'distinct '))}{listed} from {source}"
        if "where" not in source and draw > 0.4:
            text += f" where {self._expression('truth', depth)}"
        return text + (f" group by {self._expression('text', 1)}" if totals else "")

    def _column(self, number: int, depth: int, totals: bool) -> str:
        kind = ("text", "number", "truth")[number]
        expression = self._random.choice(_TOTALS) if totals else f"{{{kind}}}"
        if totals:  # of one kind in each place, so that two queries have the same columns
            expression = f"cast({expression} as {('string', 'double', 'boolean')[number]})"
        return f"{self._with_kinds(expression, depth)} as c{number}"

    def _relation(self) -> str:
        if self._hostile():
            return self._filled(self._random.choice(HOSTILE_RELATIONS))
        return self._random.choice(("things", "Things", "`things`"))

    def _expression(self, kind: str, depth: int) -> str:
        if self._hostile():
            return self._filled(self._random.choice(HOSTILE_EXPRESSIONS))
        if depth <= 0 or self._random.random() < 0.3:
            return self._filled(self._random.choice(_LEAVES[kind]))
        return self._with_kinds(self._random.choice(_FORMS[kind]), depth - 1)

    def _with_kinds(self, form: str, depth: int) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: self._expression(found[1], depth), form)
