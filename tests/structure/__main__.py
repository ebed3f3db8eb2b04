"""Figures of how the product's code is cut into modules: `python -m tests.structure`.

With `--ways` also the files that one request and one update enter.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import PurePath
from statistics import median, quantiles

from tests.helpers.product import MODULES
from tests.structure.ways import about_tables, record

SHORT = 60
"""Lines below which a module counts as short."""


def dotted(path: str) -> str:
    return ".".join(PurePath(path).with_suffix("").parts).removesuffix(".__init__")


NAMES = {dotted(path): path for path in MODULES}


def imported(source: str) -> Iterator[str]:
    """Yield the modules of the product that a module imports, also within functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in NAMES)
        elif isinstance(node, ast.ImportFrom) and node.module in NAMES:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in NAMES else node.module


def main() -> None:
    importers = defaultdict(set)
    for path, source in MODULES.items():
        for name in imported(source):
            importers[name].add(dotted(path))
    modules = {
        name: MODULES[path].count("\n")
        for name, path in NAMES.items()
        if not path.endswith("__init__.py")
    }
    lines = sorted(modules.values())
    arrows = sum(len(importers[name]) for name in modules)
    single = sum(len(importers[name]) == 1 for name in modules)
    print(f"{len(MODULES):6,} product files, {sum(lines):,} lines in modules")
    print(f"{len(modules):6,} modules")
    print(f"{median(lines):6,.0f} lines, median; {quantiles(lines, n=10)[-1]:,.0f} p90")
    print(f"{lines[-1]:6,} lines, the longest: {max(modules, key=lambda name: modules[name])}")
    print(f"{sum(each < SHORT for each in lines):6,} modules below {SHORT} lines")
    print(f"{arrows:6,} imports between modules")
    print(f"{single:6,} modules with one importer")
    if "--ways" in sys.argv:
        for way, files in record().items():
            print(f"{len(files):6,} files: {way}; {len(about_tables(files))} about tables")
            print(*(f"         {file}" for file in sorted(files)), sep="\n")


if __name__ == "__main__":
    main()
