"""For mkdocs: what stands in pages for readers of the repository, or for tests."""

import re
from pathlib import Path
from typing import Any

_OUT = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)]*)?\)")

_WORD = re.compile(r"^(```\w+) [\w-]+$", re.MULTILINE)
"""Of a fence, behind its language: by which a test finds it."""


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """The page without links that lead out of docs/: they are checked, and only named.

    Raises:
        FileNotFoundError: one of them leads nowhere.
    """
    docs = Path(config.docs_dir)

    def named(link: re.Match[str]) -> str:
        path = (docs / link[2]).resolve(strict=True).relative_to(docs.parent.resolve())
        return link[1] if link[1].strip("`") == str(path) else f"{link[1]} (`{path}`)"

    return _OUT.sub(named, _WORD.sub(r"\1", markdown))
