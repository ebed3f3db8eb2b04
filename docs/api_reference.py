"""For ProperDocs: a list of a module's names in a page becomes the API reference of that module.

The list follows a line `<!-- reference: package.module -->`; `python -m tests.docs` writes it for
readers of the repository. The reference is read from the source, without importing it: public
classes and functions, their signatures and docstrings. Of a package, the names in its `__all__` are
shown.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from itertools import starmap
from pathlib import Path
from typing import Any, Final

LINE: Final = 60
"""Characters of arguments that stand on one line, beside a name and a return type."""

_LIST = re.compile(r"^<!-- reference: ([\w.]+) -->\n(?:\n| *- .*\n)*", re.MULTILINE)

_SECTION = re.compile(r"^(Args|Raises|Returns):\n((?:[ ]{4}.*\n?|\n)+)", re.MULTILINE)

_EXAMPLE = re.compile(r"^Example:\n((?:[ ]{4}.*\n?|\n)+)", re.MULTILINE)

_ENTRY = re.compile(r"^([\w*.,` ]+): ", re.MULTILINE)

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Replace each list of the page by the reference of the module that it names.

    Raises:
        FileNotFoundError: a list names a module that does not exist.
        LookupError: a package exports a name that no module of it defines.
    """
    root = Path(config.docs_dir).parent
    return _LIST.sub(lambda found: f"{_reference(root, found[1])}\n\n", markdown)


def listed(markdown: str, root: Path) -> str:
    """Write the lists of the page anew: each name with its first sentence and its file."""

    def write(found: re.Match[str]) -> str:
        return "\n".join((f"<!-- reference: {found[1]} -->", "", *_items(root, found[1]), "", ""))

    return _LIST.sub(write, markdown)


