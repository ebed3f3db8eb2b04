"""Secrets in settings are not where others look, whatever the daemon and its children do."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import structlog
from aiohttp import ClientSession, ClientTimeout
from pydantic import BaseModel, SecretStr

from rebaser_client.client import connect
from rebaser_client.errors import ReadRefused
from rebaser_core.ids import ChangeSet
from rebaser_server.commands import cli
from rebaser_server.ops import endpoint
from rebaser_server.runtime.ports import free_port
from rebaser_server.settings import settings as types
from rebaser_server.settings.redaction import redact_text
from rebaser_server.settings.settings import Settings
from rebaser_server.telemetry import logs
from tests.helpers.batches import Batch, new_id, put
from tests.helpers.command_line import run_command
from tests.helpers.deployment import SCALED, Daemon, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.fork_server import Fork, StandardStreams
from tests.helpers.graph_builder import children as started_by
from tests.helpers.nats_process import NatsServer, running


def hush(name: str) -> str:
    """A secret that says where it was planted."""
    return f"hush-{name}-hush"


SPARK_CONF = {
    "spark.hadoop.fs.s3a.secret.key": hush("s3a"),
    "spark.hadoop.fs.azure.account.key.acct": hush("azure"),
    "spark.hadoop.fs.azure.sas.fixed": hush("sas"),
    "spark.hadoop.fs.client.credential": hush("credential"),
    "spark.hadoop.proxy": f"http://me:{hush('proxy')}@127.0.0.1:1",
    "spark.driver.extraJavaOptions": f"-XX:-UsePerfData -Djavax.net.ssl.keyPass={hush('java')}",
}
STORE_OPTIONS = {
    "aws_secret_access_key": hush("store-key"),
    "aws_session_token": hush("store-token"),
    "endpoint": f"http://me:{hush('endpoint')}@127.0.0.1:1",
}
PLANTED = {
    "LINEAGE__TARGET": f"http://me:{hush('lineage')}@127.0.0.1:1/lineage",
    "LINEAGE__TOKEN": hush("lineage-token"),
    "NATS__PASSWORD": hush("nats-password"),
    "OPS__TOKEN": hush("ops-token"),
    "OPS__TOKENS": f"ada operator {hush('ops-tokens')}",
    "SPARK__CONF": json.dumps(SPARK_CONF),
    "STORE__OPTIONS": json.dumps(STORE_OPTIONS),
}
PROGRAMS = ("/java", "worker_daemon", "local_worker")
ELSEWHERE = {
    "NATS__URL": f"nats://{hush('url-user')}:{hush('url-password')}@127.0.0.1:1",
    "NATS__TOKEN": hush("nats-token"),
    "NATS__MONITORING": f"http://me:{hush('monitoring')}@127.0.0.1:1",
    "SPARK__MASTER": f"sc://127.0.0.1:1/;token={hush('remote')}",
    "STORE__ROOT": f"s3://me:{hush('root')}@bucket/path",
}
"""Settings that exclude one of those, or that a daemon cannot work with."""


def wide(width: int) -> Batch:
    """As many sums of one value."""
    source, add = new_id(), new_id()
    function = {"funcId": add, "name": "sum", "runtime": "builtin", "code": "sum"}
    inputs = {"values": [source]}
    sums = [{"valueId": new_id(), "funcId": add, "inputs": inputs} for _ in range(width)]
    return [{"putFunc": function}, put(source, 1), *({"putValue": each} for each in sums)]


def may_hold_secrets(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    """The settings of types that are masked where they are shown."""
    masked = {SecretStr, types.Url, types.Options}
    for name, kind in get_type_hints(model, include_extras=True).items():
        if name not in model.model_fields:
            continue
        variable = f"{prefix}{name.upper()}"
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from may_hold_secrets(kind, f"{variable}__")
        elif masked & {kind, *get_args(kind)}:
            yield variable


def test_a_secret_is_planted_in_every_setting_that_may_hold_one() -> None:
    """Here and below; a new setting of such a type has to be added."""
    assert {*may_hold_secrets()} == PLANTED.keys() | ELSEWHERE.keys()


SECRETS = re.findall(
    r"hush-[a-z0-9-]+?-hush", " ".join([*PLANTED.values(), *ELSEWHERE.values(), hush("file")])
)
Places = dict[str, bytes]
"""Where one may look → what is there."""


def leaks(places: Places) -> list[str]:
    return sorted(
        f"{secret}: {place}"
        for place, content in places.items()
        for secret in SECRETS
        if secret.encode() in content
    )


def processes(pid: int) -> Places:
    """The command lines of all that a process has started, and what they were given."""
    found: Places = {}
    for child in started_by(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            found[f"command of {child}"] = command
            found[f"environment of {command[:300]!r}"] = Path(f"/proc/{child}/environ").read_bytes()
        found |= processes(child)
    return found


def files(directory: Path) -> Places:
    found: Places = {}
    for path in directory.rglob("*"):
        if path.is_file() and path.name not in ("tokens", "nats.conf"):
            with suppress(FileNotFoundError):  # a daemon removes some meanwhile
                found[str(path)] = path.read_bytes()
    return found


PATHS = (
    *endpoint._STATIC, "/healthz", "/readyz", "/metrics", "/config", "/status",
    "/change-sets", "/dead-letters",
)  # fmt: skip


async def pages(url: str, about: ChangeSet) -> Places:
    """All that the ops endpoint shows to who may do everything."""
    ids = f"workspace={about.workspace_id}&changeSet={about.change_set_id}"
    readings = ("about", "values", "log", "discussion")
    paths = [*PATHS, *(f"/change-set/{reading}?{ids}" for reading in readings)]
    found: Places = {}
    headers = {"Authorization": f"Bearer {hush('ops-tokens')}"}
    async with ClientSession(url, headers=headers, timeout=ClientTimeout(30)) as session:
        for path in paths:
            async with session.get(path) as answer:
                found[path] = str(answer.headers).encode() + await answer.read()
        async with session.get("/events") as answer:
            found["/events"] = await answer.content.readuntil(b"\n\n")
    return found


async def spark_pages(port: int) -> Places:
    """What Spark's own pages show to everybody."""
    found: Places = {}
    async with ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.get("/api/v1/applications") as answer:
            [application] = await answer.json()
        of_it = f"/api/v1/applications/{application['id']}"
        parts = ("environment", "jobs", "stages", "sql", "executors")
        paths = ["/jobs/", "/stages/", "/SQL/", "/environment/", "/executors/"]
        for path in [*paths, *(f"{of_it}/{part}" for part in parts)]:
            async with session.get(path) as answer:
                found[path] = await answer.read()
    assert b"spark.hadoop.fs.s3a.secret.key" in found[f"{of_it}/environment"], (
        "masked, not left out"
    )
    return found


def commands(variables: Mapping[str, str]) -> Places:
    """What commands print that show or try out settings."""
    found: Places = {}
    for words in (
        ["settings"],
        ["settings", "--json"],
        ["doctor", "--all"],
        ["workspaces", "list"],
    ):
        done = run_command(words, {f"REBASER_{name}": value for name, value in variables.items()})
        found[" ".join(words)] = f"{done.out}{done.err}".encode()
    return found


@pytest.mark.long
@pytest.mark.spark
async def test_no_secret_shows_while_a_daemon_works(tmp_path: Path) -> None:
    """Not in processes, on pages, in logs, event logs, files and output of commands."""
    authorization = f"authorization {{ user: me, password: {hush('nats-password')} }}"
    tokens, events, state = (tmp_path / name for name in ("tokens", "events", "state"))
    tokens.write_text(f"eve viewer {hush('file')}\n")
    events.mkdir()
    port = free_port()
    conf = SPARK_CONF | {
        "spark.ui.enabled": "true", "spark.ui.port": str(port), "spark.logConf": "true",
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": str(events),
        "spark.eventLog.compress": "false",
    }  # fmt: skip
    with running(NatsServer(tmp_path / "nats", authorization)) as nats:
        variables = SCALED | PLANTED | {
            "NATS__URL": nats.url, "NATS__USER": "me", "OPS__TOKENS_FILE": str(tokens),
            "OPS__PORT": "0", "STORE__ROOT": str(tmp_path / "store"), "SPARK__MASTER": "local[2]",
            "SPARK__CONF": json.dumps(conf), "SPARK__STATE_DIRECTORY": str(state),
            "SPARK__MIN_AFFECTED": "5", "LOG_LEVEL": "debug",
        }  # fmt: skip
        daemon = Daemon("daemon", tmp_path, variables)
        try:
            await daemon.ready()
            [change_set] = new_change_sets(1)
            async with connect(nats.url, user="me", password=hush("nats-password")) as client:
                for width in (1, 20):  # in a child process, and on Spark
                    await client.change_set(*change_set).enqueue(wide(width), wait="computed")
            places = processes(daemon.process.pid)
            [started] = daemon.said("ops endpoint started")
            places |= await pages(started["url"], change_set) | await spark_pages(port)
            places |= await asyncio.to_thread(commands, variables)
            places |= files(tmp_path)
        finally:
            daemon.kill()
    children = "".join(place for place in places if place.startswith("environment"))
    assert all(program in children for program in PROGRAMS), children
    assert leaks(places) == []


