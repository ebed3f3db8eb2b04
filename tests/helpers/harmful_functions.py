"""Functions that change what their process has once, and functions whose results would show it."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.run import Executor
from rebaser_server.compute.work_unit import CallLimits, WorkUnit
from tests.helpers.graph_builder import install
from tests.helpers.work_units import unit_from_rows

_CODE = '''"""For tests."""

import asyncio, builtins, decimal, faulthandler, gc, json, locale, math
import multiprocessing, os, random, resource, signal, socket, subprocess, sys
import threading, time, warnings

import cbor2
import numpy as np


# What others would feel.

def sound_division(x): return str(decimal.Decimal(x) / decimal.Decimal(3))
def sound_rounding(x): return str(decimal.Decimal("2.665").quantize(decimal.Decimal("0.01")))
def sound_overflow(x): return str(np.float64(1e308) * 10 * x)
def sound_array(x): return str(np.array([x / 3]))
def sound_recursion(x): return sound_recursion(x + 1) if x < 300 else x
def sound_json(x): return json.dumps({"x": len([x, math.sqrt(x)])})
def sound_time(x): return time.strftime("%H %Z", time.localtime(x))
def sound_file(x):
    with open(os.devnull) as file: return file.read()
def sound_digits(x): return str(10 ** 5000)
def sound_process(x): return subprocess.run(["/bin/true"]).returncode
def sound_thread(x):
    seen = []
    thread = threading.Thread(target=seen.append, args=(x,))
    thread.start()
    thread.join()
    return seen
def sound_loop(x):
    async def run(): return x
    return asyncio.run(run())
def sound_warning(x):
    warnings.warn("for tests", UserWarning)
    return x
def sound_state(x):
    return {
        "directory": os.getcwd(),
        "environment": os.environ.get("REBASER_HARMED", "none"),
        "path": len(sys.path),
        "signal": str(signal.getsignal(signal.SIGTERM)),
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "timer": signal.getitimer(signal.ITIMER_PROF)[1],
        "locale": locale.setlocale(locale.LC_ALL),
        "collects": [gc.isenabled(), *gc.get_threshold()],
        "limit": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "core": list(resource.getrlimit(resource.RLIMIT_CORE)),
        "trace": sys.gettrace() is None and sys.getprofile() is None,
        "interval": sys.getswitchinterval(),
        "fault": faulthandler.is_enabled(),
        "socket": socket.getdefaulttimeout(),
        "mask": [os.umask(0o22), os.umask(0o22)][1],
        "modules": sys.modules["json"] is json,
        "output": sys.stdout is sys.__stdout__ and not sys.stdout.closed,
        "hook": sys.excepthook is sys.__excepthook__,
    }


# What changes a process.

def sets_precision(x):
    decimal.getcontext().prec = 3
    return x
def sets_rounding(x):
    decimal.getcontext().rounding = decimal.ROUND_UP
    return x
def sets_default_context(x):
    decimal.DefaultContext.prec = 4
    decimal.DefaultContext.traps[decimal.Inexact] = True
    return x
def sets_errors(x):
    np.seterr(all="raise")
    np.set_printoptions(precision=1)
    return x
def sets_recursion(x):
    sys.setrecursionlimit(120)
    return x
def sets_zone(x):
    os.environ["TZ"] = "Asia/Kathmandu"
    time.tzset()
    return x
def sets_directory(x):
    os.chdir("/")
    return x
def sets_environment(x):
    os.environ["REBASER_HARMED"] = "yes"
    os.environ.pop("PATH", None)
    return x
def sets_paths(x):
    sys.path.insert(0, "/nowhere")
    sys.path_hooks = []
    return x
def sets_modules(x):
    sys.modules = dict(sys.modules, json=None)
    return x
def sets_handlers(x):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return x
def sets_timers(x):
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.setitimer(signal.ITIMER_PROF, 1000, 1000)
    faulthandler.cancel_dump_traceback_later()
    return x
def sets_warnings(x):
    warnings.simplefilter("error")
    return x
def sets_collection(x):
    gc.disable()
    gc.set_threshold(7)
    return x
def sets_limits(x):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (9, hard))
    return x
def sets_tracing(x):
    sys.setprofile(lambda *_: None)
    sys.setswitchinterval(1)
    return x
def sets_output(x):
    sys.stdout = sys.stderr = None
    sys.excepthook = None
    return x
def sets_builtins(x):
    builtins.len = lambda _: 7
    builtins.harmed = True
    return x
def sets_function(x):
    math.sqrt = json.dumps = str
    return x
def sets_locale(x):
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    return x
def sets_mask(x):
    os.umask(0)
    return x
def sets_digits(x):
    sys.set_int_max_str_digits(0)
    return x
def sets_seeds(x):
    random.seed(1)
    np.random.seed(1)
    return x
def sets_fault_handler(x):
    (faulthandler.disable if faulthandler.is_enabled() else faulthandler.enable)()
    return x
def sets_socket_timeout(x):
    socket.setdefaulttimeout(0.001)
    return x
def sets_policy(x):
    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self): raise OSError
    asyncio.set_event_loop_policy(Policy())
    return x
def closes_output(x):
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
    os.close(1)
    return x
def prints(x):
    print("no answer" * 100, flush=True)
    return x
def reads_input(x): return sys.stdin.read()


# What leaves processes.

def leaves_child(x):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    return x
def returns_twice(x):
    os.fork()
    return x
def leaves_program(x):
    subprocess.Popen(["/bin/sleep", "600"])
    return x
def leaves_daemon(x):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    return x


# What leaves more, or ends its process.

def leaves_thread(x):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return x
def leaves_wild_thread(x):
    def run():
        while True:
            os.chdir("/")
            sys.setrecursionlimit(100)
            time.sleep(0.0001)
    threading.Thread(target=run, daemon=True).start()
    return x
KEPT = []
def leaks_files(x):
    while True:
        try:
            KEPT.append(open(os.devnull))
        except OSError:
            return x
def lowers_limits(x):
    resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return x
def closes_all(x):
    os.closerange(3, 1024)
    return x
def replaces_all(x):
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3, 64):
        if number != null:
            os.dup2(null, number)
    return x
def exits_at_once(x): os._exit(0)
def crashes(x): os.abort()
def leaves_pool(x):
    KEPT.append(multiprocessing.get_context("fork").Pool(2))
    return x
def crashes_after_fork(x):
    leaves_child(x)
    os.abort()
def breaks_library(x):
    cbor2.dumps = None
    return x
def breaks_builtins(x):
    for name in ("len", "type", "isinstance", "min", "max", "list", "zip", "range", "bytes"):
        setattr(builtins, name, None)
    return x
'''

_ENDLESS = '''"""For tests: functions that do not return, whatever interrupts them."""

import faulthandler, os, signal, sys, threading, time

def endless_catching(x):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
def endless_finally(x):
    try:
        while True:
            pass
    finally:
        return endless_catching(x)
def endless_library(x): return sum(range(10 ** 15))
def endless_disarming(x):
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    faulthandler.cancel_dump_traceback_later()
    faulthandler.dump_traceback_later(3600)
    return sum(range(10 ** 15))
def endless_thread(x):
    thread = threading.Thread(target=endless_catching, args=(x,))
    thread.start()
    while True:
        try:
            thread.join()
        except BaseException:
            pass
class Endless(Exception):
    def __str__(self): return endless_catching(self)
def endless_error(x): raise Endless
'''

_NAMES = [
    line.removeprefix("def ").partition("(")[0]
    for line in (_CODE + _ENDLESS).splitlines()
    if line.startswith("def ")
]
ENDLESS = [name for name in _NAMES if name.startswith("endless_")]
SOUND = [name for name in _NAMES if name.startswith("sound_")]
QUICK = [name for name in SOUND if name != "sound_process"]
"""Sound functions that wait for no other process, which may be late on a busy machine."""
HARMFUL = [name for name in _NAMES if name not in {*SOUND, *ENDLESS}]


_LONG = 100
"""Seconds that no sound call takes, on a busy machine with the lowest priority either."""


def install_harmful(directory: Path) -> None:
    """Make them known to processes that have the directory in their `PYTHONPATH`."""
    others = {name: f"harmful:{name}" for name in _NAMES if name not in ENDLESS}
    install(directory, "harmful", _CODE, others)
    install(directory, "endless", _ENDLESS, {name: f"endless:{name}" for name in ENDLESS})


def unit_of(names: Sequence[str], limits: CallLimits = CallLimits(seconds=_LONG)) -> WorkUnit:
    """A unit with a value of each function, in this order."""
    functions = sorted(set(names))
    return unit_from_rows(
        [("python", name) for name in functions],
        [(n, [("x", None)]) for n in range(len(functions))],
        [
            (f"{n} {name}", functions.index(name), "pending", None, True, [-1])
            for n, name in enumerate(names)
        ],
        [("one", True, 1)],
        limits,
    )


async def compute(
    executor: Executor, names: Sequence[str], **limits: Any
) -> list[tuple[str, str, Any]]:
    """Name, status, and value or message of a value of each function, in one unit."""
    units = [unit_of(names, CallLimits(**{"seconds": _LONG, **limits}))]
    [outcome] = await executor.run(units)
    assert isinstance(outcome, UnitResult)
    return [(key.split()[1], status, data) for key, status, data in outcome.value_results]


async def require_sound_beside_hostile(executor: Executor, rounds: int) -> None:
    """Change sets are computed at once, some with hostile functions; sound values are as alone."""
    rng = random.Random(1)
    alone = {name: (await compute(executor, [name]))[0] for name in SOUND}
    for _ in range(rounds):
        hostile = [*rng.sample(SOUND, 2), *rng.choices(HARMFUL, k=rng.choice([1, 3]))]
        sound = rng.sample(SOUND, 5)
        names = rng.sample([hostile, sound], 2)

        found = await asyncio.wait_for(
            asyncio.gather(*(compute(executor, each) for each in names)), 4 * _LONG
        )

        for asked, results in zip(names, found, strict=True):
            assert [name for name, *_ in results] == asked
            kept = results if asked is sound else results[:2]
            assert kept == [alone[name] for name, *_ in kept], (kept, asked, names)


async def require_calls_end_at_their_limit(executor: Executor) -> None:
    """Show it of functions that catch all exceptions, and of those that switch signals off."""
    alone = await compute(executor, QUICK)

    results = await asyncio.wait_for(compute(executor, [*ENDLESS, *QUICK], seconds=0.4), 120)

    late = "it did not return within 0.4 s"
    assert results[: len(ENDLESS)] == [(name, "failed", late) for name in ENDLESS]
    assert results[len(ENDLESS) :] == alone
