"""The files of a small project: a graph, a function that computes a value of it, and its test."""

import re
from string import Template
from typing import Final

_GRAPH: Final = """\
# Values that are set, and values that are computed from them.

[functions]
add_tax = {python = "$name-add_tax"} # an entry point of pyproject.toml

[sources]
net = 100
rate = 0.19

[values]
gross = {function = "add_tax", inputs = {net = "net", rate = "rate"}}
"""

_FUNCTIONS: Final = '''\
"""Functions that compute values: plain functions of JSON values."""


def add_tax(*, net: float, rate: float) -> float:
    """What a customer pays.

    Raises:
        ValueError: the rate is negative; the value fails with this message.
    """
    if rate < 0:
        raise ValueError(f"a tax rate of {rate}")
    return round(net * (1 + rate), 2)
'''

_TEST: Final = '''\
"""Functions are tested without Rebaser."""

import unittest

from ${name}_functions import add_tax


class AddTaxTest(unittest.TestCase):
    def test_tax_is_added_and_rounded_to_cents(self) -> None:
        self.assertEqual(add_tax(net=9.99, rate=0.19), 11.89)

    def test_a_negative_rate_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "a tax rate of -1"):
            add_tax(net=100, rate=-1)


if __name__ == "__main__":
    unittest.main()
'''

_DISTRIBUTION: Final = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "$name-functions"
version = "1"
requires-python = ">=3.11"

[project.entry-points."rebaser.functions"]
$name-add_tax = "${name}_functions:add_tax"

[tool.hatch.build.targets.wheel]
only-include = ["${name}_functions.py"]
"""


def project_name(directory: str) -> str:
    """A name for package, functions and workspace like that of the directory."""
    name = re.sub(r"[^a-z0-9]+", "_", directory.lower()).strip("_")
    return name if name[:1].isalpha() else f"project_{name}".rstrip("_")


def project_files(name: str) -> dict[str, str]:
    """The text of each file, by its path in the project."""
    templates = {
        "graph.toml": _GRAPH,
        f"{name}_functions.py": _FUNCTIONS,
        f"test_{name}_functions.py": _TEST,
        "pyproject.toml": _DISTRIBUTION,
    }
    return {path: Template(text).substitute(name=name) for path, text in templates.items()}
