"""`python -m tests.deploy`: write the table of values in the README of the chart."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from tests.deploy.manifests import CHART

README: Final = CHART / "README.md"
MARK: Final = "<!-- values: python -m tests.deploy -->\n"

_KEY = re.compile(r"^(?P<indent> *)(?P<key>\w+):(?P<value>.*)$")


def table() -> str:
    """A row for each value that values.yaml says something about, or that is no object."""
    lines = ["| value | what it is | default |", "|---|---|---|"]
    for name, comment, default in _values():
        text = json.dumps(default, ensure_ascii=False).replace("|", "\\|")
        lines.append(f"| `{name}` | {comment} | `{text}` |")
    return "\n".join(lines) + "\n"


def page() -> str:
    before, _, _ = README.read_text().partition(MARK)
    return f"{before}{MARK}\n{table()}"


def _values() -> Iterator[tuple[str, str, Any]]:
    whole = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(whole)
    path: list[str] = []
    comments: list[str] = []
    for line in whole.splitlines():
        text = line.strip()
        if text.startswith("# "):
            comments.append(text.removeprefix("# "))
            continue
        found = _KEY.match(line)
        depth = len(found["indent"]) // 2 if found else 0
        if found and depth <= len(path):
            path = [*path[:depth], found["key"]]
            default: Any = values
            for key in path:
                default = default[key]
            if comments or found["value"].strip():
                yield ".".join(path), " ".join(comments), default
        comments = []


if __name__ == "__main__":
    README.write_text(page())
