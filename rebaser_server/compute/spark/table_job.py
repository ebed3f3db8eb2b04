"""One query or call of a table value as Spark jobs: files in, files and a digest out.

The digest of the rows is taken in the pass that writes them, and does not depend on their order.
"""

import json
import re
from collections.abc import Sequence
from contextvars import Context
from dataclasses import replace
from decimal import Context as DecimalContext
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
from blake3 import blake3
from pybase64 import b64encode_as_string

from rebaser_core.codecs import INT_MAX, INT_MIN
from rebaser_core.table_schemas import (
    MAX_COLUMNS,
    MAX_PARTITIONS,
    NotATable,
    cells_of,
    require_distinct,
)
from rebaser_server.compute.functions.arrow import require_plain
from rebaser_server.compute.functions.runtimes import resolve
from rebaser_server.compute.functions.sql import bind
from rebaser_server.compute.json_values import NotJson, as_result
from rebaser_server.compute.tables import (
    Definition,
    Query,
    SparkCall,
    View,
    Written,
    WrittenPart,
)
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
    # As the judge of queries takes them: a text that it prints means to Spark what it read.
    "spark.sql.variable.substitute": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
}
_CONTENT_DIGITS: Final = 32
_LOW: Final = 0xFFFFFFFF
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
    if isinstance(query, SparkCall):
        return _call(spark, query)
    for name, view in query.views.items():
        _frame_of(spark, view).createOrReplaceTempView(_quoted(name))
    functions, observation = _columns_of(spark)
    frame = _result_of(spark, query)
    key = query.definition.key
    if query.target is None:
        return _require_key(frame, key) if key else _only_value(frame)
    written = _write(
        frame, query.target, query.definition, functions, observation, is_split=query.is_split
    )
    fields = written.fields
    if key:
        _require_key(_frame_of(spark, View(fields, [query.target])), key)
    if not query.is_split:
        return written
    apart = {"name": _apart(fields), "type": "long", "nullable": True, "metadata": {}}
    rows = _frame_of(spark, View([*fields, apart], [query.target]))
    return replace(written, parts=_parts(rows, fields, query, functions))


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


def _frame_of(spark: "SparkSession", view: View) -> "DataFrame":
    from pyspark.sql.types import StructType  # noqa: PLC0415

    schema = StructType.fromJson({"type": "struct", "fields": view.fields})
    if not view.uris:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*view.uris)


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
    return _write(found, call.target, Definition(), *_columns_of(spark))


def _argument(spark: "SparkSession", value: Any) -> Any:
    if isinstance(value, list):
        return [_argument(spark, each) for each in value]
    return _frame_of(spark, value) if isinstance(value, View) else value


def _refuse_to_stop() -> NoReturn:
    raise RuntimeError("the session is Rebaser's, and others compute in it: remove spark.stop()")


def _columns_of(spark: "SparkSession") -> tuple[Any, Any]:
    """Return the functions that make columns for this kind of session, and an observation."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        from pyspark.sql.connect import functions as of_connect  # noqa: PLC0415
        from pyspark.sql.connect.observation import Observation as Remote  # noqa: PLC0415

        return of_connect, Remote()
    from pyspark.sql import Observation, functions  # noqa: PLC0415

    return functions, Observation()


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
    frame: "DataFrame",
    target: str,
    definition: Definition,
    functions: Any,
    seen: Any,
    *,
    is_split: bool = False,
) -> Written:
    """Write the rows; their digest is taken unless partitions are written apart."""
    fields = json.loads(frame.schema.json())["fields"]
    _require_keepable(fields)
    definition.require_columns(fields)
    required = [column.name for column in definition.columns or () if column.is_required]
    observed = frame.observe(
        seen,
        functions.count(functions.lit(1)).alias("rows"),
        *([] if is_split else _digests(functions, fields)),
        *(
            functions.count_if(functions.col(_quoted(name)).isNull()).alias(f"nulls {number}")
            for number, name in enumerate(required)
        ),
    )
    if is_split:
        value = functions.col(_quoted(definition.partition_by or ""))
        # A number is a name that any file system takes, for any value.
        number = functions.xxhash64(value, value.isNull())
        apart = _apart(fields)
        observed.withColumn(apart, number).write.partitionBy(apart).parquet(target)
    else:
        observed.write.parquet(target)
    found = seen.get
    for number, name in enumerate(required):
        if nulls := found[f"nulls {number}"]:
            raise NotATable(
                f"column {name!r} is declared `not null`, and is null in {nulls:,} rows"
            )
    return Written(fields, found["rows"], "" if is_split else _content(found))


def _apart(fields: Sequence[dict[str, Any]]) -> str:
    """Return the name of the column by which Spark writes partitions apart: none of the table's."""
    name = "partition"
    while name in {field["name"].lower() for field in fields}:
        name += "_"
    return name


