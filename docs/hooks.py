"""For ProperDocs: what stands in pages for readers of the repository, or for tests."""

import re
from pathlib import Path
from typing import Any

_OUT = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)]*)?\)")

_FENCE = re.compile(r'^(```\w+)(?: title="(?P<title>[^"]+)"| [\w-]+)$', re.MULTILINE)
"""With a title, or with a word by which a test finds it."""


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """The page without links that lead out of docs/: they are checked, and only named.

    Raises:
        FileNotFoundError: one of them leads nowhere.
    """
    docs = Path(config.docs_dir)

    def named(link: re.Match[str]) -> str:
        path = (docs / link[2]).resolve(strict=True).relative_to(docs.parent.resolve())
        return link[1] if link[1].strip("`") == str(path) else f"{link[1]} (`{path}`)"

    def titled(fence: re.Match[str]) -> str:
        return f"`{fence['title']}`:\n\n{fence[1]}" if fence["title"] else fence[1]

    return _OUT.sub(named, _FENCE.sub(titled, markdown))
