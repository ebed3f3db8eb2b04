"""How often Python looks for garbage."""

import gc
from typing import Final

THRESHOLDS: Final = 100_000, 20, 20
"""See `gc.set_threshold`. A graph is a million objects without a cycle among them, and so are
modules: at the default of 700, looking for one takes half of a large batch's time, and a tenth of a
start's."""


def collect_rarely() -> None:
    gc.set_threshold(*THRESHOLDS)
