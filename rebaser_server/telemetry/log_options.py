"""Options of the log in the settings; commands read these, and do without slow structlog."""

from typing import Literal

LogLevel = Literal["debug", "info", "warning", "error"]
"""Level from which lines are logged."""