def _digests(functions: Any, fields: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the columns that sum up rows in any order, for `_content`."""
    row = functions.xxhash64(
        *(column for field in fields for column in _hashable(functions, field))
    )
    return [
        functions.bit_xor(row).alias("xor"),
        # Halves, since a sum of whole hashes would not fit into 64 bits.
        functions.sum(row.bitwiseAND(functions.lit(_LOW))).alias("low"),
        functions.sum(functions.shiftrightunsigned(row, 32)).alias("high"),
    ]


def _content(found: Any) -> str:
    content = blake3(repr([found[name] for name in ("rows", "xor", "low", "high")]).encode())
    return content.hexdigest()[:_CONTENT_DIGITS]


def _parts(
    rows: "DataFrame", fields: Sequence[dict[str, Any]], query: Query, functions: Any
) -> tuple[WrittenPart, ...]:
    """Return the partitions that were written. Raises `NotATable` if two have one hash."""
    apart, by = _apart(fields), query.definition.partition_by or ""
    value = functions.col(_quoted(by))
    found = rows.groupBy(apart).agg(
        functions.count(functions.lit(1)).alias("rows"),
        *_digests(functions, fields),
        functions.count(value).alias("values"),
        functions.min(value).cast("string").alias("least"),
        functions.max(value).cast("string").alias("most"),
    )
    parts = []
    for row in found.limit(MAX_PARTITIONS + 1).collect():
        if row["least"] != row["most"] or row["values"] not in (0, row["rows"]):
            raise NotATable(
                f"the partitions {row['least']!r} and {row['most']!r} of column {by!r} cannot be "
                "told apart: partition by another column"
            )
        directory = f"{apart}={row[apart]}"
        parts.append(WrittenPart(row["least"], directory, row["rows"], _content(row)))
    return tuple(parts)


def _require_key(rows: "DataFrame", key: Sequence[str]) -> None:
    """Raise `NotATable` if two rows have one key."""
    columns = list(map(_quoted, key))
    twice = rows.groupBy(*columns).count().where("count > 1").limit(1).collect()
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


def _hashable(functions: Any, field: dict[str, Any]) -> list[Any]:
    """Return columns for the digest: equal for equal values, also of maps.

    Spark's hash passes over nulls, and over the bounds of what is nested: it is the same of (1,
    null) and (null, 1), and of an array of both.
    """
    column = functions.col(_quoted(field["name"]))
    kind = field["type"]
    if isinstance(kind, str):
        found = [column, column.isNull()] if field["nullable"] else [column]
        if kind in ("float", "double"):  # the hash takes -0.0 for 0.0, and passes over nulls
            found.append(functions.when((column == 0) & (column.cast("string") == "-0.0"), 1))
        return found
    if kind["type"] == "map" and not _has_map(kind["valueType"]):
        column = functions.array_sort(functions.map_entries(column))
    found = [functions.to_json(functions.struct(column), _WHOLE)]
    if _has_type(kind, "string"):  # in JSON all bytes that are no UTF-8 are alike
        text = column.cast("string")
        found.append(functions.when(~functions.is_valid_utf8(text), text))
    return found


_WHOLE: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options by which a value's JSON says all of it."""


def _has_map(kind: Any) -> bool:
    if isinstance(kind, str):
        return False
    parts = kind.get("fields", ())
    inner = [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    return kind["type"] == "map" or any(map(_has_map, [*inner, *(p["type"] for p in parts)]))
