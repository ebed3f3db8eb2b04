"""For ProperDocs: what stands in pages for readers of the repository, or for tests."""

import json
import re
from pathlib import Path
from typing import Any

from lunr import lunr

_OUT = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)]*)?\)")

_FENCE = re.compile(r'^(```\w+)(?: title="(?P<title>[^"]+)"| [\w-]+)$', re.MULTILINE)
"""With a title, or with a word by which a test finds it."""

_GROUP = re.compile(r"^\| ([^|]+) \| \|$\n\|---\|---\|$\n((?:\|.*\n?)+)", re.MULTILINE)

_PAGE = re.compile(r"^\| \[([^\]]+)\]\(([\w-]+)\.md\) \| (.+) \|$", re.MULTILINE)


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


def on_post_build(*, config: Any, **_: Any) -> None:
    """Write llms.txt, and the index for the search, which a browser takes seconds to build."""
    _write_llms(config)
    _write_index(Path(config.site_dir) / "search" / "search_index.json")


def _write_index(path: Path) -> None:
    found = json.loads(path.read_text())
    built = lunr(ref="location", fields=("title", "text"), documents=found["docs"])
    path.write_text(json.dumps({**found, "index": built.serialize()}, separators=(",", ":")))


def _write_llms(config: Any) -> None:
    """Write the list of pages in index.md in the form that language models read."""
    index = (Path(config.docs_dir) / "index.md").read_text()
    title, summary, *_ = index.strip().split("\n\n")
    parts = [title, "> " + " ".join(summary.splitlines())]
    for group, rows in _GROUP.findall(index):
        pages = [f"- [{name}]({page}.html): {about}" for name, page, about in _PAGE.findall(rows)]
        if pages:
            parts.append(f"## {group.capitalize()}\n\n" + "\n".join(pages))
    (Path(config.site_dir) / "llms.txt").write_text("\n\n".join(parts) + "\n")
