"""Where the repository lies."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
OF_README: Final = r"runs this -->\n```python\n(.*?)```"
"""Pattern of the program in README.md that a client runs; its dot matches line ends, too."""
