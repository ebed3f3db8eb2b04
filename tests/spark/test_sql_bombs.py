"""Queries that the judge lets through and that would never end: their deadline ends them."""

from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError

from rebaser_server.compute.errors import RunFailed, SessionFailed
from rebaser_server.compute.plan import plan
from rebaser_server.compute.run import Run
from rebaser_server.compute.spark.spark_call import SparkQueries
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.tables import Query
from rebaser_server.runtime.failures import Stalled
from rebaser_server.runtime.progress import JobProgress
from tests.helpers.eventually import eventually
from tests.helpers.table_sheet import OWNER, TableSheet
from tests.spark.conftest import ON_A_CLUSTER

pytestmark = [pytest.mark.spark, pytest.mark.long]

MANY = pa.table({"n": pa.array(range(300_000), pa.int64()), "one": pa.array([1] * 300_000)})
BOMBS = {
    "a self-join with a condition that is always true": (
        "SELECT sum(a.n * b.n) AS s FROM many AS a JOIN many AS b ON a.n - a.n = b.n - b.n"
    ),
    "a join by a constant": (
        "SELECT count(a.n + b.n) AS s FROM (SELECT n, 1 AS k FROM many) AS a "
        "JOIN (SELECT n, 1 AS k FROM many) AS b ON a.k = b.k"
    ),
    "a join in a condition": (
        "SELECT count(*) AS s FROM many AS a WHERE NOT EXISTS "
        "(SELECT 1 FROM many AS b WHERE a.one = b.one AND a.n + b.n < 0)"
    ),
    "rows of a sequence": (
        "SELECT count_if(n > 7) AS s FROM (SELECT explode(sequence(1, 1000000)) AS n FROM many)"
    ),
    "sequences in sequences": (
        "SELECT sum(size(transform(sequence(1, 10000), "
        "x -> size(filter(sequence(1, 10000), y -> y > x))))) AS s FROM many"
    ),
    "an array that grows": (
        "SELECT size(aggregate(sequence(1, 1000000), array(one), "
        "(all, x) -> concat(all, array(CAST(x AS bigint))))) AS s FROM many"
    ),
    "a pattern that backtracks": (
        r"SELECT count_if(concat(repeat('a', 500), n) RLIKE '(a|aa)+$') AS s FROM many"
    ),
    "ranges without a table": (
        "SELECT count(*) AS s FROM range(1000000) AS a, range(1000000) AS b, range(90) AS c "
        "WHERE a.id + b.id + c.id <> 7"
    ),
    "a window of all rows": (
        "SELECT sum(m) AS s FROM (SELECT max(n) OVER (PARTITION BY one ORDER BY n "
        "ROWS BETWEEN 200000 PRECEDING AND 200000 FOLLOWING) AS m FROM many)"
    ),
    "a window of a range": (
        "SELECT sum(m) AS s FROM (SELECT sum(n) OVER (PARTITION BY one ORDER BY n "
        "RANGE BETWEEN 250000 PRECEDING AND 250000 FOLLOWING) AS m FROM many)"
    ),
    "a join of three": (
        "SELECT count(a.n + b.n + c.n) AS s FROM many AS a JOIN many AS b ON a.one = b.one "
        "JOIN many AS c ON b.one = c.one AND b.n < c.n"
    ),
    "an outer join of both sides": (
        "SELECT count(a.n + b.n) AS s FROM many AS a FULL OUTER JOIN many AS b "
        "ON a.one = b.one AND a.n < b.n"
    ),
    "groups of pairs": (
        "SELECT count(*) AS s FROM (SELECT a.n AS x, b.n AS y FROM many AS a "
        "JOIN many AS b ON a.n % 3 = b.n % 3 GROUP BY a.n, b.n)"
    ),
    "distinct pairs": (
        "SELECT count(*) AS s FROM (SELECT DISTINCT a.n * b.n AS p FROM many AS a "
        "JOIN many AS b ON a.one = b.one)"
    ),
    "pairs but for others": (
        "SELECT count(*) AS s FROM (SELECT a.n + b.n AS p FROM many AS a JOIN many AS b "
        "ON a.one = b.one EXCEPT SELECT n AS p FROM many)"
    ),
    "a list of all rows, over and over": (
        "SELECT sum(size(l)) AS s FROM (SELECT collect_list(n) OVER (PARTITION BY one "
        "ORDER BY n) AS l FROM many)"
    ),
    "a sort of all pairs": (
        "SELECT max(r) AS s FROM (SELECT row_number() OVER (ORDER BY a.n * b.n DESC) AS r "
        "FROM many AS a JOIN many AS b ON a.n % 7 = b.n % 7)"
    ),
    "a distance of long texts": (
        "SELECT sum(levenshtein(repeat('ab', 500), concat(repeat('ba', 500), n))) AS s FROM many"
    ),
    "digests of digests": (
        "SELECT max(aggregate(sequence(1, 100000), CAST(n AS string), (d, x) -> sha2(d, 512))) "
        "AS s FROM many"
    ),
    "arrays that are sorted by a function": (
        "SELECT sum(size(array_sort(sequence(1, 100000), (x, y) -> y - x))) AS s FROM many"
    ),
}

OFTEN = (
    "a join by a constant",
    "ranges without a table",
    "an array that grows",
    "a pattern that backtracks",
)
"""Those of each kind of loop, tried with each change: each takes half a minute."""

SMALL = "SELECT sum(n) FROM (SELECT explode(sequence(1, 10)) AS n)"


def is_idle(executor: SparkExecutor) -> bool:
    """Whether Spark runs no task, in the JVM of before or in a new one, nor one of an ended run.

    Such a one soon ends the JVM, and with it what the next test has begun.
    """
    session = executor._session
    with suppress(Py4JError, OSError, SessionFailed), session.job("looks", "looks"):
        running: Any = session._running
        scheduler = running._java_context.taskScheduler()
        is_busy = bool(scheduler.rootPool().getSortedTaskSetQueue().size())
        # Of a cluster, the driver counts each task until its executor says that it has ended.
        on_executors = sum(info.numRunningTasks for info in running._tracker.getExecutorInfos())
        return not (is_busy or on_executors or running._stray_tasks())
    return False


async def computes(executor: SparkExecutor) -> bool:
    """Whether a query of others has its result, which the end of a JVM delays."""
    with suppress(RunFailed):
        query = Query(SMALL, {}, {}, None)
        return await SparkQueries(executor).run_query(query, "after", Run("others")) == 55
    return False


@pytest.mark.parametrize(
    ("code", "place"),
    [
        pytest.param(
            code,
            place,
            id=f"{name}, {place or 'here'}",
            marks=() if name in OFTEN and place is None else pytest.mark.slow,
        )
        for place in (None, ON_A_CLUSTER)
        for name, code in BOMBS.items()
    ],
    indirect=["place"],
)
async def test_a_bomb_ends_by_its_deadline_and_others_are_computed(
    executor: SparkExecutor, sheet: TableSheet, code: str
) -> None:
    """If its tasks do not heed that, the JVM ends with them, and the next query has another."""
    await SparkQueries(executor).run_query(Query(SMALL, {}, {}, None), "before", Run(OWNER))
    sheet.upload("many", MANY)
    sheet.query("bomb", code, "many")
    units, progress = plan(sheet.graph, 2).units, JobProgress(1)

    with pytest.raises(Stalled):
        async with progress.limiting(8):
            await sheet.executor.run(units, Run(OWNER, progress=progress))

    await eventually(lambda: computes(executor), within=300)
    await eventually(lambda: is_idle(executor), within=180)
