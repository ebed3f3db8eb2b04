"""What the judge of SQL lets through, what it refuses, and what it prints."""

import logging
import os
import re

import pytest

from rebaser_server.compute.functions import sql
from rebaser_server.compute.functions.sql import FUNCTIONS, MAX_BYTES, SqlRefused, judge
from tests.helpers.drawn_sql import DrawnSql
from tests.helpers.sql_queries import GOOD, HOSTILE, PARAMETERS, SHOP, TABLES, TPCH

ARGUMENTS = {*TABLES, *PARAMETERS}


def refusal(code: str, arguments: set[str] | None = None, small: tuple[str, ...] = ()) -> str:
    with pytest.raises(SqlRefused) as refused:
        judge(code, arguments, small=small)
    return str(refused.value)


@pytest.mark.parametrize("code", [*GOOD, *TPCH.values(), *SHOP.values()])
def test_queries_that_people_write_are_let_through(code: str) -> None:
    """With and without the names of arguments, and their printed text is let through unchanged."""
    query = judge(code)
    used = query.tables | query.parameters

    assert judge(code, used) == judge(query.text, used) == query


@pytest.mark.parametrize("code", HOSTILE)
def test_hostile_statements_are_refused(code: str) -> None:
    """Raise `SqlRefused`, and no other error, for any mistake in them."""
    assert refusal(code, ARGUMENTS)


def test_tables_and_parameters_are_told_apart() -> None:
    """By the argument's own spelling, as Spark compares names of relations without case."""
    query = judge(
        "select :rate * price from Orders o join `LINES` l on o.id = l.id",
        {"orders", "lines", "rate", "more"},
    )

    assert query.tables == {"orders", "lines"}
    assert query.parameters == {"rate"}


def test_without_arguments_any_plain_name_may_be_one() -> None:
    """When a function is put, its calls are not known."""
    query = judge("select :rate from orders")

    assert (query.tables, query.parameters) == ({"orders"}, {"rate"})


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("select *\nfrom customer", "line 2, column 6: 'customer' is neither an argument nor"),
        ("select 1,\n  rand()", "line 2, column 3: the function rand() is not among those"),
        ("select * from text.`/etc/passwd`", "a relation is an argument's name"),
        ("select :tax", "the parameter ':tax' is no argument: orders, rate"),
        ("select :orders from orders", "'orders' is a table and a parameter"),
        ("with Orders as (select 1) select * from orders", "WITH orders has the name of a table"),
        ("drop table orders", "a function's code is one query (SELECT, VALUES), not DROP"),
        ("select (1", "line 1, column 9: the query cannot be read as Spark's SQL: Expecting )"),
        (
            "select * from orders, orders o",
            "write one (ON a.x = b.x), or declare one of the two small",
        ),
        (
            "select * from explode(array(1))",
            "a relation is an argument, a part of WITH, or range()",
        ),
        (
            "select * from range(0, 9, 1, 8)",
            "a relation is an argument, a part of WITH, or range()",
        ),
        ("select * from range(1000001)", "has more than 1,000,000 rows"),
        ("select system.builtin.concat('a', 'b')", "functions have no qualified names"),
        ("select `upper`('a')", "write the name of a function without quotes"),
        ("with recursive m as (select 1 as n) select n from m", "RECURSIVE is not allowed here"),
        ("select '${'; select 1", "exactly one query"),
        ("", "exactly one query"),
    ],
)
def test_a_refusal_says_what_where_and_what_to_do(code: str, says: str) -> None:
    """For the person who wrote it."""
    assert says in refusal(code, {"orders", "rate"})


def test_arguments_that_are_one_name_to_spark_are_refused() -> None:
    """Else one view would stand for both."""
    assert "'Orders' and 'orders' are one name" in refusal("select 1", {"orders", "Orders"})


def test_a_small_table_may_be_joined_without_a_condition() -> None:
    """Once or twice: what it is multiplied by is bounded."""
    code = "select * from things a, rates b"

    assert judge(code, small=["Rates"]).tables == {"things", "rates"}
    assert "without an equality" in refusal(code)
    assert "times its rows" in refusal(code + ", rates c, rates d, rates e", small=("rates",))


def test_one_row_may_be_joined_without_a_condition() -> None:
    """As an aggregate without GROUP BY has, also by way of WITH."""
    judge("with m as (select max(id) from b) select * from a, m, (select count(*) from b) n")
    assert "without an equality" in refusal("with m as (select id from b) select * from a, m")


def test_parts_of_with_that_double_are_refused() -> None:
    """Spark would plan each as often as it is used."""
    code = "with p0 as (select 1 as x)"
    for number in range(30):
        last = f"from p{number} select x"
        code += f", p{number + 1} as ({last} union all {last})"

    assert "relations" in refusal(f"{code} from p30 select x")


