"""What the settings say of the log; commands read settings, and do without slow structlog."""

from typing import Literal

LogFormat = Literal["auto", "json", "pretty"]
"""`auto`: pretty in a terminal, JSON elsewhere."""

LogLevel = Literal["debug", "info", "warning", "error"]
"""The least level that is logged."""
