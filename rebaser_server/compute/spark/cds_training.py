"""Makes the archive that Spark's JVM starts from, see `cds_archive`."""

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

from rebaser_server.compute.errors import SessionFailed
from rebaser_server.compute.spark.cds_archive import archive_path
from rebaser_server.compute.spark.java import find_java
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.scratch import plain_directory
from rebaser_server.compute.spark.spark_executor import SparkExecutor

_RUNS = 3


async def train(options: SparkOptions) -> Path:
    """Start Spark, run a few jobs and keep what its JVM has loaded; where that lies.

    Takes about a minute. A session that is started meanwhile is started without.

    Raises:
        SessionFailed: Spark does not start, is not to run here, or left no archive.
        OSError: the archive cannot be written where it shall lie.
    """
    if not options.is_local:
        raise SessionFailed("there is nothing to train: Spark's JVM is not ours")
    options.state_directory.mkdir(parents=True, exist_ok=True)
    java = find_java(options.state_directory, os.environ)
    archive = archive_path(options.archives, java)
    if archive is None:
        raise SessionFailed(f"the Java at {java} does not say its version")
    archive.parent.mkdir(parents=True, exist_ok=True)
    # Java hands the path on to a second JVM, and splits there at what it has of blanks.
    place = plain_directory()
    trained = place / f"new{archive.suffix}"
    new = archive.with_name(f"new-{os.getpid()}{archive.suffix}")
    try:
        executor = SparkExecutor(replace(options, training=trained))
        try:
            for _ in range(_RUNS):
                await executor.start()
        finally:
            await executor.close()
        if not trained.exists():
            raise SessionFailed(f"the Java at {java} wrote no archive (see {options.log})")
        await asyncio.to_thread(shutil.copyfile, trained, new)
        new.replace(archive)
    finally:
        new.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
    return archive
