"""Values as a tree, by the parts of their names between slashes, each with its inputs."""

from typing import Any, Final

from rebaser_client.errors import NoSuchValue
from rebaser_core.errors import offer
from rebaser_server.commands.render.values import plain, say_if_due
from rebaser_server.commands.support.value_source import ReadValue, ReadValues
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import Part, Tree

_WIDEST: Final = 60
"""Characters of a value that are printed for people."""
_MOST: Final = 8
"""Inputs of a value that are printed for people."""


class _Node:
    def __init__(self) -> None:
        self.value: ReadValue | None = None
        self.below: dict[str, _Node] = {}


def show_tree(read: ReadValues, name: str, *, depth: int | None, as_json: bool) -> None:
    """Print the value of that name and those below it; all values if the name is empty.

    Raises:
        NoSuchValue: no value has that name, or is below it.
    """
    root, count = _Node(), 0
    for value in read.values.values():
        if value.name is None or not _is_below(value.name, name):
            continue
        parts = [part for part in value.name.removeprefix(name).split("/") if part]
        node = root
        for part in parts[:depth]:
            node = node.below.setdefault(part, _Node())
        if depth is None or len(parts) <= depth:
            node.value = value
        count += 1
    unnamed = sum(1 for value in read.values.values() if value.name is None)
    if name and not count:
        raise NoSuchValue(
            f"no value is called {name!r}, nor is one below it{offer(name, read.names)}"
        )
    if as_json:
        say_json(_plain(root, due=read.is_due))
        return
    tree = Tree(*_label(name or "/", root, read))
    _grow(tree, root, read)
    tree.show()
    if not name and unnamed:
        say(f"and {unnamed:,} without a name: `rebaser values get` lists them")
    say_if_due(read)


def _is_below(name: str, top: str) -> bool:
    return not top or name == top or name.startswith(top.removesuffix("/") + "/")


def _grow(tree: Tree, node: _Node, read: ReadValues) -> None:
    for part, below in sorted(node.below.items()):
        _grow(tree.add(*_label(part, below, read)), below, read)


def _label(part: str, node: _Node, read: ReadValues) -> list[Part]:
    value = node.value
    if value is None:
        return [(part, "bold")]
    problem = value.message
    text = value.text if problem is None else f"{value.status}: {problem}"
    text = text if len(text) <= _WIDEST else f"{text[:_WIDEST]}..."
    label: list[Part] = [(part, "bold"), f" = {text}"]
    inputs = [_name_of(read, each) for each in dict.fromkeys(value.input_ids())]
    if inputs:
        more = f" and {len(inputs) - _MOST} more" if len(inputs) > _MOST else ""
        label += ["  ", (f"from {', '.join(inputs[:_MOST])}{more}", "dim")]
    return label


def _name_of(read: ReadValues, value_id: str) -> str:
    value = read.values.get(value_id)
    return value_id if value is None else value.name or value_id


def _plain(node: _Node, *, due: bool) -> dict[str, Any]:
    return {
        "value": None if node.value is None else plain(node.value, due=due),
        "below": {part: _plain(below, due=due) for part, below in sorted(node.below.items())},
    }
