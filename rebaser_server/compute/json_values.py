"""JSON values: checked, and read-only while functions see them."""

from collections.abc import Callable, Collection, Iterable
from math import isfinite
from typing import Any, Final, Never

from rebaser_core.codecs import INT_MAX, INT_MIN, MAX_DEPTH
from rebaser_core.references import REFERENCE


class NotJson(ValueError):
    """The data cannot be stored; the message says what, and where in it."""


def _refuse(*_args: object, **_kwargs: object) -> Never:
    raise TypeError("inputs are read-only: change a copy() of them")


class ReadOnlyList(list[Any]):
    """A list that refuses changes; copies of it can be changed."""

    __slots__ = ("depth", "size")
    depth: int
    size: int
    """Minimum bytes of its JSON text."""
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return list, (list(self),)


class ReadOnlyDict(dict[str, Any]):
    """A dict that refuses changes; copies of it can be changed."""

    __slots__ = ("depth", "size")
    depth: int
    size: int
    """Minimum bytes of its JSON text."""
    pop = popitem = clear = update = setdefault = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, (dict(self),)


def read_only(data: Any) -> Any:
    """Return `data` for functions to see. Data that is read-only already is shared, not copied.

    Only the types that JSON has are accepted, no tuples and no subclasses: stored data must be
    equal when it is loaded.

    Raises:
        NotJson: also for integers beyond 64 bits, infinities, lone surrogates, and lists and
            objects nested more than `MAX_DEPTH` deep.
    """
    return _read_only(data, MAX_DEPTH)


def as_result(data: Any) -> Any:
    """Return what a function has made for others to see, as `read_only` does.

    A function may return a table that it was given, and cannot make one, at any depth.
    """
    result = read_only(data)  # which is as deep as its data, and not endless
    waiting = [data]
    while waiting:
        each = waiting.pop()
        if type(each) is dict and REFERENCE in each:
            raise NotJson(f"an object with the key {REFERENCE}: only queries make tables")
        if type(each) is dict or type(each) is list:  # no read-only ones, which are inputs
            items = each.values() if type(each) is dict else each
            waiting.extend(item for item in items if type(item) not in _SCALARS)
    return result


Content = list[tuple[Any, Any]]
"""Lists and objects, each with a copy of its content."""


def content_of(data: Any) -> Content:
    """Return the content of read-only data, at every level, for `has_content`."""
    content: Content = []
    _add_content(data, content)
    return content


def _add_content(data: Any, content: Content) -> None:
    kind = type(data)
    if kind is ReadOnlyList:
        content.append((data, list(data)))
        items: Iterable[Any] = data
    elif kind is ReadOnlyDict:
        content.append((data, dict(data)))
        items = data.values()
    else:
        return
    for item in items:
        if type(item) not in _SCALARS:
            _add_content(item, content)


def has_content(content: Content) -> bool:
    """Whether the content is unchanged: C code may change what refuses to be changed in Python."""
    try:
        return all(data == copy for data, copy in content)
    except Exception:  # noqa: BLE001 - what was put there compares as it likes
        return False


def _read_only(data: Any, room: int) -> Any:
    kind = type(data)
    if kind in _SCALARS:
        return _SCALARS[kind](data)
    if kind is ReadOnlyList or kind is ReadOnlyDict:
        if data.depth > room:
            raise NotJson(f"nested more than {MAX_DEPTH} deep")
        return data
    if kind is not list and kind is not dict:
        raise NotJson(f"{kind.__name__} is not JSON")
    if not room:
        raise NotJson(f"nested more than {MAX_DEPTH} deep")
    return _list(data, room - 1) if kind is list else _dict(data, room - 1)


def _list(data: list[Any], room: int) -> ReadOnlyList:
    made = ReadOnlyList([_read_item(index, item, room) for index, item in enumerate(data)])
    made.depth, made.size = _measure(made)
    return made


def _dict(data: dict[Any, Any], room: int) -> ReadOnlyDict:
    for key in data:
        if type(key) is not str:
            shown = repr(key) if type(key) in _SCALARS else f"of type {type(key).__name__}"
            raise NotJson(f"the key {shown} is not a string")
        _text(key)
    made = ReadOnlyDict({key: _read_item(key, item, room) for key, item in data.items()})
    made.depth, size = _measure(made.values())
    made.size = size + sum(map(len, made)) + 3 * len(made)
    return made


def _read_item(where: str | int, item: Any, room: int) -> Any:
    try:
        return _read_only(item, room)
    except NotJson as error:
        raise NotJson(f"[{where!r}]{'' if str(error).startswith('[') else ': '}{error}") from None


def _measure(items: Collection[Any]) -> tuple[int, int]:
    """Return the depth of a container, and its minimum bytes without its keys."""
    depth, size = 0, 2 * len(items)  # a comma and a digit each
    for item in items:
        kind = type(item)
        if kind is str:
            size += len(item)
        elif kind is ReadOnlyList or kind is ReadOnlyDict:
            size += item.size
            depth = max(depth, item.depth)
    return depth + 1, size


def size_of(data: Any) -> int:
    """Return the minimum bytes of the JSON text of read-only data, for the price of a look."""
    kind = type(data)
    if kind is ReadOnlyList or kind is ReadOnlyDict:
        size: int = data.size
        return size
    return len(data) if kind is str else 1


def _text(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise NotJson("a string with a lone surrogate is not JSON") from None
    return text


def _integer(number: int) -> int:
    if not INT_MIN <= number <= INT_MAX:
        raise NotJson("an integer of more than 64 bits")
    return number


def _float(number: float) -> float:
    if not isfinite(number):
        raise NotJson(f"{number} is not JSON")
    return number


def _itself(data: Any) -> Any:
    return data


_SCALARS: Final[dict[type, Callable[[Any], Any]]] = {
    str: _text, int: _integer, float: _float, bool: _itself, type(None): _itself,
}  # fmt: skip
