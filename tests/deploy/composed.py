"""deploy/compose.yaml, run without a Docker engine.

Each service runs as the file says, in a container of its own with its address and the names of
the others, from the images that `make images` built. Images that cannot be had here have a
stand-in, the same program from a package; Grafana has none.
"""

import json
import os
import re
import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.deploy.containers import Container, Image, Spec
from tests.deploy.manifests import DEPLOY, compose
from tests.deploy.network import Network
from tests.helpers.nats_process import nats_server_binary

THIN: Final = Image("localhost/rebaser:thin")
LEFT_OUT: Final = ("grafana",)
SECRETS: Final = dict(
    re.findall(r"^(\w+)=(.*)$", (DEPLOY / "example.env").read_text(), re.MULTILINE)
)
AGREED: Final = 120.0  # seconds for what becomes true by itself


def stand_in(image: str) -> Spec | None:
    """The same program in an image of ours, run as the image that it stands for runs it."""
    program = image.partition(":")[0].rpartition("/")[2]
    if program == "nats":
        binary = Path(nats_server_binary()).resolve()
        return Spec(
            THIN, ["/usr/bin/nats-server"], [], mounts=[(binary, "/usr/bin/nats-server", True)]
        )
    if program == "prometheus" and (found := shutil.which(program)):
        mounts = [(Path(found).resolve(), "/bin/prometheus", True)]
        nobody = (65534, 65534)
        start = ["/bin/prometheus", "--storage.tsdb.path=data/"]  # Debian's default is another
        return Spec(THIN, start, [], mounts=mounts, user=nobody, directory="/prometheus")
    return None


def spec_of(image: str) -> Spec:
    known = stand_in(image)
    if known is not None:
        return known
    ours = Image(f"localhost/{image}")
    config = ours.config()
    user, _, group = config["User"].partition(":")
    return Spec(
        ours,
        config["Entrypoint"],
        config["Cmd"],
        environment=dict(each.split("=", 1) for each in config["Env"]),
        user=(int(user), int(group)),
        directory=config["WorkingDir"],
        health=config["Healthcheck"]["Test"][1:],
    )


def composed(told: dict[str, Any], volumes: Path) -> Spec:
    """As a service says that its image is to be run."""
    spec = spec_of(told["image"])
    spec.entrypoint = told.get("entrypoint", spec.entrypoint)
    spec.command = told.get("command", spec.command)
    spec.environment |= {n: filled_in(v) for n, v in told.get("environment", {}).items()}
    spec.read_only, spec.tmpfs = told.get("read_only", False), told.get("tmpfs", [])
    if told["image"] != "nats:2.12-alpine":  # its check is a program of that image
        spec.health = told.get("healthcheck", {}).get("test", ["CMD", *(spec.health or [])])[1:]
    spec.capabilities = told.get("cap_drop") != ["ALL"]
    for volume in told.get("volumes", []):
        name, there, *mode = volume.split("#")[0].strip().split(":")
        here = DEPLOY / name if name.startswith(".") else volumes / name
        if not here.exists():  # as the directory of the image that it is mounted over
            here.mkdir()
            os.chown(here, *spec.user)
        spec.mounts.append((here, there, mode == ["ro"]))
    for secret in told.get("secrets", []):
        file = volumes / secret
        file.write_text(SECRETS[compose()["secrets"][secret]["environment"]])
        spec.mounts.append((file, f"/run/secrets/{secret}", True))
    return spec


def filled_in(text: str) -> str:
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: SECRETS[found[1]], text)


@contextmanager
def up(net: Network, directory: Path) -> Iterator[dict[str, list[Container]]]:
    """All services, begun in the order in which they depend on each other."""
    services = compose()["services"]
    running: dict[str, list[Container]] = {}
    with ExitStack() as stack:
        for name in ("nats", "spark", "rebaser", "prometheus"):
            for number in range(services[name].get("deploy", {}).get("replicas", 1)):
                spec = composed(services[name], directory)
                place = net.join(name)
                began = Container(f"rebaser-{name}-{number + 1}", spec, place, directory)
                stack.callback(began.remove)
                running.setdefault(name, []).append(began)
            if name == "nats":
                answered(f"http://{net.names[name][0]}:8222/healthz", began)
            elif name == "spark":
                began.healthy()
        yield running


def answered(url: str, by: Container) -> Any:
    """What is there, once there is something."""
    until = time.monotonic() + AGREED
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
                return json.load(answer)
        except OSError:
            if time.monotonic() > until or by.is_over:
                raise RuntimeError(by.log.read_text()) from None
            time.sleep(0.2)


def operated(net: Network, directory: Path, *command: str) -> str:
    """`docker compose run --rm -e … rebaser COMMAND`, as docs/deployment.md has it."""
    told = compose()["services"]["rebaser"]
    spec = composed(told, directory)
    spec.command = [*command]
    spec.environment |= {
        "REBASER_NATS__USER": "operator",
        "REBASER_NATS__PASSWORD": SECRETS["NATS_OPERATOR_PASSWORD"],
        "REBASER_NATS__INBOX_PREFIX": "_INBOX.operator",
    }
    container = Container(f"rebaser-run-{command[0]}", spec, net.join("run"), directory)
    try:
        code = container.ended()
        assert code == 0, container.log.read_text()
        return container.log.read_text().strip()
    finally:
        container.remove()


def of_the_daemon(net: Network, directory: Path) -> Container:
    """The daemon's own image in the place of the thin ones, with Spark and its JVM in it."""
    services = compose()["services"]
    spark = services["spark"]
    told = services["rebaser"] | {"image": spark["image"], "tmpfs": spark["tmpfs"]}
    del told["environment"]["REBASER_SPARK__MASTER"]
    return Container("rebaser-daemon", composed(told, directory), net.join("daemon"), directory)
