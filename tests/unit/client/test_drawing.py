"""Drawings of values and their inputs."""

import re
from xml.etree import ElementTree as ET

from ulid import ULID

from rebaser_client.drawing import draw
from rebaser_core.queries import ValueSnapshot


def value(name: str, *inputs: ValueSnapshot, **others: str) -> ValueSnapshot:
    given = {"all": [each.id for each in inputs]} if inputs else None
    return ValueSnapshot.model_validate(
        {"id": str(ULID()), "value": 1, "status": "ok", "name": name, "inputs": given} | others
    )


def boxes(text: str) -> dict[str, tuple[int, int]]:
    """Names, and the corner of the box of each."""
    found = re.findall(r'<rect x="(\d+)" y="(\d+)".*?<text [^>]*>([^<]*)<', text)
    return {name: (int(x), int(y)) for x, y, name in found}


def test_each_value_stands_at_the_right_of_its_inputs() -> None:
    """The order in which they are given does not matter."""
    net, rate = value("net"), value("rate")
    gross = value("gross", net, rate)
    total = value("total", gross, net)

    drawn = draw([total, net, gross, rate])

    ET.fromstring(drawn)  # noqa: S314 - ours
    placed = boxes(drawn)
    assert placed["net"][0] == placed["rate"][0] < placed["gross"][0] < placed["total"][0]
    assert len(set(placed.values())) == 4
    assert drawn.count("<path") == 4
    assert drawn._repr_svg_() == drawn


def test_a_line_past_other_boxes_runs_below_them() -> None:
    net = value("net")
    gross = value("gross", net)
    drawn = draw([net, gross, value("total", gross, net)])

    [past] = re.findall(r'd="([^"]*)H', drawn)
    height = float(past.rpartition(",")[2])
    assert all(not y <= height <= y + 40 for _, y in boxes(drawn).values())


def test_names_and_messages_are_shown_as_text() -> None:
    """A value without a result says why; an input that is not among the values has no line."""
    failed = value("<b>\u202e", value("other"), status="failed", message="</title><script>")

    drawn = draw([failed])

    root = ET.fromstring(drawn)  # noqa: S314 - ours
    texts = [element.text for element in root.iter() if element.text]
    assert {"<b>\\u202e", "failed", "<b>\\u202e: </title><script>"} <= {*texts}
    assert "<path" not in drawn
    assert len(draw([value("long", status="failed", message="x" * 10**6)])) < 2_000


def test_a_crowd_is_counted_and_not_drawn() -> None:
    drawn = draw([value(f"net/{number}") for number in range(260)])

    assert drawn.count("<rect") == 200
    assert "and 60 more values" in drawn
    ET.fromstring(draw([]))  # noqa: S314 - ours
