"""Scale, `refresh`: what a refresh takes of the browser's main thread where there is much to show.

The answers are made up and differ each time in all lines: what a daemon takes to make them is
measured by `page`.
"""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from playwright.async_api import Browser, CDPSession, Page

from benchmarks.tables import MILLI, Table, median
from tests.helpers.browser import browsing
from tests.helpers.canned_pages import (
    NOW,
    OPERATOR,
    Answers,
    about,
    change_set,
    change_set_path,
    commit,
    dead_letter,
    edit,
    open_canned,
    picture,
    value,
    values,
)

LISTED: Final = 100
"""Rows that a daemon names of the values, commits and change sets."""
REBASERS: Final = 4
HELD: Final = 30
"""Change sets that a Rebaser names of those it holds."""
WITHIN: Final = 60.0
_SEEN: Final = """
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) console.debug(`${each.entryType} ${each.duration}`);
  }).observe({ entryTypes: ["measure", "longtask"] });
"""
_DRAWN: Final = "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"

Say = Callable[[str], None]


async def run(change_sets: int, lines: int, refreshes: int, say: Say) -> list[Table]:
    """Each page is refreshed so often, after one refresh that compiles its script."""
    turn = [0]
    answers = _answers(turn, change_sets, lines)
    table = Table(
        f"A refresh that finds all changed: {change_sets:,} change sets, {lines:,} lines (ms)",
        ("page", "main thread", "slowest", "answers to drawn", "longest task"),
        notes=[
            "Main thread: processor time of script, style, layout and paint, median and slowest.",
            "From the first request until all is shown: median.",
            "The longest task: of all refreshes, if above 50 ms, else 0.",
        ],
    )
    paths = {
        "front page": "",
        "updates": "updates",
        "deployment": "deployment",
        "change set": change_set_path() + "&head",
        "branch": change_set_path(),
        "operators": "operator",
    }
    async with browsing() as browser:
        for name, path in paths.items():
            say(f"refresh: {name}")
            kind = "head" if name == "change set" else "branch"
            its = {**answers, "change-set/about": lambda kind=kind: about(kind)}
            busy, waits, longest = await _refreshes(browser, path, its, turn, refreshes)
            most = MILLI * max(busy)
            table.rows.append([name, MILLI * median(busy), most, median(waits), longest])
    return [table]


async def _refreshes(
    browser: Browser, path: str, answers: Answers, turn: list[int], count: int
) -> tuple[list[float], list[float], float]:
    seen: asyncio.Queue[float] = asyncio.Queue()
    longest = [0.0]

    def hear(text: str) -> None:
        kind, _, duration = text.partition(" ")
        if kind == "measure":
            seen.put_nowait(float(duration))
        elif kind == "longtask":
            longest.append(float(duration))

    page = await open_canned(browser, path, answers, _SEEN)
    page.on("console", lambda message: hear(message.text))
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    busy, waits = [], []
    for number in range(count + 2):
        before = await _busy(session)
        await _refresh(page, turn)
        waited = await asyncio.wait_for(seen.get(), WITHIN)
        await page.evaluate(_DRAWN)
        if number < 2:  # the page opens, and compiles its script
            longest = longest[:1]
            continue
        waits.append(waited)
        busy.append(await _busy(session) - before)
    await page.close()
    return busy, waits, max(longest)


async def _refresh(page: Page, turn: list[int]) -> None:
    turn[0] += 1
    # Some pages have none: they follow events.
    await page.evaluate("document.onvisibilitychange?.()")


