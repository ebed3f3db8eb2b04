"""`python docs/drawing.py`: draws `images/parts.svg` from the text of `images/parts.txt`.

Boxes stand on a grid, and arrows lead between neighbours; `parts.txt` says how each is written.
"""

import re
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

SOURCE: Final = Path(__file__).parent / "images" / "parts.txt"
TARGET: Final = SOURCE.with_suffix(".svg")

WIDTH: Final = 208
HEIGHT: Final = 46
STEP_X: Final = 292
"""Distance of a column from the next; rows are STEP_Y apart."""
STEP_Y: Final = 84
LEFT: Final = 24
TOP: Final = 40
STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1b2a38; text-anchor: middle }
.small { font-size: 11px; fill: #51606e }
.box { stroke: #37618a; stroke-width: 1.5 }
.nats { fill: #d9e8f6 } .part { fill: #eef4fa } .outside { fill: #f7f1e3; stroke: #8a6d37 }
.frame { fill: none; stroke: #9aa8b5; stroke-dasharray: 3 4 }
.line { stroke: #37618a; stroke-width: 1.5; marker-end: url(#tip) }
"""
TIP: Final = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 8 4 0 8z" fill="#37618a"/></marker></defs>'
)

_FRAME = re.compile(r"frame (.+): (\d) (\d) (\d) (\d)")
_BOX = re.compile(r"box (\w+): +(\d) (\d) (\w+) +\| (.+?) \| (.+)")
_ARROW = re.compile(r"(\w+) -> (\w+)(?:: (.+))?")


class Box(NamedTuple):
    x: int
    y: int
    kind: str
    title: str
    purpose: str


def draw(source: str) -> str:
    """Return the SVG of a text.

    Raises:
        ValueError: a line is neither a frame, a box nor an arrow.
        KeyError: an arrow names a box that the text does not have.
    """
    boxes: dict[str, Box] = {}
    frames: list[str] = []
    arrows: list[str] = []
    for line in filter(None, (line.partition("#")[0].strip() for line in source.splitlines())):
        if found := _FRAME.fullmatch(line):
            frames += _frame(found[1], *map(int, found.groups()[1:]))
        elif found := _BOX.fullmatch(line):
            at = LEFT + int(found[2]) * STEP_X, TOP + int(found[3]) * STEP_Y
            boxes[found[1]] = Box(*at, *found.groups()[3:])
        elif found := _ARROW.fullmatch(line):
            arrows += _arrow(boxes[found[1]], boxes[found[2]], found[3] or "")
        else:
            raise ValueError(f"neither a frame, a box nor an arrow: {line}")
    width = max(box.x for box in boxes.values()) + WIDTH + LEFT
    height = max(box.y for box in boxes.values()) + HEIGHT + LEFT
    drawn = [each for box in boxes.values() for each in _box(box)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    title = "<title>The parts of a Rebaser, and what they talk to</title>"
    paper = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    lines = [head, title, f"<style>{STYLE}</style>", TIP, paper, *frames, *drawn, *arrows, "</svg>"]
    return "\n".join(lines) + "\n"


def _frame(name: str, left: int, top: int, right: int, bottom: int) -> list[str]:
    x, y = LEFT + left * STEP_X - 12, TOP + top * STEP_Y - 30
    width = (right - left) * STEP_X + WIDTH + 24
    height = (bottom - top) * STEP_Y + HEIGHT + 42
    return [
        f'<rect class="frame" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>',
        _text(x + width / 2, y + 18, name, small=True),
    ]


def _box(box: Box) -> list[str]:
    corner = f'x="{box.x}" y="{box.y}" width="{WIDTH}" height="{HEIGHT}" rx="5"'
    return [
        f'<rect class="box {box.kind}" {corner}/>',
        _text(box.x + WIDTH / 2, box.y + 20, box.title),
        _text(box.x + WIDTH / 2, box.y + 37, box.purpose, small=True),
    ]


def _arrow(start: Box, end: Box, label: str) -> list[str]:
    if start.y == end.y:
        y = start.y + HEIGHT / 2
        x1, x2 = (start.x + WIDTH, end.x) if start.x < end.x else (start.x, end.x + WIDTH)
        return [_line(x1, y, x2, y), _text((x1 + x2) / 2, y - 6, label, small=True)]
    x = start.x + WIDTH / 2
    y1, y2 = (start.y + HEIGHT, end.y) if start.y < end.y else (start.y, end.y + HEIGHT)
    return [_line(x, y1, x, y2), _text(x + 36, (y1 + y2) / 2 + 4, label, small=True)]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="line" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def _text(x: float, y: float, text: str, *, small: bool = False) -> str:
    size = ' class="small"' if small else ""
    return f'<text{size} x="{x:g}" y="{y:g}">{escape(text)}</text>'


if __name__ == "__main__":
    TARGET.write_text(draw(SOURCE.read_text()))
