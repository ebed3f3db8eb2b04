"""What a refresh of the pages does to what is shown, in a real browser with made-up answers."""

import json
from typing import Any, Final

import pytest
from playwright.async_api import Browser, Page, expect

from tests.helpers.browser import Watched
from tests.helpers.canned_pages import (
    NOW,
    OPERATOR,
    about,
    change_set,
    change_set_path,
    commit,
    dead_letter,
    edit,
    family,
    open_canned,
    picture,
    value,
    values,
)
from tests.integration.test_change_set_page import require_readable

expect.set_options(timeout=60_000)
A4: Final = 718  # pixels between the margins of a sheet
WHITE: Final = "rgb(255, 255, 255)"
REFRESH: Final = "document.onvisibilitychange()"
TURN_AWAY: Final = """(state) => {
  Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
SPY_ON_EVENTS: Final = """
  window.sources = [];
  window.EventSource = class extends EventSource {
    constructor(address) {
      super(address);
      sources.push(this);
    }
  };
"""
WATCH: Final = """
  window.touched = new Set();
  new MutationObserver((records) => records.forEach(({ target }) => {
    const line = (target.closest ? target : target.parentElement).closest("tr");
    if (line?.isConnected) touched.add(line.dataset.key);
  })).observe(document.querySelector("main"), {
    subtree: true, childList: true, characterData: true, attributes: true });
