"""The size of row groups, and so what the reader of a few rows reads at the least.

By default they have a million rows.
"""

from typing import Final

from deltalake import WriterProperties

ROW_GROUPS: Final = WriterProperties(compression="SNAPPY", max_row_group_size=1 << 17)
"""Checkpoints and compaction write with it."""
