"""A drawing of values and what they are computed from, as an SVG image: sources stand at the left.

It has no colors of a theme: dark text on light boxes can be read on any page.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Final, TypeVar

from rebaser_client.display import cut, readable, table_text
from rebaser_core.errors import many
from rebaser_core.queries import ValueSnapshot

K = TypeVar("K")

_SHOWN: Final = 200
"""Maximum number of boxes; a last line says how many more values there are."""
_WIDTH, _HEIGHT, _ACROSS, _DOWN = 170, 40, 220, 52
"""Size of a box, and from one to the next in a row and in a column, in pixels."""
_LETTERS: Final = 21
"""Maximum number of characters in a line of a box."""
_TOLD: Final = 500
"""Maximum number of characters that a box shows where the pointer rests on it."""
_FILLS: Final = {"ok": "#eef3fb", "failed": "#fbe3e1", "blocked": "#fbf0d9", "pending": "#eeeeee"}


class Drawing(str):
    """An SVG image as text, which notebooks show."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return self


def draw(values: Sequence[ValueSnapshot]) -> Drawing:
    """Draw a box for each value, and a line to it from each of its inputs among `values`."""
    shown = {value.id: value for value in values[:_SHOWN]}
    grid = placed({key: shown.keys() & value.input_ids() for key, value in shown.items()})
    boxes = sorted(shown.values(), key=lambda value: grid[value.id])
    places = {key: (1 + x * _ACROSS, 1 + y * _DOWN) for key, (x, y) in grid.items()}
    lines = [
        _line(places[each], places[value.id])
        for value in boxes
        for each in dict.fromkeys(value.input_ids())
        if each in places
    ]
    width = max([0, *(x for x, _ in grid.values())]) * _ACROSS + _WIDTH + 2
    height = max([0, *(1 + y for _, y in grid.values())]) * _DOWN
    if more := len(values) - len(boxes):
        height += 20
        lines.append(f'<text x="1" y="{height - 6}">and {many(more, "more value")}</text>')
    return Drawing(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="{many(len(boxes), "value")} and what they are computed from">'
        + "".join(lines)
        + "".join(_box(value, *places[value.id]) for value in boxes)
        + "</svg>"
    )


def placed(inputs: Mapping[K, Collection[K]]) -> dict[K, tuple[int, int]]:
    """The column and the row of each box: behind its inputs, and in a row near to theirs.

    Of boxes that are computed from each other, one is placed first.
    """
    waiting, column = dict.fromkeys(inputs), dict[K, int]()
    columns: dict[int, list[K]] = defaultdict(list)
    while waiting:
        ready = [key for key in waiting if waiting.keys().isdisjoint(inputs[key])]
        for key in ready or [next(iter(waiting))]:
            before = (column[each] for each in inputs[key] if each in column)
            column[key] = 1 + max(before, default=-1)
            columns[column[key]].append(key)
            del waiting[key]
    rows: dict[K, int] = {}
    order = {key: place for place, key in enumerate(inputs)}
    for _, keys in sorted(columns.items()):
        near: dict[K, tuple[float, int]] = {}  # lines between neighbouring columns cross less
        for key in keys:
            those = [rows[each] for each in inputs[key] if each in rows]
            near[key] = sum(those) / len(those) if those else 0.0, order[key]
        rows |= {key: row for row, key in enumerate(sorted(keys, key=near.__getitem__))}
    return {key: (column[key], row) for key, row in rows.items()}


def _line(start: tuple[int, int], end: tuple[int, int]) -> str:
    (x, top), (to_x, to_top) = start, end
    x, y, to_y = x + _WIDTH, top + _HEIGHT // 2, to_top + _HEIGHT // 2
    bend = (_ACROSS - _WIDTH) // 2
    path = f"M{x},{y}"
    if to_x > x + 2 * bend:  # past other boxes: through the gap below this row, as none is there
        gap = top + (_HEIGHT + _DOWN) // 2
        path += f"C{x + bend},{y} {x + bend},{gap} {x + 2 * bend},{gap}H{to_x - 2 * bend}"
        y = gap
    path += f"C{to_x - bend},{y} {to_x - bend},{to_y} {to_x},{to_y}"
    return f'<path d="{path}" fill="none" stroke="#8a94a6"/>'


def _box(value: ValueSnapshot, x: int, y: int) -> str:
    name = value.name or value.id
    if value.status == "ok":
        content = table_text(value.value) or json.dumps(value.value, ensure_ascii=False)
    else:
        content = value.status
    told = f"{name} = {content}" if value.status == "ok" else f"{name}: {value.message or content}"
    return (
        f"<g><title>{_short(told, _TOLD)}</title>"
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4" '
        f'fill="{_FILLS.get(value.status, "#eeeeee")}" stroke="#8a94a6"/>'
        f'<text x="{x + 8}" y="{y + 16}" fill="#1d2530" font-weight="bold">{_short(name)}</text>'
        f'<text x="{x + 8}" y="{y + 32}" fill="#1d2530">{_short(content)}</text></g>'
    )


def _short(text: str, most: int = _LETTERS) -> str:
    return escape(readable(cut(text, most)))
