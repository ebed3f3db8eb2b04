"""pyarrow that loads no pandas by itself, and knows it from its import on.

The first `pa.array` of a process imports pandas, to see whether what it was given is of pandas:
half a second and 50 MiB, in each daemon and each process of functions, of which hardly any uses it.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


def defer_pandas() -> None:
    """Keep pyarrow from importing pandas by itself; it takes objects of pandas all the same.

    There are none before pandas is imported, and the import tells pyarrow. Idempotent.
    """
    if "pandas" in sys.modules or any(isinstance(each, _Watch) for each in sys.meta_path):
        return
    watch = _Watch()
    sys.meta_path.insert(0, watch)
    pa.array([])  # pyarrow looks for pandas here, once and for all
    watch.hides = False


class _Watch:
    """A finder of modules that hides pandas once, and sees when it is imported."""

    hides = True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "pandas":
            return None
        if self.hides:
            raise ModuleNotFoundError("hidden from pyarrow", name=name)
        others = (each.find_spec for each in sys.meta_path if each is not self)
        spec = next(filter(None, (find(name, path, target) for find in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                execute(module)
                with suppress(ImportError):  # pyarrow wants a later release of it
                    _ = pa.lib._pandas_api.pd  # noqa: SLF001 - looks for pandas again

            spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec
