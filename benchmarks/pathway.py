"""Pathway, a dataflow engine from PyPI, in an environment of its own, where it can be installed."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.evaluation_peers import Ready, numpy

WHERE: Final = Path(sys.prefix) / "pathway"
PATIENCE: Final = 900
"""Seconds for installing it, once."""
_SCRIPT: Final = Path(__file__).with_name("pathway_script.py")


@dataclass(frozen=True, slots=True)
class Pathway:
    python: Path | None
    """None: it could not be installed."""
    word: str
    """Its version, or why there is none."""

    def measured(self, ready: Ready, directory: Path) -> float:
        """Seconds of the computation, as Pathway's own process took them."""
        given, taken = directory / "pathway.npz", directory / "pathway.npy"
        np.savez(given, flat=ready.flat, constants=ready.graph.constants, bounds=np.cumsum(
            [0, *map(len, ready.by_level)]), places=np.concatenate(ready.by_level))  # fmt: skip
        command = [str(self.python), "-P", str(_SCRIPT), str(given), str(taken)]
        said = subprocess.run(command, check=True, capture_output=True, text=True)
        if not np.array_equal(np.load(taken), numpy(ready)[1]):
            raise RuntimeError(f"{ready.graph.name}: Pathway comes to something else")
        return float(json.loads(said.stdout.splitlines()[-1]))


def installed() -> Pathway:
    """Install it if it is not there yet."""
    python = WHERE / "bin" / "python"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(WHERE)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "pathway"]
        subprocess.run(install, check=True, capture_output=True, timeout=PATIENCE)
        version = [str(python), "-c", "import pathway; print(pathway.__version__)"]
        said = subprocess.run(version, check=True, capture_output=True, text=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Pathway(None, f"could not be installed here: {type(error).__name__}")
    return Pathway(python, said.stdout.splitlines()[-1])
