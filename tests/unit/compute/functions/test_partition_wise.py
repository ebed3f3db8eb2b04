"""Which queries go by the partitions of a table, and that they do."""

import os
import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rebaser_server.compute.functions.partition_wise import is_partition_wise
from rebaser_server.compute.functions.sql import judge
from tests.helpers.drawn_tables import Drawn, DuckDb, Queries, Rows, Wrong, draw_upload

EXAMPLES = float(os.environ.get("EXAMPLES", "1"))

WISE = [
    "SELECT * FROM t",
    "SELECT t.*, price * 2 AS twice FROM t WHERE price > 1 ORDER BY price",
    "SELECT a.*, f.rate FROM t AS a LEFT JOIN f ON a.sku = f.sku",
    "SELECT day FROM f JOIN t ON f.sku = t.sku",
    "SELECT t.day FROM t, f WHERE t.sku = f.sku AND EXISTS (SELECT 1 FROM f AS g WHERE g.a = t.a)",
    "SELECT day FROM t LEFT SEMI JOIN f USING (sku)",
    "SELECT DISTINCT day, sku FROM t",
    "SELECT day, sum(price) AS total FROM t GROUP BY day HAVING count(*) > 1",
    "SELECT t.DAY, sku, count(DISTINCT price) AS n FROM t GROUP BY sku, Day",
    "SELECT sku, (day) AS day, max(price) AS m FROM t GROUP BY 2, 1",
    "SELECT *, row_number() OVER (PARTITION BY sku, day ORDER BY price) AS n FROM t QUALIFY n = 1",
    "SELECT day, sum(count(*)) OVER (PARTITION BY day) AS n FROM t GROUP BY day, sku",
    "SELECT day, explode(tags) AS tag FROM t",
    "SELECT day, tag FROM t LATERAL VIEW explode(tags) AS tag",
    "WITH m AS (SELECT day AS d, price FROM t) SELECT d AS day, max(price) AS p FROM m GROUP BY d",
    "WITH f2 AS (SELECT * FROM f LIMIT 5) SELECT day FROM t JOIN f2 ON t.sku = f2.sku",
    "SELECT day, price FROM t UNION ALL SELECT day, 0 FROM t WHERE price < 0",
    "SELECT sku, day FROM t EXCEPT SELECT sku, day FROM t WHERE price < 0",
    "SELECT a.day, b.price FROM t AS a JOIN t AS b ON a.day = b.day AND a.sku < b.sku",
    "SELECT a.day FROM t AS a, t AS b WHERE b.day = a.day",
    "SELECT a.* FROM t AS a LEFT ANTI JOIN t AS b ON a.day <=> b.day AND a.id < b.id",
    "SELECT day, id FROM t LEFT JOIN (SELECT day, max(id) AS i FROM t GROUP BY day) USING (day)",
    "SELECT m.day FROM (SELECT * EXCEPT (price) FROM t) AS m",
]
OTHERS = [
    "SELECT sum(price) AS day FROM t",
    "SELECT upper(day) AS day FROM t",
    "SELECT day AS d, sku AS day FROM t",
    "SELECT * EXCEPT (day) FROM t",
    "SELECT day FROM t LIMIT 5",
    "SELECT day FROM (SELECT * FROM t ORDER BY price LIMIT 5) AS m",
    "SELECT max(day) AS day FROM t GROUP BY sku",
    "SELECT day, sku FROM t GROUP BY GROUPING SETS ((day), (sku))",
    "SELECT day, sku, count(*) AS n FROM t GROUP BY CUBE (day, sku)",
    "SELECT day, count(*) AS n FROM t GROUP BY ALL",
    "SELECT day, rank() OVER (ORDER BY price) AS n FROM t",
    "SELECT day, rank() OVER w AS n FROM t WINDOW w AS (PARTITION BY day ORDER BY price)",
    "SELECT day FROM t QUALIFY row_number() OVER (PARTITION BY sku ORDER BY day) = 1",
    "SELECT day FROM t WHERE price = (SELECT max(price) FROM t)",
    "SELECT day FROM t WHERE sku IN (SELECT sku FROM t)",
    "SELECT f.day FROM t JOIN f ON t.day = f.day",
    "SELECT day FROM f LEFT JOIN t USING (day)",
    "SELECT day FROM f JOIN t USING (day)",
    "SELECT t.day FROM t FULL JOIN f ON t.sku = f.sku",
    "SELECT t.day FROM t RIGHT JOIN f ON t.sku = f.sku",
    "SELECT t.day FROM t NATURAL JOIN f",
    "SELECT a.day FROM t AS a JOIN t AS b ON a.sku = b.sku",
    "SELECT a.day FROM t AS a LEFT JOIN t AS b ON a.sku = b.sku WHERE a.day = b.day",
    "SELECT b.day FROM t AS a LEFT JOIN t AS b ON a.day = b.day",
    "SELECT a.day FROM t AS a JOIN t AS b ON a.day = b.day OR a.sku = b.sku",
    "SELECT f.sku, f.day FROM f LEFT ANTI JOIN t ON f.sku = t.sku",
    "SELECT day FROM t UNION ALL SELECT day FROM f",
    "SELECT day, sku FROM t UNION ALL SELECT sku, day FROM t",
    "WITH m AS (SELECT max(price) AS p FROM t) SELECT t.day FROM t JOIN m ON t.price = m.p",
    "WITH m AS (SELECT * FROM t) SELECT day FROM f",
    "SELECT day FROM f",
    "SELECT m.day FROM t AS m(sku, day)",
    "SELECT (SELECT max(day) FROM t) AS day",
    "SELECT day, sku AS day FROM t",
    "SELECT explode(m), day FROM t UNION ALL SELECT sku, day, sku AS s FROM t",
    "WITH m AS (SELECT max(day) AS day FROM t GROUP BY sku) SELECT day FROM m",
]


