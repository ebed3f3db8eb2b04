"""Attempts to write tables, whose files a test writes itself."""

from typing import Any

from blake3 import blake3

from rebaser_server.tables import Attempt, DataFile, Manifest, TableFiles, Written


def written_to(
    tables: TableFiles, attempt: Attempt, fields: list[dict[str, Any]], rows: int, content: str
) -> Written:
    """The files of data that are in the place of an attempt."""
    found = []
    for name in tables.files.list_names(attempt.directory):
        if name.endswith(".parquet") and not name.startswith("."):
            data = bytes(tables.files.get(f"{attempt.directory}/{name}"))
            found.append(DataFile(attempt / name, len(data), blake3(data).hexdigest()))
    return Written(fields, rows, content, found)


def finish(
    tables: TableFiles, attempt: Attempt, fields: list[dict[str, Any]], rows: int, content: str
) -> Manifest:
    """Make the files of data that are in the place of an attempt the table of its key."""
    return tables.finish(attempt, written_to(tables, attempt, fields, rows, content))
