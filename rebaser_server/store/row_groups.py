"""How files of tables are laid out, and so what the reader of a few rows reads at the least.

By default row groups have a million rows, and pages 20,000; and Delta's log repeats of each file
the least and the greatest text of each column, in full length.
"""

from typing import Final

from deltalake import ColumnProperties, WriterProperties

_UNIQUE: Final = ColumnProperties(dictionary_enabled=False)
"""A dictionary of texts of which hardly any comes twice has to be read for a single one."""

_LONG: Final = ColumnProperties(statistics_enabled="NONE")
"""A head is megabytes long, and so are values and lists of inputs; no file is skipped by them."""

ROW_GROUPS: Final = WriterProperties(
    compression="SNAPPY",
    max_row_group_size=1 << 17,
    data_page_row_count_limit=1 << 12,
    column_properties={
        **dict.fromkeys(("id", "name"), _UNIQUE),
        **dict.fromkeys(("value", "inputs", "message", "arguments", "input_hashes"), _LONG),
    },
)
"""Checkpoints and compaction write with it."""