def _items(root: Path, module: str) -> Iterator[str]:
    for path, definition in _definitions(root, module):
        yield f"- [`{definition.name}`](../{path.relative_to(root)}){_about(definition)}"
        for member in definition.body if isinstance(definition, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and _is_public(member):
                yield f"    - `{member.name}`{_about(member)}"


def _about(definition: _Definition) -> str:
    first = (ast.get_docstring(definition) or "").split("\n\n")[0]
    return f": {' '.join(first.split())}" if first else ""


def _reference(root: Path, module: str) -> str:
    return "\n\n".join(_render(definition) for _, definition in _definitions(root, module))


def _definitions(root: Path, module: str) -> Iterator[tuple[Path, _Definition]]:
    path = root / module.replace(".", "/")
    if not path.is_dir():
        path = path.with_suffix(".py")
        yield from ((path, each) for each in _parse(path).body if _is_public(each))
        return
    for exports in ast.walk(_parse(path / "__init__.py")):
        if isinstance(exports, ast.ImportFrom) and str(exports.module).startswith(f"{module}."):
            path = root / f"{str(exports.module).replace('.', '/')}.py"
            defined = {e.name: e for e in _parse(path).body if isinstance(e, _Definition)}
            yield from ((path, defined[alias.name]) for alias in exports.names)


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _is_public(node: ast.AST) -> bool:
    return isinstance(node, _Definition) and not node.name.startswith("_")


def _render(definition: _Definition) -> str:
    if isinstance(definition, ast.ClassDef):
        return "\n\n".join(_class(definition))
    return "\n\n".join(_function(definition, "###"))


def _class(definition: ast.ClassDef) -> Iterator[str]:
    yield f"### {definition.name}"
    bases = [name for name in map(ast.unparse, definition.bases) if not name.startswith("_")]
    if bases:
        yield "*A kind of " + ", ".join(f"`{name}`" for name in bases) + ".*"
    yield _prose(ast.get_docstring(definition))
    fields = "\n".join(_fields(definition.body))
    if fields:
        yield fields
    for member in definition.body:
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and (
            member.name == "__init__" or _is_public(member)
        ):
            yield from _function(member, "####", definition.name)


def _fields(body: list[ast.stmt]) -> Iterator[str]:
    """Yield a list item for each public attribute that the class declares with its type."""
    for member, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            name = member.target.id
            if name.startswith("_"):
                continue
            default = f" = {ast.unparse(member.value)}" if member.value else ""
            declared = f"`{name}: {_annotation(member.annotation)}{default}`"
            yield f"- {declared}{_attribute_docstring(after)}"


def _attribute_docstring(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return f": {' '.join(str(node.value.value).split())}"
    return ""


def _function(
    definition: ast.FunctionDef | ast.AsyncFunctionDef, level: str, owner: str | None = None
) -> Iterator[str]:
    constructor = definition.name == "__init__"
    shown = owner if constructor else definition.name
    decorators = [ast.unparse(each) for each in definition.decorator_list]
    yield f"{level} {f'{owner}(…)' if constructor else f'{owner}.{shown}' if owner else shown}"
    yield f"```python\n{_signature(definition, str(shown), decorators)}\n```"
    yield _prose(ast.get_docstring(definition))


def _signature(
    definition: ast.FunctionDef | ast.AsyncFunctionDef, name: str, decorators: list[str]
) -> str:
    arguments = definition.args
    positional = arguments.posonlyargs + arguments.args
    if positional and positional[0].arg in ("self", "cls"):
        (arguments.posonlyargs or arguments.args).pop(0)
    returns = f" -> {_annotation(definition.returns)}" if definition.returns else ""
    if "property" in decorators:
        return f"{name}{returns.replace(' ->', ':')}"
    taken = _listed(arguments)
    if isinstance(definition, ast.AsyncFunctionDef):
        uses = "async with " if "asynccontextmanager" in decorators else "await "
        returns = re.sub(r"AsyncIterator\[(.*)\]", r"\1", returns)
    else:
        uses = ""
    return f"{uses}{name}({taken}){'' if name != definition.name else returns}"


def _listed(arguments: ast.arguments) -> str:
    """Return the arguments on one line if they fit beside a name, else one a line."""
    each = list(_each(arguments))
    line = ", ".join(each)
    return line if len(line) <= LINE else "\n    " + ",\n    ".join(each) + ",\n"


def _each(arguments: ast.arguments) -> Iterator[str]:
    positional = arguments.posonlyargs + arguments.args
    required = len(positional) - len(arguments.defaults)
    yield from starmap(
        _argument, zip(positional, [None] * required + arguments.defaults, strict=True)
    )
    if arguments.vararg:
        yield f"*{_argument(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    yield from starmap(_argument, zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    if arguments.kwarg:
        yield f"**{_argument(arguments.kwarg)}"


def _argument(argument: ast.arg, default: ast.expr | None = None) -> str:
    declared = f": {_annotation(argument.annotation)}" if argument.annotation else ""
    given = f" = {ast.unparse(default)}" if default else ""
    return argument.arg + declared + given


def _annotation(node: ast.expr) -> str:
    """Return a type as it is read, without the quotes of a name that is imported later."""
    is_quoted = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return str(node.value) if is_quoted else ast.unparse(node)


def _prose(docstring: str | None) -> str:
    """Return a Google-style docstring as Markdown: sections become lists, an example code."""
    if not docstring:
        return ""
    with_code = _EXAMPLE.sub(_example, docstring + "\n")
    return _SECTION.sub(_section, with_code).strip()


def _example(section: re.Match[str]) -> str:
    return f"```python\n{textwrap.dedent(section[1]).strip()}\n```\n"


def _section(section: re.Match[str]) -> str:
    body = textwrap.dedent(section[2]).rstrip()
    entries = re.split(r"\n(?=\S)", body)
    items = "\n".join(
        f"- {_ENTRY.sub(lambda entry: f'`{entry[1]}`: ', ' '.join(entry.split()), count=1)}"
        for entry in entries
    )
    return f"**{section[1]}**\n\n{items}\n\n"
