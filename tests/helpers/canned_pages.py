"""The pages of the ops endpoint in a browser, with made-up answers in place of a daemon's.

An answer can be as large as a test likes, and no daemon has to start.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final

from playwright.async_api import Browser, Page, Route

from tests.helpers.batches import new_id
from tests.helpers.paths import ROOT

STATIC: Final = ROOT / "rebaser_server" / "ops" / "static"
TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
HOME: Final = "http://rebaser.test/"
NOW: Final = "2026-11-22T00:00:00Z"

Answers = Mapping[str, Callable[[], Any]]
"""What is answered at a path; a text is an event for those who follow."""

MAY: Final = (
    *("replay", "pause", "resume", "cancel", "checkpoint", "recompute"),
    *("set-value", "take-theirs", "apply", "revert", "comment"),
)
OPERATOR: Final = {"name": "ada", "role": "operator", "may": MAY}


async def open_canned(browser: Browser, path: str, answers: Answers, script: str = "") -> Page:
    """The page at `path`; `script` runs before its own."""
    page = await browser.new_page()

    async def answer(route: Route) -> None:
        asked = route.request.url.removeprefix(HOME).partition("?")[0]
        if asked in answers:
            made = answers[asked]()
            if isinstance(made, str):
                await route.fulfill(body=made, content_type="text/event-stream")
            else:
                await route.fulfill(body=json.dumps(made), content_type="application/json")
            return
        name = asked if "." in asked else f"{asked or 'index'}.html"
        if "/" in name:  # the page of a change set by its name, and what it loads
            name = "change-set.html"
        body = (STATIC / name).read_text("utf-8")
        await route.fulfill(body=body, content_type=TYPES[PurePath(name).suffix])

    await page.context.route("**/*", answer)
    await page.add_init_script(script)
    await page.goto(HOME + path)
    return page


def change_set_path() -> str:
    """The address of a page of a change set."""
    return f"change-set?workspace={new_id()}&changeSet={new_id()}"


def edit(number: int, *, turn: int = 0, both: bool = False) -> dict[str, Any]:
    """A line of a branch's difference that is another each turn."""
    sides = {"head": str(number), "branch": str(number + turn + 1), "base": "1", "both": both}
    name = f"net/{number}"
    return {"id": f"{number:026}", "name": name, "what": "value", "family": "net/*", **sides}


def family(edits: list[dict[str, Any]]) -> dict[str, Any]:
    """The line of the edits' name pattern."""
    sides = ["", str(len({each["branch"] for each in edits}))]
    largest = [{"id": each["id"], "name": each["name"], "text": ""} for each in edits[:1]]
    found = {
        "size": len(edits),
        "largest": largest,
        "failed": 0,
        "tables": False,
        "change": "",
        "moves": None,
    }
    return {"pattern": "net/*", "title": "net/*", "sides": sides, **found}


def picture(columns: int, rows: int, in_all: int, *, turn: int = 0) -> dict[str, Any]:
    """A graph of so many edits, of which one is a conflict, and what follows from them."""
    nodes = [
        edit(100 * level + row, turn=turn)
        | {"level": level, "row": row, "edited": not level, "both": not level and not row}
        for level in range(columns)
        for row in range(rows)
    ]
    edges = [(place, place + rows) for place in range(len(nodes) - rows)]
    return {"nodes": nodes, "edges": edges, "inAll": in_all, "left": in_all - len(nodes)}


def about(kind: str = "branch") -> dict[str, Any]:
    """The record of a change set."""
    return {
        "workspaceId": "1".rjust(26, "0"),
        "id": "2".rjust(26, "0"),
        "workspace": "shop",
        "name": "sale",
        "kind": kind,
        "status": "open",
        "createdAt": NOW,
        "by": None,
        "head": new_id(),
        "problem": None,
    }


def value(name: str, text: str) -> dict[str, Any]:
    """A row of the values."""
    row = {"id": name.rjust(26, "0"), "name": name, "text": text, "func": None}
    return {**row, "status": "ok", "message": None}


def values(rows: list[dict[str, Any]], commit: int = 1) -> dict[str, Any]:
    """The answer to who asks for the values."""
    count = len(rows)
    groups = [
        {"family": row["name"], "count": 1, "statuses": {"ok": 1}, "values": [row]}
        for row in rows[:100]
    ]
    found = {"count": count, "inAll": count, "statuses": {"ok": count}, "failing": []}
    return {"commit": commit, "due": False, **found, "families": count, "groups": groups}


def commit(number: int) -> dict[str, Any]:
    """A row of the commits."""
    what = {"author": "ada", "computed": False, "updates": {"setValue": 1}}
    return {"commit": number, "time": NOW, **what, "outcome": "applied", "message": None}


def change_set(number: int, *, turn: int = 0) -> dict[str, Any]:
    """A row of the change sets."""
    ids = {"workspace": f"{turn:026}", "changeSet": f"{number:026}", "pausedSince": None}
    name = f"{turn}-{number}"
    names = {"address": f"shop/{name}", "workspaceName": "shop", "name": name}
    times = {"createdAt": NOW, "by": None, "edited": NOW}
    return {**names, **times, "kind": "branch", "status": "open", **ids}


def dead_letter(number: int) -> dict[str, Any]:
    """Another."""
    ids = {"workspace": new_id(), "changeSet": new_id()}
    return {"sequence": number, "at": NOW, "reason": "why", **ids}
