"""From an asynchronous method to one that waits, with the same arguments, types and docstring."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from rebaser_client.sync.loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")


class Blocking(Generic[W]):
    """Something asynchronous whose methods are called from outside its loop."""

    def __init__(self, wrapped: W, loop: LoopThread) -> None:
        self._wrapped: Final = wrapped
        self._loop: Final = loop

    def __repr__(self) -> str:
        return f"<{type(self).__name__} for {self._wrapped!r}>"


def documented(method: Callable[..., Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Give a method written by hand the docstring of the asynchronous one."""

    def document(written: Callable[P, T]) -> Callable[P, T]:
        written.__doc__ = method.__doc__
        return written

    return document


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[Any], P], T]:
    """The method of the same name and arguments that waits for the result."""

    @wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **options: P.kwargs) -> T:
        self._loop.check()
        return self._loop.run(method(self._wrapped, *args, **options))

    return call


def iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Blocking[Any], P], Iterator[T]]:
    """The method of the same name and arguments whose items are plainly iterated over."""

    @wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **options: P.kwargs) -> Iterator[T]:
        self._loop.check()
        return self._loop.iterate(method(self._wrapped, *args, **options))

    return call
