"""Functions of runtime `pyspark`: sound ones, and others that go wrong in each way."""

from pathlib import Path

from tests.helpers.graph_builder import install

_CODE = '''"""For tests."""

import os, re, socket, threading
import time

from pyspark.sql import functions as F


# Sound.

def by_day(spark, *, orders, rate):
    return orders.groupBy("day").agg((F.sum("amount") * rate).alias("total"))
def total(spark, *, orders): return orders.agg(F.sum("amount")).first()[0]
def all_rows(spark, *, several):
    found = several[0]
    for each in several[1:]: found = found.unionByName(each)
    return found
def kinds(spark, *, orders, rates): return [type(orders).__name__, type(rates).__name__]
def by_view(spark, *, orders):
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    orders.createOrReplaceTempView("mine")
    return spark.sql("SELECT id, timestamp_seconds(id) AS at FROM mine")
def settings(spark, *, orders):
    views = [each.name for each in spark.catalog.listTables()]
    return [spark.conf.get("spark.sql.session.timeZone"), views]
def doubled(spark, *, orders):
    @F.udf("long")
    def twice(number): return 2 * number
    return orders.select("id", twice("amount").alias("amount"))
def cached(spark, *, orders):
    kept = orders.where("amount > 15").cache()
    return kept.unionAll(kept)
def noting(spark, *, orders, place):
    with open(place, "a") as file: file.write("called")
    return orders.limit(3)

# Not sound.

def raises(spark, *, orders):
    return {}["rate"]
def exits(spark, *, orders): raise SystemExit(3)
def unknown(spark, *, orders):
    return orders.select("nothing")
def no_column(spark, *, orders):
    return orders.select(3)
def lazy(spark, *, orders): return orders.select((F.col("id") / F.lit(0)).alias("n"))
def lazy_rows(spark, *, orders):
    @F.udf("long")
    def missing(number):
        return {}[number]
    return orders.select(missing("id").alias("n"))
def eager(spark, *, orders):
    return orders.select(F.raise_error(F.lit("no such day"))).collect()
def rows(spark, *, orders): return orders.collect()
def pandas(spark, *, orders): return orders.toPandas()
def column(spark, *, orders): return F.col("id")
def nothing_kept(spark, *, orders): return orders.select()
def twice(spark, *, orders): return orders.select("id", F.col("amount").alias("ID"))
def interval(spark, *, orders): return orders.select(F.make_interval("id").alias("since"))
def stops(spark, *, orders):
    spark.stop()
    return orders
def crashes(spark, *, orders):
    return orders.select(F.udf(lambda number: os._exit(3), "long")("id").alias("n"))
def endless(spark, *, place):
    def count(number):
        with open(place, "a") as file: file.write(f"{os.getpid()}\\n")
        while True: pass
    return spark.range(2).select(F.udf(count, "long")("id").alias("n"))
def endless_here(spark, *, place):
    with open(place, "a") as file: file.write(f"{os.getpid()}\\n")
    re.match("(a+)+$", "a" * 60 + "b")  # no other thread gets on meanwhile
def leaves_a_job(spark, *, place):
    threading.Thread(target=endless(spark, place=place).collect, daemon=True).start()
    while not os.path.exists(place): time.sleep(0.01)
    return "left"
def ends(spark, *, orders):
    print("for the last time", flush=True)
    os._exit(7)
def crashes_here(spark, *, orders):
    orders.count()
    os.kill(os.getpid(), 11)
def takes_much(spark, *, orders): return len(bytearray(3 << 30))
def answers_itself(spark, *, orders):
    for fd in range(3, 64):
        try:
            with socket.socket(fileno=os.dup(fd)) as end:
                if end.family == socket.AF_UNIX: end.send(bytes(24))
        except OSError: pass
    return 1
def prints_much(spark, *, orders):
    for n in range(100_000): print("word", n)
    return orders
def tells_secrets(spark, *, orders):
    secret = spark.sparkContext._gateway.gateway_parameters.auth_token
    shown = [open(f"/proc/self/{file}").read() for file in ("cmdline", "environ")]
    return [secret in text for text in (*shown, str(os.environ))]
'''
_NAMES = [line[4:].partition("(")[0] for line in _CODE.splitlines() if line.startswith("def ")]


def install_spark_functions(directory: Path) -> None:
    """Make them known to processes that have the directory in their path."""
    directory.mkdir(exist_ok=True)
    install(directory, "of_spark", _CODE, {f"spark.{name}": f"of_spark:{name}" for name in _NAMES})
