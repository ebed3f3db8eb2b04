"""The product's modules, as text."""

from typing import Final

from tests.helpers.paths import ROOT

PACKAGES: Final = ("rebaser_core", "rebaser_client", "rebaser_server")

MODULES: Final = {
    str(path.relative_to(ROOT)): path.read_text()
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
"""By path from the repository's root; `__init__.py` too."""
