"""One query or call of a table value as Spark jobs: files in, files and a digest out.

The digest of the rows is taken in the pass that writes them, and does not depend on their order.
"""

import json
import re
from collections.abc import Sequence
from contextvars import Context
from decimal import Context as DecimalContext
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
from pybase64 import b64encode_as_string

from rebaser_core.codecs import INT_MAX, INT_MIN
from rebaser_core.table_schemas import MAX_COLUMNS, NotATable, cells_of, require_distinct
from rebaser_server.compute.functions.arrow import require_plain
from rebaser_server.compute.functions.runtimes import resolve
from rebaser_server.compute.functions.sql import bind
from rebaser_server.compute.json_values import NotJson, as_result
from rebaser_server.compute.spark.table_tasks import frame_of, write
from rebaser_server.compute.tables import Definition, Query, SparkCall, views_of
from rebaser_server.tables import Manifest, Target, View, Written
from rebaser_server.values.canonical_json import dumps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTINGS: Final = {
    # Any program reads these, and Python the year 1, too.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.runSQLOnFiles": "false",
    # A cancelled task ends between two batches; a join may make a million rows of each row.
    "spark.sql.parquet.columnarReaderBatchSize": "512",
    # Nothing is known of the size of what tasks read until it is shuffled.
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "10m",
    # As the judge of queries takes them: a text that it prints means to Spark what it read.
    "spark.sql.variable.substitute": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
}
_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers by which PySpark prints each mistake of a query, with the stack trace of the JVM."""
_REFUSED: Final = ("interval", "variant", "time", "geography", "geometry", "void")


class FunctionRaised(Exception):
    """The function of a `SparkCall` raised the exception that is the cause."""


def run(spark: "SparkSession", query: Query | SparkCall, slots: int) -> Any:
    """Run it in a session that it has alone; return what was `Written`, or its JSON value.

    Blocks. Errors of Spark pass through, for mistakes of the query as for its own.

    Raises:
        FunctionRaised: the function did.
        FunctionMissing: the function is not here.
        NotATable: the result has columns that a table cannot keep.
        NotJson: the result is not one value.
    """
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - see `spark_executor`

    for logger in _LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    spark.conf.set("spark.sql.leafNodeDefaultParallelism", str(slots))
    _configure(spark)
    if any(not view.files.is_local for view in views_of(query)):
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")  # it would guess them small
    if isinstance(query, SparkCall):
        return _call(spark, query)
    for name, view in query.views.items():
        frame_of(spark, view).createOrReplaceTempView(_quoted(name))
    frame = _result_of(spark, query)
    key = query.definition.key
    if query.target is None:
        return _require_key(frame, key) if key else _only_value(frame)
    written = _write(frame, query.target, query.definition, is_split=query.is_split)
    # The key is looked for in the rows that were written: the frame would run the query once more,
    # and might have other rows then.
    if key:
        files = [*written.files, *(file for part in written.parts for file in part.files)]
        rows = Manifest(written.fields, files, written.rows, "")
        place, attempt = query.target
        _require_key(frame_of(spark, View(place, attempt.workspace, rows)), key)
    return written


def _configure(spark: "SparkSession") -> None:
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)


def _result_of(spark: "SparkSession", query: Query) -> "DataFrame":
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    plain = set[str]()
    while True:
        text, arguments = bind(query.text, query.parameters, plain)
        try:
            frame = spark.sql(text, args=arguments)
            frame.schema  # noqa: B018 - Connect looks at a query only then
        except AnalysisException as error:
            # Some places, as LIMIT, take an int and no bigint, or a format that is constant.
            found = " ".join(each.fragment() for each in error.getQueryContext())
            more = {name for name in arguments if re.search(rf":{name}\b", found)} - plain
            if not more:
                raise
            plain |= more
        else:
            return frame


def _call(spark: "SparkSession", call: SparkCall) -> Any:
    from pyspark.sql import DataFrame  # noqa: PLC0415

    function = resolve(*call.function)
    arguments = {name: _argument(spark, value) for name, value in call.arguments.items()}
    vars(spark)["stop"] = _refuse_to_stop
    try:
        found = Context().run(partial(function, spark, **arguments))
    except BaseException as error:
        raise FunctionRaised from error
    finally:
        del vars(spark)["stop"]
    if not isinstance(found, DataFrame):
        return require_plain(found, "a DataFrame of Spark")
    _configure(spark)  # the function may have set others
    return _write(found, call.target, Definition())


def _argument(spark: "SparkSession", value: Any) -> Any:
    if isinstance(value, list):
        return [_argument(spark, each) for each in value]
    return frame_of(spark, value) if isinstance(value, View) else value


def _refuse_to_stop() -> NoReturn:
    raise RuntimeError("the session is Rebaser's, and others compute in it: remove spark.stop()")


def _only_value(frame: "DataFrame") -> Any:
    from pyspark.sql.types import StructType  # noqa: PLC0415

    if len(frame.columns) != 1:
        raise NotJson(
            f"the query returns {len(frame.columns)} columns where one value is wanted: select one"
        )
    schema = frame.schema.json()
    if '"void"' in schema:  # Arrow has no such keys and items
        schema = re.sub(r'(\w*[tT]ype":)"void"', r'\1"string"', schema)
        frame = frame.to(StructType.fromJson(json.loads(schema)))
    refused = _refused_in(json.loads(schema)["fields"][0]["type"])
    if refused is not None:
        raise NotJson(f"the value has the type {refused}, which JSON has not: cast it to another")
    found = frame.limit(2).toArrow().column(0)
    if len(found) > 1:
        raise NotJson("the query returns more than one row where one value is wanted")
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        message = "the value has text that is no UTF-8: select hex(…), or base64(…), of it"
        raise NotJson(message) from None
    return as_result(_plain(cells_of(found)[0], found.type)) if len(found) else None


def _plain(cell: Any, kind: pa.DataType) -> Any:  # noqa: PLR0911 - one for each type
    """Return a cell as JSON has it, by its type, which the documentation has a table of."""
    if cell is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _plain(cell[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        pairs = [(_plain(key, kind.key_type), _plain(it, kind.item_type)) for key, it in cell]
        return {key if isinstance(key, str) else dumps(key): it for key, it in pairs}
    if pa.types.is_list(kind):
        return [_plain(each, kind.value_type) for each in cell]
    if isinstance(cell, bytes):
        return b64encode_as_string(cell)
    if isinstance(cell, Decimal):
        whole, number = int(cell), float(cell)
        if cell == whole and INT_MIN <= whole <= INT_MAX:
            return whole
        # `repr` has the digits that JSON has.
        return number if Decimal(repr(number)) == cell else f"{cell.normalize(_EXACT):f}"
    if pa.types.is_temporal(kind):
        return (cell if isinstance(cell, str) else cell.isoformat()).removesuffix("+00:00")
    return cell


_EXACT: Final = DecimalContext(prec=38)


def _write(
    frame: "DataFrame", target: Target, definition: Definition, *, is_split: bool = False
) -> Written:
    """Write the rows, those of each partition apart if these are split."""
    fields = json.loads(frame.schema.json())["fields"]
    _require_keepable(fields)
    definition.require_columns(fields)
    required = [column.name for column in definition.columns or () if column.is_required]
    return write(frame, target, fields, required, definition.partition_by if is_split else None)


def _require_key(rows: "DataFrame", key: Sequence[str]) -> None:
    """Raise `NotATable` if two rows have one key."""
    names = [f"c{place}" for place in range(len(key))]  # none is that of the count
    keys = rows.select(*map(_quoted, key)).toDF(*names)
    twice = keys.groupBy(*names).count().where("count > 1").limit(1).collect()
    if twice:
        found = ", ".join(f"{name}={value}" for name, value in zip(key, twice[0], strict=False))
        raise NotATable(f"{twice[0][-1]:,} rows have the key {found}, which one may have")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _require_keepable(fields: Sequence[dict[str, Any]]) -> None:
    if not fields:
        raise NotATable("the result has no column; a table has at least one")
    if len(fields) > MAX_COLUMNS:
        raise NotATable(f"{len(fields):,} columns; a table has at most {MAX_COLUMNS:,}")
    require_distinct([field["name"] for field in fields])
    for field in fields:
        refused = _refused_in(field["type"])
        if refused is not None:
            raise NotATable(
                f"column {field['name']!r} has the type {refused}, which a table cannot keep: "
                "cast it to another one"
            )


def _refused_in(kind: Any) -> str | None:
    return next((each for each in _REFUSED if _has_type(kind, each)), None)


def _has_type(kind: Any, refused: str) -> bool:
    if isinstance(kind, str):
        return kind == refused or kind.startswith((f"{refused} ", f"{refused}("))
    parts = kind.get("fields", ())
    inner = [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    return any(_has_type(each, refused) for each in [*inner, *(part["type"] for part in parts)])
