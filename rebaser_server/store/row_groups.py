"""How files of tables are laid out, and so what the reader of a few rows reads at the least.

By default row groups have a million rows, and pages 20,000.
"""

from typing import Final

from deltalake import ColumnProperties, WriterProperties

_UNIQUE: Final = ColumnProperties(dictionary_enabled=False)
"""A dictionary of texts of which hardly any comes twice has to be read for a single one."""

ROW_GROUPS: Final = WriterProperties(
    compression="SNAPPY",
    max_row_group_size=1 << 17,
    data_page_row_count_limit=1 << 12,
    column_properties={"id": _UNIQUE, "name": _UNIQUE},
)
"""Checkpoints and compaction write with it."""