"""


class Shop:
    """What a daemon would answer; the tests change it between refreshes."""

    def __init__(self) -> None:
        self.values = [value("net", "1"), value("tax", "2"), value("gross", "3")]
        self.discussion = {"onlookers": [], "last": 0, "count": 0, "comments": []}
        self.commits = [commit(2), commit(1)]
        self.edits = [edit(n, both=n < 2) for n in range(300)]
        self.digest = "d0"
        self.picture = picture(3, 2, 300)
        self.letters = [dead_letter(1), dead_letter(2)]
        self.sets = [change_set(n) for n in range(3)]

    def comment(self) -> dict[str, str]:
        row = {"id": "c2", "at": NOW, "by": "ada", "text": "yes\n<b>no</b>"}
        self.discussion = {
            "onlookers": ["al"],
            "last": 2,
            "count": 1,
            "comments": [row],
        }
        return {"said": "the comment is stored"}

    def answers(self) -> Any:
        return {
            "identity": lambda: OPERATOR,
            "change-set/about": about,
            "change-set/values": lambda: values(self.values, len(self.commits)),
            "change-set/discussion": lambda: self.discussion,
            "actions/comment": self.comment,
            "change-set/log": lambda: {"commits": self.commits},
            "change-set/difference": lambda: {
                "digest": self.digest,
                "changes": self.edits,
                "computed": self.edits,
                "families": {"rows": [family(self.edits)], "of": 1},
                "graph": self.picture,
            },
            "events": lambda: "retry: 60000\n\n",
            "dead-letters": lambda: {"letters": self.letters},
            "change-sets": lambda: {
                "count": len(self.sets),
                "paused": [],
                "changeSets": self.sets,
            },
        }


async def touched(page: Page) -> set[str]:
    return set(await page.evaluate("[...touched]"))


async def test_a_refresh_touches_only_the_rows_that_differ(browser: Browser) -> None:
    """Of thousands of lines those that are shown, and of these what changed."""
    shop = Shop()
    page = await open_canned(browser, change_set_path(), shop.answers())
    watched = Watched(page)
    await expect(page.locator("#editcount")).to_have_text("300")
    await expect(page.locator("#log tr")).to_have_count(2)
    await expect(page.locator("#effects tr")).to_have_count(21)
    await expect(page.locator("#edits tr").last).to_have_text("and 200 more: search for fewer")
    await page.evaluate(WATCH)

    shop.values[1] = value("tax", "2.5")
    shop.commits.insert(0, commit(3))
    shop.edits[5], shop.digest = edit(5, turn=1), "d1"
    await page.evaluate(REFRESH)

    await expect(page.locator("#digest")).to_contain_text("digest d1")
    await expect(page.locator("#found")).to_contain_text("commit 3")
    await expect(page.locator("#log tr")).to_have_count(3)
    changed = {value("tax", "")["id"], f"{5:026}", "3", "family net/*"}
    assert await touched(page) - {"1", "2"} == changed, "but for how long ago a commit was"
    assert not watched.complaints


async def test_a_table_that_differs_has_a_line_of_its_rows(browser: Browser) -> None:
    """Beside an edit with its other notes, and in place of the difference of numbers."""
    shop = Shop()
    shop.edits = [edit(0, both=True) | {"rows": "3 rows added, 0 removed"}]
    page = await open_canned(browser, change_set_path(), shop.answers())

    await expect(page.locator("#edits tr td").last).to_have_text(
        "3 rows added, 0 removed; head changed it, too; it was 1"
    )
    await expect(page.locator("#effects tr td").last).to_have_text("3 rows added, 0 removed")


async def test_the_focus_stays_with_its_row_and_goes_with_it(browser: Browser) -> None:
    """Enter then does to that one what its button says, and not to the one that took its place."""
    shop = Shop()
    page = await open_canned(browser, "letters", shop.answers())
    button = page.get_by_role("button", name="Replay dead letter 2")
    await button.focus()

    shop.letters = [dead_letter(4), dead_letter(2), dead_letter(1)]
    await page.evaluate(REFRESH)
    await expect(page.locator("#deadletters tr")).to_have_count(3)
    await expect(button).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text("dead letter 2 again")
    await page.keyboard.press("Escape")
    await expect(button).to_be_focused()

    shop.letters = [dead_letter(1)]
    await page.evaluate(REFRESH)
    await expect(page.locator("#deadletters tr")).to_have_count(1)
    assert await page.evaluate("document.activeElement.localName") == "body"


@pytest.mark.long
async def test_edits_and_effects_are_drawn_and_walked_through_by_arrow_keys(
    browser: Browser,
) -> None:
    """One node is in the order of the tab key, and keeps the focus when the graph is drawn anew."""
    shop = Shop()
    page = await open_canned(browser, change_set_path(), shop.answers())
    graph = page.get_by_role("group", name="Edits and effects as a graph")
    nodes = graph.get_by_role("link")
    await expect(nodes).to_have_count(6)
    await expect(page.locator("#effectsnote")).to_contain_text("294 more differ")
    both = graph.get_by_role("link", name="⚠ net/0 0 → 1, edited, and changed by head, too")
    await expect(both).to_contain_text("⚠ net/0")
    await both.focus()
    for key, name in [
        ("ArrowDown", "✎ net/1 "),
        ("ArrowRight", "net/101 "),
        ("ArrowRight", "net/201 "),
    ]:
        await page.keyboard.press(key)
        await expect(graph.get_by_role("link", name=name)).to_be_focused()
    assert await graph.locator("path.near").count() == 1
    assert await graph.locator('a[tabindex="0"]').count() == 1

    shop.picture, shop.digest = picture(3, 2, 6, turn=1), "d1"
    await page.evaluate(REFRESH)
    await expect(graph.get_by_role("link", name="net/201 201 → 203, computed")).to_be_focused()
    await expect(page.locator("#effectsnote")).not_to_contain_text("more differ")
    shop.picture, shop.digest = picture(3, 3, 9, turn=2), "d2"
    await page.evaluate(REFRESH)
    await expect(nodes).to_have_count(9)
    await expect(graph.get_by_role("link", name="net/201 201 → 204, computed")).to_be_focused()
    await require_readable(page)


CROSSINGS = """() => {
  const all = (what) => [...document.querySelectorAll(`#effectsdrawing ${what}`)];
  const boxes = all("rect").map((box) => box.getBoundingClientRect());
  const inside = (box, { x, y }) =>
    x > box.left + 1 && x < box.right - 1 && y > box.top + 1 && y < box.bottom - 1;
  const at = (line, length) =>
    line.getPointAtLength(length).matrixTransform(line.getScreenCTM());
  return all("path.edge").map((line) => {
    const lengths = [...Array(Math.floor(line.getTotalLength())).keys()];
    const points = lengths.map((length) => at(line, length));
    return boxes.filter((box) => points.some((point) => inside(box, point))).length;
  });
}"""
"""How many boxes each line of the graph runs behind."""


@pytest.mark.long
async def test_a_line_to_a_later_column_runs_behind_no_box(browser: Browser) -> None:
    shop = Shop()
    shop.picture = picture(4, 4, 16)
    shop.picture["edges"] += [(0, 8), (0, 15), (3, 12), (2, 14), (7, 12)]
    page = await open_canned(browser, change_set_path(), shop.answers())
    await expect(page.locator("#effectsdrawing path.edge")).to_have_count(17)

    assert await page.evaluate(CROSSINGS) == [0] * 17


@pytest.mark.long
async def test_a_page_with_an_update_that_is_due_reads_on_after_a_read_that_failed(
    browser: Browser,
) -> None:
    """Reads fail so while the Rebaser starts again."""
    shop = Shop()
    found: list[Any] = [values(shop.values) | {"due": True}, "no JSON", values(shop.values, 7)]
    answers = shop.answers() | {
        "change-set/values": lambda: found.pop(0) if found[1:] else found[0]
    }

    page = await open_canned(browser, change_set_path(), answers)

    await expect(page.locator("#found")).to_have_text("3 values, as of commit 7")
    await expect(page.locator("#state")).to_contain_text("read at")


async def test_a_page_with_an_update_that_is_due_reads_on_after_a_question(
    browser: Browser,
) -> None:
    """Also if the visitor answers with no, which asks the server for nothing."""
    shop = Shop()
    is_due = True
    answers = shop.answers() | {
        "change-set/values": lambda: values(shop.values, len(shop.commits)) | {"due": is_due}
    }
    quick = "performance.now = () => 0"  # so that it reads each second
    page = await open_canned(browser, change_set_path(), answers, quick)
    await expect(page.locator("#found")).to_contain_text("an update is due")

    await page.get_by_role("button", name="Revert commit 2").click()
    await page.evaluate("new Promise((over) => setTimeout(over, 3000))")  # reads are left out
    is_due = False
    await page.get_by_role("button", name="Cancel").click()

    await expect(page.locator("#found")).to_have_text("3 values, as of commit 2")


async def test_a_page_follows_again_after_an_answer_that_is_no_stream_of_events(
    browser: Browser,
) -> None:
    """A Rebaser that starts, and waits for NATS, has none of its pages yet."""
    shop = Shop()
    status = {"rebasers": [], "problem": "NATS: away", "names": {}, "queues": None, "now": NOW}
    found: list[Any] = [{}, f"retry: 60000\ndata: {json.dumps(status)}\n\n"]
    answers = shop.answers() | {"events": lambda: found.pop(0) if found[1:] else found[0]}

    page = await open_canned(browser, "updates", answers)

    await expect(page.locator("#state")).to_contain_text("trying again")
    await expect(page.get_by_text("No update is running.")).to_be_visible()


async def test_failed_values_stay_on_the_front_page_when_their_rebaser_ends(
    browser: Browser,
) -> None:
    """Until they are computed: the change set says whether they are."""
    shop = Shop()
    wrong = value("wrong", "null") | {"status": "failed", "message": "no number"}
    failing = [wrong]
    of = {key: shop.sets[0][key] for key in ("workspace", "changeSet")}
    failure = {**of, "at": NOW, "what": "values failed", "values": 1, "over": None}
    rebaser = {"holdings": [], "natsProblem": None, "spark": None}
    status = {"problem": None, "names": {}, "queues": None, "now": NOW}
    letters = {"dead_letters": 2, "latest_dead": [], "deepest": [], "change_sets_waiting": 0}
    found = [
        status | {"rebasers": [rebaser | {"failures": [failure]}]},
        status | {"rebasers": [rebaser | {"failures": []}], "queues": letters},
    ]
    answers = shop.answers() | {
        "events": lambda: (
            f"retry: 100\ndata: {json.dumps(found.pop(0) if found[1:] else found[0])}\n\n"
        ),
        "change-set/values": lambda: values(shop.values) | {"failing": failing},
    }
    page = await open_canned(browser, "", answers)
    attention = page.get_by_role("region", name="Needs attention").get_by_role("listitem")

    await expect(attention.first).to_contain_text("wrong: no number")
    await expect(attention.last).to_contain_text("2 dead letters")
    await expect(attention).to_have_count(2)

    failing.clear()
    await page.evaluate(REFRESH)
    await expect(attention).to_have_count(1)


async def test_a_tab_that_is_not_looked_at_follows_nothing(browser: Browser) -> None:
    """A browser has six connections to a server, and a seventh tab would wait for ever."""
    page = await open_canned(browser, "updates", Shop().answers(), SPY_ON_EVENTS)
    states = "sources.map(({ readyState }) => readyState === EventSource.CLOSED)"
    await page.wait_for_function("sources.length > 0")
    assert await page.evaluate(states) == [False]

    await page.evaluate(TURN_AWAY, "hidden")
    assert await page.evaluate(states) == [True]

    await page.evaluate(TURN_AWAY, "visible")
    assert await page.evaluate(states) == [True, False]


async def test_a_comment_is_written_and_shown_line_by_line(browser: Browser) -> None:
    shop = Shop()
    page = await open_canned(browser, change_set_path(), shop.answers())
    comments = page.locator("#comments tr")
    await expect(comments).to_have_text("No comments.")
    field = page.get_by_role("textbox", name="Your comment")
    await field.fill("yes\n<b>no</b>")
    await field.press("Tab")
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("alert")).to_have_text("the comment is stored")
    await expect(comments.locator("div")).to_have_text(["yes", "<b>no</b>"])
    await expect(page.locator("#onlookers")).to_have_text("Also looking at it: al")
    await expect(field).to_have_value("")
    await require_readable(page)


async def test_a_difference_is_searched_and_sorted_as_it_was_read(browser: Browser) -> None:
    """Numbers by size and before texts; conflicts stay whatever is searched for."""
    shop = Shop()
    shop.edits[7] |= {"head": '"text"'}
    shop.edits[8] |= {"head": "1e3"}
    page = await open_canned(browser, change_set_path(), shop.answers())
    edits = page.locator("#edits tr")
    head = page.get_by_role("table", name="Edits of the branch").get_by_role("button", name="Head")

    await head.press("Enter")
    await expect(edits.first).to_contain_text("net/0")
    await head.press("Enter")
    await expect(edits.first).to_contain_text("net/7")
    await expect(edits.nth(1)).to_contain_text("net/8")
    effects = page.locator("#effects tr")
    await expect(effects.first).to_contain_text("net/7")  # the one without a difference
    await expect(effects.nth(1)).to_contain_text("net/8")  # 1e3 → 9, the largest
    await expect(effects.nth(2)).to_contain_text("net/0")  # the others by name
    await page.get_by_role("searchbox", name="Search changes").fill("NET/29")
    await expect(edits).to_have_count(11)
    await expect(page.locator("#conflicts tr")).to_have_count(2)
    await page.get_by_role("searchbox", name="Search changes").fill("n*/29*9")
    await expect(edits).to_have_count(1)
    await expect(edits).to_contain_text("net/299")
    await page.get_by_role("searchbox", name="Search changes").fill("nothing")
    await expect(edits).to_have_count(1)
    await expect(edits).to_have_text("None has that name.")


async def test_a_review_is_read_on_paper_as_a_whole(browser: Browser) -> None:
    """Dark pages are printed light, and nothing that only a click would do is."""
    page = await open_canned(browser, change_set_path(), Shop().answers())
    await expect(page.locator("#effects tr")).to_have_count(21)
    await page.set_viewport_size({"width": A4, "height": 1000})

    await page.emulate_media(media="print", color_scheme="dark")

    assert await page.evaluate("document.documentElement.scrollWidth") == A4
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == WHITE
    for gone in ("navigation", "searchbox", "textbox"):
        await expect(page.get_by_role(gone)).to_have_count(0)
    for name in ("Apply to head", "Copy", "Revert", "Mine"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)
    for cut in await page.locator("section:visible, .drawing:visible, pre:visible").all():
        assert await cut.evaluate("(one) => one.scrollWidth <= one.clientWidth + 1")
        assert await cut.evaluate("(one) => one.scrollHeight <= one.clientHeight + 1")
    assert (await page.pdf(format="A4")).startswith(b"%PDF")