async def test_the_nats_server_of_rebaser_up_gets_no_secret(tmp_path: Path) -> None:
    """Neither on its command line nor in its environment."""
    settings = {name: value for name, value in PLANTED.items() if name.startswith("OPS__")}
    settings |= {"SPARK__WARM": "false", "OPS__PORT": "0", "SPARK__CONF": PLANTED["SPARK__CONF"]}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REBASER_")}
    environment |= {f"REBASER_{name}": value for name, value in settings.items()}
    log = tmp_path / "log"
    streams = StandardStreams(tmp_path, log, log)
    up = Fork("up", "--data", "data", "--port", "-1", environment=environment, streams=streams)
    try:
        await eventually(lambda: b"nats-server" in b"".join(processes(up.pid).values()))
        assert leaks(processes(up.pid)) == []
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait()


async def test_no_secret_shows_where_nothing_answers(tmp_path: Path) -> None:
    """Not in errors of NATS's monitoring and of a store that is away, whoever gets them."""
    options = {"aws_access_key_id": "me", "aws_region": "here", "allow_http": "true"}
    options |= {"max_retries": "0"} | STORE_OPTIONS
    authorization = f"authorization {{ token: {hush('nats-token')} }}"
    with running(NatsServer(tmp_path / "nats", authorization)) as nats:
        variables = SCALED | ELSEWHERE | {
            "NATS__URL": nats.url, "OPS__PORT": "0", "OPS__TOKENS": PLANTED["OPS__TOKENS"],
            "STORE__ROOT": "s3://bucket/path", "STORE__OPTIONS": json.dumps(options),
        }  # fmt: skip
        del variables["SPARK__MASTER"]
        daemon = Daemon("daemon", tmp_path, variables)
        places: Places = {}
        try:
            await daemon.ready()
            [change_set] = new_change_sets(1)
            async with connect(nats.url, token=hush("nats-token")) as client:
                with pytest.raises(ReadRefused) as refused:
                    await client.change_set(*change_set).values()
            places["answer"] = str(refused.value).encode()
            [started] = daemon.said("ops endpoint started")
            places |= await pages(started["url"], change_set)
            places |= await asyncio.to_thread(commands, variables)
        finally:
            daemon.kill()
        places |= files(tmp_path)
    assert leaks(places) == []


@pytest.mark.parametrize("form", ["json", "pretty"])
def test_no_secret_shows_in_a_traceback(
    form: logs.LogFormat,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither in the log nor in a crash report, whatever a library says of its URL."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    query = f"?sv=2&sig={hush('root')}"
    logs.configure("a", form, mask=redact_text)
    try:
        try:
            raise OSError(f'GET "http://me:{hush("root")}@away:1/b{query}" failed')
        except OSError as error:
            raise RuntimeError("the store is away") from error
    except RuntimeError as error:
        structlog.get_logger().exception("round failed", seen=[f"//x?token={hush('root')}"])
        cli._report(error)
    finally:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()

    logged, _, reported = capsys.readouterr().err.rpartition("rebaser: a fault")
    places = files(tmp_path) | {"log": logged.encode(), "stderr": reported.encode()}
    assert len(places) == 3
    assert all(b"away:1/b?sv=2&sig=" in places[place] for place in places if place != "stderr")
    if form == "json":
        assert json.loads(logged)["event"] == "round failed"
    assert leaks(places) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"NATS__URL": f"nats://me:{hush('root')}@127.0.0.1:no-port"},
        {"NATS__URL": ELSEWHERE["NATS__URL"]},
        {"NATS__PASSWORD": hush("root")},
        {"NATS__TOKEN__X": hush("root")},
        {"NATS": json.dumps({"token": hush("root"), "tokens": hush("root")})},
        {"OPS__TOKENS": f"ada {hush('root')} operator"},
        {"OPS__TOKENS": hush("root")},
        {"STORE__ROOT": ELSEWHERE["STORE__ROOT"]},
        {"STORE__OPTIONS": f'{{"secret": "{hush("root")}"'},
        {"SPARK__CONF": json.dumps({"secret": {"secret": hush("root")}})},
        {"SPARK__CONF": json.dumps({"secret": hush("root"), "spark.cores.max": 5})},
    ],
)  # fmt: skip
def test_no_secret_shows_of_settings_that_are_wrong(wrong: dict[str, str]) -> None:
    """The error names the setting."""
    done = run_command(["queue"], {f"REBASER_{name}": value for name, value in wrong.items()})

    assert done.code != 0
    assert leaks({"error": f"{done.out}{done.err}".encode()}) == []
