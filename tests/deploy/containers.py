"""Images that `buildah` built, run by `runc` as a container engine would: needs root and both."""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.deploy.network import GATEWAY, Place

_RUNTIME: Final = "runc"
_NAMESPACES: Final = ("pid", "ipc", "uts", "mount")
_SYSTEM: Final = (
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {
        "destination": "/dev",
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
    },
    {
        "destination": "/dev/shm",  # noqa: S108
        "type": "tmpfs",
        "source": "shm",
        "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"],
    },
)


def buildah(*words: str) -> str:
    return subprocess.run(["buildah", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


@dataclass(frozen=True)
class Image:
    """What an image says of how it is run."""

    name: str

    def config(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", self.name))
        config: dict[str, Any] = told["Docker"]["config"]
        return config


@dataclass
class Spec:
    """How one container is run, in the words of Compose."""

    image: Image
    entrypoint: list[str]
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    user: tuple[int, int] = (0, 0)
    directory: str = "/"
    mounts: list[tuple[Path, str, bool]] = field(default_factory=list)
    """Here, there, and whether it is read-only."""
    tmpfs: list[str] = field(default_factory=list)
    read_only: bool = False
    capabilities: bool = True
    health: list[str] | None = None


class Container:
    """One that was started, and its output; `stop` it, or it goes on."""

    def __init__(self, name: str, spec: Spec, place: Place, directory: Path) -> None:
        self.name = name
        self.spec = spec
        self.log = directory / f"{name}.log"
        bundle = directory / name
        bundle.mkdir()
        self._working = buildah("from", "--pull-never", "--name", name, spec.image.name).strip()
        root = buildah("mount", self._working).strip()
        (bundle / "resolv.conf").write_text(f"nameserver {GATEWAY}\noptions ndots:0\n")
        (bundle / "hosts").write_text(f"127.0.0.1 localhost\n{place.address} {name}\n")
        config = self._config(root, place.namespace, bundle)
        (bundle / "config.json").write_text(json.dumps(config))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [_RUNTIME, "run", "--bundle", bundle, name], stdout=log, stderr=log
            )

    def _config(self, root: str, namespace: Path, bundle: Path) -> dict[str, Any]:
        spec = self.spec
        mounts: list[dict[str, Any]] = [*_SYSTEM]
        for entry in spec.tmpfs:
            path, _, options = entry.partition(":")
            how = ["nosuid", "nodev", "mode=1777", *filter(None, options.split(","))]
            how += [] if "exec" in how else ["noexec"]
            mounts.append({"destination": path, "type": "tmpfs", "source": "tmpfs", "options": how})
        files = [(bundle / n, f"/etc/{n}", True) for n in ("resolv.conf", "hosts")]
        for here, there, read_only in [*spec.mounts, *files]:
            options = ["rbind", "ro" if read_only else "rw"]
            mounts.append(
                {"destination": there, "type": "bind", "source": str(here), "options": options}
            )
        # Docker's own, unless they are dropped; a user that is not root has none in effect.
        capable = ["CAP_CHOWN", "CAP_SETUID", "CAP_SETGID", "CAP_DAC_OVERRIDE"]
        held = capable if spec.capabilities and spec.user[0] == 0 else []
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": spec.user[0], "gid": spec.user[1]},
                "args": [*spec.entrypoint, *spec.command],
                "env": [f"{name}={value}" for name, value in spec.environment.items()],
                "cwd": spec.directory,
                "noNewPrivileges": True,
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), held),
            },
            "root": {"path": root, "readonly": spec.read_only},
            "hostname": self.name,
            "mounts": mounts,
            "linux": {
                "namespaces": [
                    *({"type": kind} for kind in _NAMESPACES),
                    {"type": "network", "path": str(namespace)},
                ]
            },
        }

    def execute(self, *command: str) -> int:
        """Run a command in it, as it is; its exit code."""
        env = [word for n, v in self.spec.environment.items() for word in ("--env", f"{n}={v}")]
        done = subprocess.run(
            [_RUNTIME, "exec", *env, self.name, *command],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode

    def healthy(self, within: float = 90) -> float:
        """Seconds until its health check was content."""
        assert self.spec.health is not None
        began = time.monotonic()
        while self.execute(*self.spec.health):
            assert not self.is_over, self.log.read_text()
            assert time.monotonic() < began + within, self.log.read_text()
            time.sleep(0.2)
        return time.monotonic() - began

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def ended(self, within: float = 60) -> int:
        return self._process.wait(within)

    def stop(self, how: signal.Signals = signal.SIGTERM, within: float = 40) -> tuple[int, float]:
        """Ask it to end as an engine does; its exit code, and after how many seconds."""
        began = time.monotonic()
        if not self.is_over:
            subprocess.run([_RUNTIME, "kill", self.name, str(int(how))], check=False)
        try:
            code = self._process.wait(within)
        except subprocess.TimeoutExpired:
            subprocess.run([_RUNTIME, "kill", self.name, str(int(signal.SIGKILL))], check=False)
            code = self._process.wait(10)
        return code, time.monotonic() - began

    def remove(self) -> None:
        self.stop(signal.SIGKILL)
        buildah("umount", self._working)
        buildah("rm", self._working)


def must_be_root() -> None:
    if os.geteuid():
        raise SystemExit("containers without an engine take root")