@pytest.mark.parametrize(
    "code",
    [
        f"select {'(' * 5000}1{')' * 5000}",
        f"select {'struct(' * 30}1{')' * 30}",
        f"select {'not ' * 5000}true",
        f"select {'1 + ' * 5000}1",
        f"select cast(1 as {'array<' * 2000}int{'>' * 2000})",
        "select 1 union all " * 3000 + "select 1",
        f"select '{'x' * MAX_BYTES}'",
        f"select '{'é' * (MAX_BYTES // 2)}'",
        ";" * 60_000,
    ],
    ids=lambda code: code[:20],
)
def test_statements_that_are_nested_or_long_are_refused(code: str) -> None:
    """Neither recursion nor the parser's attempts, which double with each bracket, go on."""
    assert refusal(code)


def test_a_limit_behind_a_pipe_is_of_what_is_before_it() -> None:
    """The library fails for a query without a limit."""
    found = judge("from a |> limit 5 |> limit 2 offset 1 |> where x = 1").text

    assert found == (
        "SELECT * FROM (SELECT * FROM (SELECT * FROM (SELECT * FROM (SELECT * FROM `a`) LIMIT 5)) "
        "LIMIT 2 OFFSET 1) WHERE `x` = 1"
    )


def test_comments_do_not_reach_spark() -> None:
    """One might become a hint by being printed elsewhere."""
    query = judge("select /* + broadcast(a) */ id -- x\nfrom /*a*/ a /* :b */ where /**/ id = 1")

    assert query.text == "SELECT `id` FROM `a` WHERE `id` = 1"


@pytest.mark.parametrize(
    "text", ["it's", "a\\", "\\'", "${env:HOME}", "\x00\n\t1", "%\\%_", "é🐢", '"', "\\u0041"]
)
def test_strings_are_printed_so_that_nothing_ends_or_replaces_them(text: str) -> None:
    """Read again, they are the same, and no variable of the environment is put into them."""
    tree = sql.read("select 'x'")
    tree.expressions[0].set("this", text)

    printed = sql._print(tree)

    assert sql.read(printed).expressions[0].this == text
    assert "${" not in printed


def test_a_function_means_what_it_means_to_spark() -> None:
    """No name or argument is replaced by what another program holds for equal."""
    own_syntax = {"any", "overlay", "position", "sequence", "substring", "trim"}
    for name in frozenset().union(*FUNCTIONS.values()) - own_syntax - {*sql._COUNTS}:
        printed = judge(f"select {name}('%s')").text

        assert printed.lower() == f"select {name}('%s')"


def test_nothing_is_printed_or_logged(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The library warns where it takes text for a command, and where it cannot print."""
    caplog.set_level(logging.DEBUG)
    for code in (*HOSTILE, *GOOD):
        sql._judge.cache_clear()
        try:
            judge(code)
        except SqlRefused:
            continue

    assert caplog.text == ""
    assert "".join(capfd.readouterr()) == ""


SYNTAX = re.findall(
    "[a-z_]+",
    "as in exists over filter values from join on using and or not then when else by sets cast "
    "try_cast select where union all except intersect having decimal range lateral distinct case "
    "between like is",
)


def look_again(query: sql.JudgedQuery) -> None:
    """Assert by the text alone, with other means than the judge's, what Spark would be given."""
    text = re.sub(r"'(\\.|[^'\\])*'", "''", query.text)
    assert re.search(r"--|/\*|\$|;|@|\?", re.sub("`[^`]*`", "", text)) is None
    for name in re.findall(r"(?i)\b([a-z_]\w*)\s*\(", re.sub("`[^`]*`", "``", text)):
        assert name.lower() in {*sql._FUNCTIONS, *SYNTAX}, (name, query.text)
    assert re.search(r"`\s*\(", re.sub(r"(AS|WITH|,) (RECURSIVE )?`[^`]*` ?\(", "", text)) is None
    assert (
        re.search(r"(FROM|JOIN|,) `[^`]*`\.`[^`]*`(?= AS| WHERE| JOIN|$)", text) is None
        or "SELECT" in text
    )
    for table in query.tables:
        assert table.lower() in TABLES


def judge_drawn(seeds: range) -> int:
    """Judge drawn statements; return how many are let through."""
    let = 0
    for seed in seeds:
        code = DrawnSql(seed, (0.0, 0.02, 0.1, 0.4)[seed % 4]).statement()
        try:
            query = judge(code, ARGUMENTS)
        except SqlRefused:
            continue
        let += 1
        look_again(query)
    return let


def test_drawn_statements_are_let_through_only_without_hostile_pieces() -> None:
    """A thousand: refused, or with relations and functions of the lists alone."""
    assert 250 < judge_drawn(range(1000)) < 900


@pytest.mark.long
def test_many_drawn_statements_are_let_through_only_without_hostile_pieces() -> None:
    """Five thousand others, times what `EXAMPLES` says."""
    count = round(5000 * float(os.environ.get("EXAMPLES", "1")))

    assert judge_drawn(range(1000, 1000 + count)) > 0.3 * count
