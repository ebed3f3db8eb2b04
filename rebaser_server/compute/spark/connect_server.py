"""`python -m rebaser_server.compute.spark.connect_server`: a Spark Connect server for Rebasers.

It becomes the JVM, so that a supervisor's signals reach that. Anyone who reaches its port can
run code in it: docs/security.md. Arguments are Spark settings, `name=value`, stronger than ours.
"""

import os
import sys
from pathlib import Path
from typing import Final

from rebaser_server.compute.spark.java import find_java
from rebaser_server.compute.spark.launch import MODULES, spark_home
from rebaser_server.compute.spark.options import REDACTION, hadoop_uri
from rebaser_server.compute.spark.scratch import plain_directory
from rebaser_server.runtime.process import child_environment

MAIN: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_HERE: Final = Path(__file__).parent


def settings(directory: Path) -> dict[str, str]:
    """What our own session sets where it starts Spark itself (`options.py`), for one elsewhere."""
    return {
        "spark.master": "local[*]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "15002",
        "spark.ui.enabled": "false",
        **REDACTION,
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": hadoop_uri(directory / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": hadoop_uri(_HERE / "fair.xml"),
        "spark.rpc.message.maxSize": "1024",
        "spark.python.task.killTimeout": "300ms",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(directory),
        "spark.python.daemon.module": "rebaser_server.compute.spark.worker_daemon",
    }


def main() -> None:
    directory = plain_directory()
    overrides = dict(argument.split("=", 1) for argument in sys.argv[1:])
    java = find_java(directory, os.environ)
    memory = overrides.pop("spark.driver.memory", "1g")
    command = [
        str(java / "bin" / "java"),
        *("-cp", f"{spark_home()}/jars/*"),
        f"-Xmx{memory}",
        f"-Djava.io.tmpdir={directory}",
        f"-Dlog4j2.configurationFile={(_HERE / 'log4j2.properties').as_uri()}",
        *(f"-D{name}={value}" for name, value in (settings(directory) | overrides).items()),
        *MODULES,
        MAIN,
    ]
    ours = {
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home()),
        "SPARK_SCALA_VERSION": "2.13",  # which the scripts say
        "PYTHONHASHSEED": "0",
    }
    os.execve(command[0], command, {**child_environment(), **ours})  # noqa: S606 - our own arguments


if __name__ == "__main__":
    main()
