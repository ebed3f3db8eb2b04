"""Rows as a table of pandas or Arrow, each imported when it is asked for."""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from rebaser_client.errors import MissingPackage

Columns = Mapping[str, Sequence[Any]]
"""Column → its cells, all of one length."""


def pandas_frame(columns: Columns) -> Any:
    """The columns as a `pandas.DataFrame`.

    Raises:
        MissingPackage: pandas is not installed.
    """
    return package("pandas", extra="pandas").DataFrame(columns)


def arrow_table(columns: Columns) -> Any:
    """The columns as a `pyarrow.Table`; one with values of several kinds becomes JSON text.

    Raises:
        MissingPackage: pyarrow is not installed.
    """
    arrow = package("pyarrow", extra="arrow")
    made = {}
    for name, cells in columns.items():
        try:
            made[name] = arrow.array(cells)
        except (arrow.ArrowException, TypeError, OverflowError):
            made[name] = arrow.array(map(json.dumps, cells), arrow.string())
    return arrow.table(made)


def polars_frame(columns: Columns) -> Any:
    """The columns as a `polars.DataFrame`; one with values of several kinds becomes JSON text.

    Raises:
        MissingPackage: Polars or pyarrow is not installed.
    """
    table = arrow_table(columns)
    try:
        return import_module("polars").from_arrow(table)
    except ModuleNotFoundError as error:
        raise MissingPackage(f"{error.name} is not installed: pip install polars") from error


def package(name: str, *, extra: str) -> Any:
    """Import a package that the client may do without, or a module that needs one.

    Raises:
        MissingPackage: it is not installed; the message names the extra that has it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"{error.name} is not installed: pip install 'rebaser[{extra}]'"
        ) from error
