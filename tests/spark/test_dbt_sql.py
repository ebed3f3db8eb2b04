"""What is translated of DuckDB's SQL gives on Spark what it gives there, over odd rows."""

# ruff: noqa: S608 - queries are texts of this file alone

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pytest
import sqlglot
from sqlglot import exp

from rebaser_client.dbt_sql import _RULES, Translation
from rebaser_server.compute.functions.sql import judge
from rebaser_server.compute.spark.spark_executor import SparkExecutor

pytestmark = pytest.mark.spark

ROWS = """SELECT * FROM (VALUES
    (1, 10, 3000000000, 10.50::DECIMAL(10,2), 0.125::DOUBLE, 'abc', true, DATE '2024-01-31',
        TIMESTAMP '2024-01-31 10:20:30.5', '12'),
    (2, -7, -9007199254740993, -99.99, -2.5, 'Straße ΟΔΟΣ İx', false, DATE '0001-01-01',
        TIMESTAMP '1969-12-31 23:59:59.999999', ' -5 '),
    (3, 0, 0, 0, 0.0, '', true, DATE '9999-12-31', TIMESTAMP '9999-12-31 23:59:59', '0'),
    (4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (5, 2147483, 1, 9999.99, 'nan', e'\u00a0é日本🐢 x \u3000', NULL, DATE '1900-02-28',
        TIMESTAMP '0001-01-01 00:00:00', '3'),
    (6, -2147483, 2, 0.01, 1e15, e'\\t a\\\\_b', true, DATE '2020-02-29',
        TIMESTAMP '2020-02-29 12:00:00', '+7'),
    (7, 3, 3, 2.67, 2.675, '10', false, DATE '1582-10-10', TIMESTAMP '1582-10-10 01:02:03', '8'),
    (8, 3, 4, 1.5, -0.0, 'ABC', false, DATE '1970-01-01', TIMESTAMP '1970-01-01 00:00:00', '9'),
    (9, 5, 5, -0.5, 3.5, 'a_b%', false, DATE '2024-12-30', TIMESTAMP '2024-12-30 00:00:00', '2'),
    (10, 5, 6, 2.5, 'infinity', 'a-b-c', true, DATE '2024-02-29', TIMESTAMP '2024-02-29 00:00:00',
        '1')
) t(id, i, big, d, f, s, b, day, ts, digits)"""

EXPRESSIONS = """
1 | 123456789012 | 1.50 | .5 | 1e3 | 'it''s \\ ${x}' | true | -i | -d | -f | +i | abs(i) | abs(d) | abs(f)
i + 1 | i - id | i * 3 | big + i | d + i | d - 1.5 | d * 1.19 | d * d | i * 1.19 | f + d | f * 1.19 | big * d
i / 2 | big / 1 | i / 2.0 | d / 2 | 1 / (d + 1000) | f / 3 | i // 2 | -7 // id | i % 3 | i % -2
sum(i) over () / 3 | sum(d) over () * 1.5 | avg(d) over (partition by b) | avg(i) over () | avg(f) over (partition by b order by id)
round(d) | round(d, 1) | round(d, 5) | round(i) | round(i, 1) | round(f) | round(d / 3)
i = 3 | i <> 3 | i < 2.5 | d > 0.01 | d <= i | f > d | f >= 'nan'::double | f = f | big > f | s = 'abc' | s < 'abc' | s > 'Z' | s >= 'é'
day = '2024-01-31' | day > date '2000-01-01' | ts >= day | ts < '2020-02-29 12:00:01' | b = true | b < true
i is not distinct from null | i is distinct from 3 | f is not distinct from 'nan'::double | i is null | f is not null | b is true | b is not false
b and i > 0 | b or i > 0 | not b | null and b | i > 0 and null
i between 0 and 5 | s between 'a' and 'b' | i not between 0.5 and 4 | day between '2000-01-01' and '2024-01-31'
i in (3, 5) | i not in (3, null) | s in ('abc', '10') | d in (1.5, 2)
exists (select 1 from t as u where u.i = t.i and u.id <> t.id) | (select max(u.d) from t as u where u.b = t.b)
s like 'a%' | s like '_b%' | s like '%é%' | s not like '%x%' | s ilike 'A%' | s ilike '%ix' | s ilike '%o%'
case when i > 0 then 'x' when b then 'y' end | case i when 3 then 1 else 2.5 end | case when b then d else 0 end | case when b then f else i end | case s when 'abc' then null else day end
if(i > 0, 1, 2.5) | coalesce(i, 0) | coalesce(d, 0.125) | coalesce(f, d, i) | coalesce(s, 'x') | coalesce(day, ts) | ifnull(b, false) | nullif(i, 3) | nullif(s, '') | nullif(d, 0)
greatest(i, 3) | greatest(i, d) | greatest(f, 1.5) | least(f, 0) | greatest(s, 'b') | least(day, date '2000-01-01')
s || 'x' | s || i | i || '' | s || null | concat(s, '-', s) | concat(s, null) | lower(s) | upper(s) | length(s) | md5(s) | length(trim(s))
trim(s) | ltrim(s) | rtrim(s) | substr(s, 2, 3) | substring(s, 3) | substring(s from 2 for 1) | left(s, 2) | right(s, 3)
replace(s, 'a', '') | replace(s, 'b', 'é\\') | split_part(s, '-', 2) | split_part(s, '-', 9) | lpad(s, 5, 'xy') | rpad(s, 2, 'é') | starts_with(s, 'a') | contains(s, 'b')
year(day) | quarter(ts) | month(ts) | day(day) | extract(year from ts) | extract('week' from day) | extract(quarter from day) | last_day(day) | last_day(ts)
date_trunc('year', day) | date_trunc('quarter', day) | date_trunc('month', ts) | date_trunc('week', day) | date_trunc('day', ts) | cast(date_trunc('month', day) as date)
date_diff('day', day, date '2000-01-01') | datediff('day', date '1970-01-01', ts::date)
(i % 1000)::smallint | cast(i % 100 as tinyint) | i::bigint | i::decimal(12, 2) | i::double | i::text | i::boolean | b::int | b::text | d::int | (d / 3)::int | d::decimal(12, 1) | d::decimal(14, 4) | d::double | d::varchar(3)
(case when f < 1e9 then f end)::bigint | (case when f < 1e9 then f end)::decimal(10, 2) | (case when f < 1e9 then f / 4 end)::decimal(10, 0) | (case when f < 1e16 then f / 3 end)::numeric(30, 4) | (f * 0)::double | i::numeric
digits::int | digits::bigint | digits::double | digits::decimal(8, 1) | digits::text | '2024-1-5'::date | day::text | day::timestamp | ts::date | ts::text | timestamp '2024-01-05 10:00:00.25' | null::int | null::date
count(*) over () | count(i) over (partition by b) | sum(i) over (order by i, id) | min(s) over (order by s, id) | max(f) over (order by f, id) | sum(d) over (partition by b order by id rows between 1 preceding and current row) | sum(i) over (partition by b order by i desc)
row_number() over (order by f, id) | row_number() over (order by s desc, id) | rank() over (partition by b order by i) | dense_rank() over (order by d desc) | lag(i) over (order by id) | lag(d, 2, 0) over (order by id) | lead(s, 1, 'x') over (order by id) | first_value(i) over (order by i, id) | last_value(d) over (order by id)
"""  # noqa: E501
"""Expressions over the rows, of each kind that the table names."""

QUERIES = """
select count(*) as c, count(i) as n, count(distinct f) as u, sum(i) as a, sum(d) as e, sum(distinct i) as g, sum(1.5) as h from t
select min(i) as a, max(d) as b, min(s) as c, max(s) as e, min(f) as g, max(f) as h, max(day) as j, min(ts) as k, max(b) as l from t
select avg(i) as a, avg(d) as b, avg(distinct i) as c from t where id < 4
select bool_or(b) as a, bool_and(b) as c, count_if(b) as e, count(*) filter (where b) as g, sum(d) filter (where i > 0) as h from t
select sum(i) * 1.5 as a, sum(i) / 2 as b, sum(i) > 0.5 as c, coalesce(sum(d), 0) as e, sum(d) - sum(i) as g from t group by b
select i % 2 as i, count(*) as c from t group by i
select b as x, count(*) as c from t group by x having c > 1 order by x
select i % 2 as k, b, sum(big) as s from t where id > 2 group by all
select 2 * i as k, count(*) as c from t group by 1 order by 1 desc limit 3
select f, count(*) as c from (select case id when 3 then 0e0 when 8 then -0e0 else f end as f from t) as x group by f
select distinct b, i > 0 as p from t
select id from t where i in (select id from t) and id > 0
select id from t where i not in (select i from t where id in (1, 2))
select id from t where i not in (select i from t where id < 5) and id > 0
select id, i from t order by i, id limit 4 offset 1
select id, s from t order by s desc, id limit 4
select id, d from t order by d nulls first, id limit 3
select a.id, u.d as other from t as a left join t as u on a.i = u.i and a.id < u.id
select * from (select id, i from t) as a full join (select id + 1 as id, d from t) as u using (id)
select a.*, u.d as e from t as a right join (select id * 2 as id, d from t) as u on a.id = u.id
select a.id, u.x from t as a cross join (select 1 as x union all select 2) as u
select id from t as a semi join (select i from t) as u on a.id = u.i
select id from t as a anti join (select i from t) as u on a.id = u.i
select i from t union select d from t
select i from t union all select 2.5 union all select null
select i from t except select i from t where id < 5
select i from t intersect all select id from t
with a as (select *, d * 2 as dd from t), z as (select id, dd / 3 as e, round(dd, 1) as r from a) select z.*, a.s from z join a on z.id = a.id where a.s <> ''
with a as (select i as x from t union all select d from t) select x / 2 as h, x::int as w from a
select v.n / 2 as h, v.amount::int as w, v.x from (values (1, 10.50, 'a'), (2, 99.99, null), (3, 7, '')) as v(n, amount, x)
select * exclude (s, f) from t
from t select id, i where b
select d as a, a / 2 as h, i + 1 as j, j * 2 as k from t
select i::text as d, d / 2 as e from t
select id, b from t qualify row_number() over (partition by b order by id desc) = 1
select * from t qualify row_number() over (partition by i order by id) = 1
select "ID" as "Größe", T.i as "select" from T
"""  # noqa: E501
"""Queries over the rows."""