async def _busy(session: CDPSession) -> float:
    """Seconds for which the main thread has been busy."""
    metrics = (await session.send("Performance.getMetrics"))["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def _answers(turn: list[int], change_sets: int, lines: int) -> Answers:
    def difference() -> Any:
        rows = [edit(n, turn=turn[0], both=n < LISTED // 4) for n in range(lines)]
        graph = picture(5, 40, lines, turn=turn[0])
        families = {"rows": [_family(n, turn[0]) for n in range(LISTED)], "of": LISTED}
        return {
            "digest": str(turn[0]),
            "changes": rows,
            "computed": rows,
            "families": families,
            "graph": graph,
        }

    return {
        "identity": lambda: OPERATOR,
        "events": lambda: f"retry: 500\ndata: {json.dumps(_status(turn, change_sets))}\n\n",
        "change-set/values": lambda: values(
            [value(f"net/{n}", str(turn[0])) for n in range(lines)], turn[0]
        ),
        "change-set/log": lambda: {"commits": [commit(turn[0] + n) for n in range(LISTED)]},
        "change-set/difference": difference,
        "change-set/discussion": lambda: {
            "onlookers": ["al"],
            "last": turn[0],
            "count": LISTED,
            "comments": [
                {"id": str(turn[0] + n), "at": NOW, "by": "ada", "text": "why?"}
                for n in range(LISTED)
            ],
        },
        "dead-letters": lambda: {"letters": [dead_letter(turn[0] + n) for n in range(50)]},
        "change-sets": lambda: {
            "count": change_sets + turn[0],
            "paused": [],
            "changeSets": [change_set(n, turn=turn[0]) for n in range(LISTED)],
        },
    }


def _family(number: int, turn: int) -> dict[str, Any]:
    """A name pattern whose sums, moves and histogram are others each turn."""
    names = [f"net/{number}/{n}" for n in range(3)]
    bins = [(number + turn + n) % 50 for n in range(12)]
    return {
        "pattern": f"net/{number}/*",
        "title": f"net/{number}/*",
        "size": 100,
        "failed": 0,
        "tables": False,
        "rows": None,
        "sides": [str(turn), str(turn + number)],
        "change": f"+{turn} %",
        "largest": [{"id": each, "name": each, "text": f"{each}: 1 → {turn}"} for each in names],
        "moves": {"bins": bins, "least": -1.0, "most": float(turn), "zero": 0.5},
    }


def _status(turn: list[int], change_sets: int) -> dict[str, Any]:
    turn[0] += 1
    now = datetime.now(UTC)
    ids = [{"workspace": f"{n % 20:026}", "changeSet": f"{n:026}"} for n in range(change_sets)]
    held = change_sets // REBASERS
    update = {"done": turn[0], "affected": 1_000, "since": NOW}
    rates = [
        {"at": int(now.timestamp()) - n, "requests": turn[0] + n % 7, "p50": 0.01, "p99": 0.1}
        for n in range(300)
    ]
    letters = [{**each, "at": now.isoformat(), "reason": "why"} for each in ids[:12]]
    return {
        "now": now.isoformat(),
        "answering": "0",
        "names": {each["workspace"]: "shop" for each in ids},
        "paused": [{**each, "since": NOW, "by": "ada", "reason": "why"} for each in ids[:20]],
        "queues": {
            "requests": change_sets + turn[0],
            "oldest_age": 1.0,
            "tasks_waiting": change_sets,
            "tasks_in_hand": change_sets,
            "dead_letters": 50,
            "last_request": 1,
            "latest_dead": letters,
            "change_sets_waiting": change_sets,
            "deepest": [{**each, "requests": turn[0], "oldestSeconds": 1.0} for each in ids[:12]],
        },
        "rebasers": [
            {
                "instance": str(n),
                "version": "1",
                "started": NOW,
                "slots": {"busy": held, "free": 8},
                "lagSeconds": 0.01,
                "rates": rates,
                "failures": [{**each, "what": "dvu"} for each in letters],
                "holdings": [
                    {
                        **each,
                        "since": NOW,
                        "requests": turn[0],
                        "idleSeconds": 0.1,
                        "update": update,
                    }
                    for each in ids[n * held :][:HELD]
                ],
            }
            for n in range(REBASERS)
        ],
    }