@pytest.mark.parametrize("code", WISE)
def test_queries_that_go_by_partitions(code: str) -> None:
    """Filters, joins with other tables, groups and windows within a partition."""
    text = judge(code, {"t", "f"}).text

    assert is_partition_wise(text, "t", "Day", "day")


@pytest.mark.parametrize("code", OTHERS)
def test_queries_that_take_partitions_together(code: str) -> None:
    """And such as hand on another column, or may."""
    text = judge(code, {"t", "f"}, small=("t",)).text

    assert not is_partition_wise(text, "t", "day", "day")


def test_the_column_may_have_another_name_in_the_result() -> None:
    text = judge("SELECT day AS d, count(*) AS n FROM t GROUP BY d").text

    assert is_partition_wise(text, "t", "day", "D")
    assert not is_partition_wise(text, "t", "day", "day")


def test_a_query_that_nests_deeply_is_read_or_not() -> None:
    chain = " UNION ALL ".join(["SELECT day FROM t"] * 400)

    assert is_partition_wise(judge(chain).text, "t", "day", "day") in (True, False)


def test_drawn_queries_make_of_partitions_what_they_make_of_the_whole() -> None:
    """DuckDB says so, of each query that is said to go by partitions."""
    wise, duckdb = 0, DuckDb()
    for seed in range(round(60 * EXAMPLES)):
        chance = random.Random(seed)
        rows = draw_upload(chance).rows
        others = draw_upload(chance).rows
        given = {"u": others, "p": chance.choice([0, 1, 2]), "q": "a", "w": ["a", "b"]}
        names = tuple(name for name, _ in rows.kinds)
        query = Queries(chance).draw(names, tuple(name for name, _ in others.kinds))
        text = judge(query.code, {*query.takes, *query.parameters}, small=("u",)).text
        for column in {"grp", "tag", "day", "flag"} & {*names} & {*(query.gives or ())}:
            if is_partition_wise(text, "t", column, column):
                wise += _is_checked(duckdb, query, column, rows, given)
    assert wise > 10 * EXAMPLES, wise


def _is_checked(
    duckdb: DuckDb, query: Drawn, column: str, rows: Rows, given: dict[str, object]
) -> bool:
    """Compare the results; return whether there are any."""
    parts, table = [], rows.table
    try:
        whole = duckdb.call(query, {**given, "t": rows})
        for value in pc.unique(table.column(column)):
            cells = table.column(column)
            kept = cells.is_null() if not value.is_valid else pc.equal(cells, value)
            part = Rows(table.filter(kept), rows.kinds)
            parts.append(duckdb.call(query, {**given, "t": part}))
            found = set(parts[-1].table.column(column).to_pylist())
            assert found <= {value.as_py()}, query.text
    except Wrong:
        return False
    if not parts:
        return False
    together = pa.concat_tables([part.table for part in parts])
    by = whole.partition_by
    assert Rows(together, parts[0].kinds, None, by).digest == whole.digest, query.text
    return len(whole.table) > 0