REFUSED = """
cast(s as timestamp) | regexp_replace(s, 'a', 'b') | log(f) | extract(dow from day) | dayname(day) | date_diff('month', day, day)
array_agg(s order by s) | left(s, 0) | left(s, -1) | right(s, 0) | format('{}', i) | ts::time | s like 'a\\_b' | s like s | ts at time zone 'UTC'
substr(s, 0) | substr(s, -1) | round(f, 2) | d + s | s + 1 | i = s | i = '10' | coalesce(i, 'x') | case when b then 1 else 'x' end
day - date '2000-01-01' | day + interval 1 month | ts - interval 1 day | try_cast(s as int) | f::text | extract(second from ts) | to_days(i)
string_agg(s, ',') | any_value(i) | median(f) | count(distinct (i, d)) | concat(i, 'x') | s[1] | [i] | {'a': i} | current_date | now()
strftime(day, '%Y') | date_trunc('decade', day) | d * d * d * d | i::hugeint | i::float | not i | i and b | sum(b) | s is true | date_part('year', day)
replace(s, s, 'x') | split_part(s, '', 1) | split_part(s, '-', -1) | s similar to 'a' | s ~ 'a' | s collate nocase | columns('i') | lower(i) | s ilike 'é%' | (i, id) in ((1, 2))
sum(i) over (order by id range between 1 preceding and current row) | lag(i ignore nulls) over (order by id) | 12345678901234567890123456789012345678.12 | f::decimal(38, 20) | least(s, i)
first(i) | list(i) | printf('%d', i) | power(i, 2) | floor(f) | ceil(d) | i ^ 2 | i & 1 | i << 2 | nextval('x') | random() | uuid() | getenv('HOME')
"""  # noqa: E501

REFUSED_QUERIES = """
select distinct on (b) id from t
select i in (select id from t) as x from t
select id from t where not (b or i in (select id from t))
select id from t order by all
select -i as i from t order by i + 1
select max(d) as d from t having d > 1
select count(*) from t
select * from t asof join t as u on t.id >= u.id
select * from t positional join t as u
select x from other union all select i from t
select sum(i) over (order by id range unbounded preceding) as x from t
select * from range(3)
select * from read_csv('x.csv')
select * from t using sample 3
select i as x from t union all select s from t
select i as x from t union all by name select id as x from t
with recursive a as (select 1 as x union all select x + 1 from a where x < 3) select x from a
select * from t pivot (sum(i) for b in (true))
select * replace (1 as i) from t
select unnest([1, 2]) as x
select sum(i) as s from t group by rollup (b)
select id from t limit 10%
"""


@pytest.fixture(scope="module")
def engines(executor: SparkExecutor, tmp_path_factory: Any) -> Iterator[Any]:
    """DuckDB and Spark, each with the rows."""
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    database.execute(f"CREATE TABLE t AS {ROWS}")
    file = tmp_path_factory.mktemp("rows") / "t.parquet"
    database.execute(f"COPY t TO '{file}' (FORMAT parquet)")
    with executor._session.job("sql", "translated SQL") as spark:
        session = spark.newSession()
        for name, value in {"timeZone": "UTC"}.items():
            session.conf.set(f"spark.sql.session.{name}", value)
        session.conf.set("spark.sql.shuffle.partitions", "1")
        session.conf.set("spark.sql.ansi.enabled", "true")
        session.read.parquet(str(file)).createOrReplaceTempView("t")
        yield database, session


