"""Rebaser in the environments that machines have: a variable missing, or with an odd content."""

import asyncio
import json
import os
import re
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.test_command_line import REBASER

GRAPH = """
functions:
  gross: {cel: "net * 2.0"}
sources: {net: 1.5, größe: ü}
values:
  gross: {function: gross, inputs: {net: net}}
  total: {function: sum, inputs: [net, gross]}
"""
NOWHERE = "/nowhere/at all"
ODD = {
    "LANG": ["C", "de_DE.UTF-8", "xx_YY.latin1"],
    "LC_ALL": ["C", "tr_TR.UTF-8", "nonsense"],
    "TZ": ["Pacific/Kiritimati", "nonsense", "Europe/Berlin"],
    "HOME": [NOWHERE, ""],
    "TMPDIR": [NOWHERE, ""],
    "USER": ["", "größe"],
    "LOGNAME": ["a b"],
    "SHELL": [NOWHERE],
    "PWD": [NOWHERE],
    "PYTHONHASHSEED": ["1"],
    "PYTHONIOENCODING": ["utf-8"],
    "PYTHONUTF8": ["0", "1"],
    "PYTHONUNBUFFERED": ["1"],
    "PYTHONDONTWRITEBYTECODE": ["1"],
    "PYTHONWARNINGS": ["error"],
    "PYTHONOPTIMIZE": ["2"],
    "NO_COLOR": ["1"],
    "FORCE_COLOR": ["0"],
    "COLUMNS": ["20", "x"],
    "LINES": ["0"],
    "TERM": ["dumb", ""],
    "PAGER": [NOWHERE],
    "http_proxy": ["http://127.0.0.1:9"],
    "HTTPS_PROXY": ["http://127.0.0.1:9"],
    "ALL_PROXY": ["socks5://127.0.0.1:9"],
    "no_proxy": ["*"],
    "MALLOC_ARENA_MAX": ["1"],
    "OMP_NUM_THREADS": ["0"],
    "NATS_URL": ["nats://127.0.0.1:9"],
    "SSL_CERT_FILE": [NOWHERE],
    "XDG_CONFIG_HOME": [NOWHERE],
    "XDG_STATE_HOME": [""],
    "KUBERNETES_SERVICE_HOST": ["10.0.0.1"],
    "REBASER_SERVICE_HOST": ["10.0.0.1"],
    "REBASER_SERVICE_PORT": ["8222"],
    "REBASER_PORT": ["tcp://10.0.0.1:8222"],
    "JAVA_HOME": [NOWHERE],
    "SPARK_HOME": [NOWHERE],
    "HADOOP_CONF_DIR": [NOWHERE],
    "OTEL_TRACES_EXPORTER": ["none"],
}
"""Contents that a variable has somewhere, and that change nothing."""

_VARIES = re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b|\b\d{4}-\d\d-\d\dT[\d:.]+Z|\bcommit \d+")


async def told(place: Path, env: dict[str, str], *words: str) -> str:
    """What a command prints on both, without ids and times."""
    process = await asyncio.create_subprocess_exec(
        REBASER, *words, cwd=place, env=env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(300):
        out, err = await process.communicate()
    return _VARIES.sub("_", f"{process.returncode}\n{out.decode()}\n{err.decode()}")


def graph_in(place: Path, text: str) -> Path:
    """A new folder with the graph."""
    place.mkdir()
    (place / "graph.yaml").write_text(text, encoding="utf-8")
    return place


async def story(place: Path, env: dict[str, str]) -> list[str]:
    """What is printed from the start of a deployment to its end."""
    own = {"REBASER_OPS__PORT": "0", "REBASER_SPARK__WARM": "false"}
    with (place / "up.log").open("wb") as log:
        up = await asyncio.create_subprocess_exec(
            *(REBASER, "up", "--data", str(place / "data"), "--port", "-1", "--json"),
            cwd=place,
            env=env | own,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=log,
        )
    assert up.stdout is not None
    try:
        async with asyncio.timeout(300):
            line = await up.stdout.readline()
        if not line:
            return [(place / "up.log").read_text()]
        env = env | {"REBASER_NATS__URL": json.loads(line)["nats"]}
        said = [
            await told(place, env, "workspaces", "create", "shop"),
            await told(place, env, "load", "shop", "graph.yaml", "--yes", "--wait"),
            await told(place, env, "values", "shop"),
            await told(place, env, "why", "shop", "total"),
        ]
    finally:
        with suppress(ProcessLookupError):
            up.terminate()
    async with asyncio.timeout(180):
        said.append(f"ends with {await up.wait()}")
    return said


def user_environment() -> dict[str, str]:
    """What a user's machine has at least, and a name for what would be that of the login."""
    own = {"LANG": "C.UTF-8", "REBASER_AUTHOR": "ada"}
    return {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ} | own


@pytest.mark.long
async def test_no_variable_of_the_environment_changes_what_is_printed(tmp_path: Path) -> None:
    """Each of a user's is taken away, one at a time; odd contents come together, one of each."""
    clean = user_environment()
    given = {
        f"no {gone}": {name: clean[name] for name in clean.keys() - {gone}}
        for gone in clean.keys() - {"REBASER_AUTHOR"}
    }
    for number in range(max(map(len, ODD.values()))):
        odd = {name: some[number] for name, some in ODD.items() if number < len(some)}
        given[f"odd {number}"] = clean | odd
    expected = await story(graph_in(tmp_path / "clean", GRAPH), clean)
    turns = asyncio.Semaphore(2)

    async def in_turn(number: int, env: dict[str, str]) -> list[str]:
        async with turns:
            return await story(graph_in(tmp_path / str(number), GRAPH), env)

    stories = await asyncio.gather(*(in_turn(*each) for each in enumerate(given.values())))

    assert ["größe", '"ü"', "ok"] in [line.split() for line in expected[2].splitlines()]
    assert expected[-1] == "ends with 0"
    for what, said in zip(given, stories, strict=True):
        assert (what, said) == (what, expected)


SPARKS = {
    "JAVA_HOME": NOWHERE,
    "SPARK_HOME": NOWHERE,
    "SPARK_CONF_DIR": NOWHERE,
    "SPARK_LOCAL_IP": "192.0.2.1",
    "SPARK_LOCAL_HOSTNAME": "nowhere.invalid",
    "PYSPARK_PYTHON": NOWHERE,
    "PYSPARK_DRIVER_PYTHON": NOWHERE,
    "PYSPARK_SUBMIT_ARGS": "--master spark://nowhere:7077",
    "HADOOP_HOME": NOWHERE,
    "HADOOP_CONF_DIR": NOWHERE,
    "TZ": "Pacific/Kiritimati",
}


@pytest.mark.long
@pytest.mark.spark
async def test_spark_takes_nothing_of_the_environment(tmp_path: Path) -> None:
    """What is said there for another Spark changes neither its start nor a time."""
    query = "SELECT CAST(make_timestamp(2026, 1, 31, 12, :h, 0) AS string)"
    sql = f'functions: {{q: {{sql: "-- returns: value\\n{query}"}}}}\n'
    graph = f"{sql}sources: {{h: 30}}\nvalues: {{total: {{function: q, inputs: {{h: h}}}}}}\n"

    said = await story(graph_in(tmp_path / "odd", graph), user_environment() | SPARKS)

    assert '"2026-01-31 12:30:00"  ok' in said[2], said
