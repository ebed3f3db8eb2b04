"""A worker of services, from settings: what `rebaser serve --app` and `Service.run` run."""

import asyncio
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from rebaser_core.errors import RebaserError
from rebaser_core.streams import Streams
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.errors import Interrupted
from rebaser_server.files import IN_NATS
from rebaser_server.handlers.application import HandlerApplication
from rebaser_server.handlers.service import Service
from rebaser_server.ops.service_presentation import ServicePresentation
from rebaser_server.processor.outcomes import Notifier
from rebaser_server.runtime.memory import collect_rarely, exempt_modules
from rebaser_server.runtime.tasks import Shutdown, background, on_signals, switch_often
from rebaser_server.service import composition
from rebaser_server.settings.settings import Settings

log: Final = structlog.get_logger()

_FOR_EVER: Final = 1 << 62
"""Failed attempts at sending calls after which they would be dropped: that never happens."""
_LOOK_EVERY: Final = 0.5
"""Seconds between two looks whether a file changed."""


class AppNotFound(RebaserError):
    """The module or the service that was named cannot be had; the message says why."""


def find_services(app: str) -> list[Service]:
    """Return the services that `module:name` names: one, or a list of them.

    The folder that the process was started in is looked in, too.

    Raises:
        AppNotFound: there is none.
    """
    module_name, _, name = app.partition(":")
    if not module_name:
        raise AppNotFound(f"--app {app}: give MODULE:NAME, as shop:orders")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise AppNotFound(f"--app {app}: {error}; it is looked for in {Path.cwd()}, too") from error
    except RebaserError:  # as of a `Service` that is declared wrongly
        raise
    except Exception as error:  # others' code, which may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, SyntaxError) else f" ({last.filename}:{last.lineno})"
        raise AppNotFound(f"--app {app}: {type(error).__name__}: {error}{place}") from error
    if not name:
        found = [each for each in vars(module).values() if isinstance(each, Service)]
        if not found:
            raise AppNotFound(f"--app {app}: {module_name} has no Service")
        return list(dict.fromkeys(found))
    if not hasattr(module, name):
        services = [key for key, each in vars(module).items() if isinstance(each, Service)]
        known = f"; there is {', '.join(services)}" if services else ""
        raise AppNotFound(f"--app {app}: {module_name} has no {name}{known}")
    found = getattr(module, name)
    found = [found] if isinstance(found, Service) else found
    if not isinstance(found, list | tuple) or not all(isinstance(each, Service) for each in found):
        raise AppNotFound(f"--app {app}: {name} is no Service, and no list of them")
    return list(found)


def run(services: Sequence[Service]) -> None:
    from rebaser_server.settings.redaction import redact_text  # noqa: PLC0415 - see `commands.serve`
    from rebaser_server.telemetry import logs  # noqa: PLC0415

    settings = Settings()
    logs.configure(settings.instance_id, level=settings.log_level, mask=redact_text)
    asyncio.run(_until_signal(settings, services))


async def _until_signal(settings: Settings, services: Sequence[Service]) -> None:
    shutdown = Shutdown()
    with on_signals(shutdown):
        await serve(settings, services, shutdown)


async def serve(
    settings: Settings,
    services: Sequence[Service],
    shutdown: Shutdown,
    ready: Callable[[str | None], None] = lambda _: None,
) -> None:
    """Serve until `shutdown`. A cancellation drops the calls in hand, which are made again.

    Raises:
        ServiceMisused: a service is declared as it cannot work; nothing was started.
        NatsUnreachable, GraceExceeded: as `composition.serve`.
    """
    for service in services:
        service.prepare()
    by_name = {service.name: service for service in services}
    if len(by_name) < len(services):
        raise AppNotFound("two of the services have one name")
    settings = settings_of_worker(settings)
    switch_often()
    collect_rarely()
    log.info("serving", services=sorted(by_name))

    def make(streams: Streams, batches: BatchStore, _: Notifier) -> HandlerApplication:
        return HandlerApplication(streams, batches, by_name)

    begins = asyncio.Event()

    def is_ready(page: str | None) -> None:
        exempt_modules()
        ready(page)
        begins.set()

    async with background(composition.collect_garbage(begins)):
        await composition.serve(
            settings, make, shutdown, ready=is_ready, make_presentation=ServicePresentation
        )


def settings_of_worker(settings: Settings) -> Settings:
    """Return the settings with what a worker of services has in place of the defaults."""
    store = settings.store
    if "root" not in store.model_fields_set:  # NATS alone is needed
        store = store.model_copy(update={"root": IN_NATS})
    return settings.model_copy(update={"store": store, "dvu_max_attempts": _FOR_EVER})


async def reloading(arguments: Sequence[str], shutdown: Shutdown) -> None:
    """Run this program with these arguments, anew whenever one of its modules' files changes.

    At a shutdown the worker is stopped in order first.
    """
    command = sys.executable, "-m", "rebaser_server", *arguments
    with suppress(Interrupted):
        while True:
            # In a session of its own: Ctrl-C would reach it twice, and a second signal is no wait.
            child = await asyncio.create_subprocess_exec(*command, start_new_session=True)
            try:
                async with shutdown.interrupts():
                    changed = await _change(child)
                    if changed is None:
                        # It ended by itself, say for a mistake that the next change may mend.
                        log.warning("worker ended", exit_code=child.returncode)
                        changed = await _change(None)
            finally:
                if child.returncode is None:
                    child.terminate()
                await child.wait()
            log.info("reloading", changed=str(changed))


async def _change(child: asyncio.subprocess.Process | None) -> Path | None:
    """Return the file that changes next; None if the child ends before."""
    seen = dict(_stamps())
    while child is None or child.returncode is None:
        await asyncio.sleep(_LOOK_EVERY)
        for path, stamp in _stamps():
            if seen.get(path) != stamp:
                return path
    return None


def _stamps() -> Iterator[tuple[Path, int]]:
    """Yield Python's files below the folder that this was started in, and when they changed."""
    for folder, folders, names in os.walk("."):
        folders[:] = [each for each in folders if not each.startswith((".", "__"))]
        for name in names:
            if name.endswith(".py"):
                path = Path(folder, name)
                try:
                    yield path, path.stat().st_mtime_ns
                except OSError:
                    continue