def translated(code: str) -> Translation:
    """The translation of a query over the rows."""
    kinds = {
        "id": "int", "i": "int", "big": "bigint", "d": "decimal(10,2)", "f": "double", "s": "text",
        "b": "boolean", "day": "date", "ts": "timestamp", "digits": "text",
    }  # fmt: skip
    columns = {name: exp.DataType.build(kind, dialect="duckdb") for name, kind in kinds.items()}
    tree = sqlglot.parse_one(code, dialect="duckdb")
    assert isinstance(tree, exp.Query)
    return Translation(tree, {"t": columns}, named=True)


def listed(text: str) -> list[str]:
    """Expressions of a text."""
    return [each.strip() for row in text.strip().split("\n") for each in row.split(" | ")]


def family(kind: str) -> str:
    """Kind of a column, by the name of its type in either engine."""
    for name, words in {
        "integer": ("int", "hugeint"), "decimal": ("decimal",),
        "text": ("varchar", "string", "text"),
        "timestamp": ("timestamp",), "null": ("null", "void", "unknown"),
    }.items():  # fmt: skip
        if any(word in kind.lower() for word in words):
            scale = kind.split(",")[1] if name == "decimal" else ""
            return name + scale.replace(" ", "").replace(")", "")
    return kind.lower()


def cell(value: Any) -> Any:
    """A value that is equal for both engines: floats but for their last two bits."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else f"{value + 0.0:.14g}"
    return str(value) if isinstance(value, Decimal) else repr(value)


def compare(engines: Any, code: str) -> list[str]:
    """Differences of the answers of both engines, and of the types that were foreseen."""
    database, session = engines
    done = translated(code)
    if done.mistakes:
        return [f"refused: {done.mistakes}"]
    text = judge(done.text(), ["t"]).text
    cursor = database.execute(code)
    names = [each[0] for each in cursor.description]
    there = [family(str(each[1])) for each in cursor.description]
    expected = sorted(repr([*map(cell, row)]) for row in cursor.fetchall())
    frame = session.sql(text)
    found = sorted(repr([*map(cell, row)]) for row in frame.collect())
    here = [family(each.dataType.simpleString()) for each in frame.schema]
    foreseen = [family(each.sql(dialect="duckdb")) for each in done.columns.values()]
    said = []
    if frame.columns != names:
        said.append(f"names {frame.columns} are not {names}")
    for name, one, two, three in zip(names, there, here, foreseen, strict=True):
        if len({one, two, three} - {"null"}) > 1:
            said.append(f"{name}: {one} is {two} on Spark, and {three} was foreseen")
    if found != expected:
        rows = [pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]]
        said.append(f"{rows[:2]} of {len(expected)} and {len(found)}: {text}")
    return said


def test_each_expression_gives_what_it_gives_in_duckdb(engines: Any) -> None:
    """All at once, and one at a time to name those that do not."""
    expressions = listed(EXPRESSIONS)
    differ = []
    for start in range(0, len(expressions), 25):
        part = expressions[start : start + 25]
        codes = [f"SELECT id, {each} AS c{n} FROM t" for n, each in enumerate(part)]
        whole = ", ".join(f"{each} AS c{n}" for n, each in enumerate(part))
        try:
            if not compare(engines, f"SELECT id, {whole} FROM t"):
                continue
        except Exception:  # noqa: BLE001, S110 - each is tried below
            pass
        for code in codes:
            try:
                differ += [(code, each) for each in compare(engines, code)]
            except Exception as error:  # noqa: BLE001 - and named
                differ.append((code, f"fails: {error!r:.300}"))

    assert differ == []


def test_each_query_gives_what_it_gives_in_duckdb(engines: Any) -> None:
    differ = []
    for code in QUERIES.strip().split("\n"):
        try:
            differ += [(code, each) for each in compare(engines, code)]
        except Exception as error:  # noqa: BLE001 - and named
            differ.append((code, f"fails: {error!r:.300}"))

    assert differ == []


def test_what_was_not_compared_is_refused() -> None:
    codes = [f"SELECT {each} AS x FROM t" for each in listed(REFUSED)]

    taken = [
        code
        for code in (*codes, *REFUSED_QUERIES.strip().split("\n"))
        if not translated(code).mistakes
    ]

    assert taken == []


def test_each_kind_of_node_of_the_table_is_compared() -> None:
    """So that no row of it is without a comparison."""
    seen: set[type[Any]] = set()
    for code in (
        *(f"SELECT {each} AS x FROM t" for each in listed(EXPRESSIONS)),
        *QUERIES.strip().split("\n"),
    ):
        seen |= {type(node) for node in sqlglot.parse_one(code, dialect="duckdb").walk()}

    assert {kind.__name__ for kind in _RULES.keys() - seen} == set()
