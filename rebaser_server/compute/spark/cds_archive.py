"""The JVM's archive of loaded classes, which more than halves the time that Spark takes to start.

It is trained once, for one Java and one set of jars (JEP 350; from Java 25 on JEP 514). A JVM
that it does not fit starts without it.
"""

import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

AOT: Final = 25
"""Java versions from this one on also archive what linking and profiling found."""


def default_directory() -> Path:
    """Beside the installed packages: made for them, and gone with them."""
    return Path(sys.prefix) / "share" / "rebaser"


def archive_path(directory: Path, java: Path) -> Path | None:
    """Where the archive for this Java and this Spark lies, or would; None for an odd Java."""
    release = _release(java)
    if release is None:
        return None
    ending = "aot" if _major(release) >= AOT else "jsa"
    return directory / f"spark-{version('pyspark')}-java-{release}.{ending}"


def jvm_options(archive: Path) -> list[str]:
    """Options of a JVM that shall use the archive, if it fits."""
    if not archive.exists():
        return []
    if archive.suffix == ".aot":
        return [f"-XX:AOTCache={archive}", "-Xlog:aot=off,cds=off"]
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off"]


def training_options(archive: Path) -> list[str]:
    """Options of a JVM that shall write the archive as it ends."""
    if archive.suffix == ".aot":
        return [f"-XX:AOTCacheOutput={archive}", "-Xlog:aot=off,cds=off"]
    return [f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def _release(java: Path) -> str | None:
    """The version of the Java at this home, from the file that every JDK has."""
    try:
        version = re.search(
            r'^JAVA_VERSION="([\w.+-]+)"', (java / "release").read_text(), re.MULTILINE
        )
    except OSError:
        return None
    return version[1] if version else None


def _major(release: str) -> int:
    return int(re.split(r"\D", release)[0])
