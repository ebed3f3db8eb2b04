"""Options of the log in the settings; commands read these, and do without slow structlog."""

from typing import Literal

LogFormat = Literal["auto", "json", "pretty"]
"""`auto`: pretty in a terminal, JSON elsewhere."""

LogLevel = Literal["debug", "info", "warning", "error"]
"""Level from which lines are logged."""
