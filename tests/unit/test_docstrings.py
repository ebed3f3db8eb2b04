"""Docstrings and comments of the product name what exists, and who does what."""

import ast
import builtins
import io
import re
import tokenize
from collections.abc import Iterator
from typing import Final

import pytest

from tests.helpers.product import MODULES

ELSEWHERE: Final = {
    "HADOOP_CONF_DIR",  # of Hadoop
    "JavaModuleOptions",  # in Spark
    "SSLError",  # in Python's `ssl`
    "wait_for",  # in Python's `asyncio`
    "rtt",  # in nats-py
    "Size",  # Nats-Msg-Size, a header of NATS
    "P_REBASER_REQUESTS",  # a stream, if the prefix is P
    "ws",  # in a subject, any workspace
    "v1",  # the key of a body in version 1
    "importlinter",  # a file of the repository
    "sh",  # its ending, in spark-env.sh
}
"""Names in backticks that the product need not define. This list only shrinks."""

SETTINGS: Final = ("REBASER_", "OTEL_")
"""How variables begin whose whole names the code does not have."""

IDENTIFIER = re.compile(r"[A-Za-z_]\w+")
QUOTED = re.compile(r"`+([^`]+)`+")
CHARACTER = re.compile(r"\\[xu][0-9a-f]+")
RIDDLE = re.compile(
    r"\b(whoever|somebody|nobody|anybody|is told|are told|whatever|octets?|so many|besides)\b"
    r"|\bhowever (large|long|many|often)\b",
    re.IGNORECASE,
)
"""Words that hide the actor, or stand for something that has a name."""

NOT_FIRST = re.compile(
    r"\W*(after|as|at|because|before|behind|below|beside|between|but|by|during|for|from|if|in|into"
    r"|like|likewise|of|on|once|only|per|since|so|than|through|to|toward|under|until|up|while"
    r"|with|within|without|another|anything|everything|it|its|nobody|nothing|something|that|their"
    r"|them|these|they|this|those|how|what|when|where|which|who|whom|whose|why|most|neither|never"
    r"|no|none|nor|not|been|has|have|is|are|was|were|does)\b",
    re.IGNORECASE,
)
"""Words with which a docstring does not begin. Nouns, imperative verbs and *Whether* are right."""

TEXTS: Final = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
"""Types of tokens with texts: from Python 3.12 on, f-strings come in pieces."""

RAISED = re.compile(r"^ +((?:[A-Z]\w+, )*[A-Z]\w+): ", re.MULTILINE)


def names_in(source: str) -> Iterator[str]:
    """Every name that the code defines or uses, and every word of its short texts."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.string
        elif token.type in TEXTS and not token.string.startswith(('"""', 'r"""')):
            yield from IDENTIFIER.findall(token.string)


def prose_in(source: str) -> Iterator[tuple[int, str]]:
    """Every docstring and comment, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or token.string.startswith(('"""', 'r"""')):
            yield token.start[0], token.string


def docstrings_in(source: str) -> Iterator[tuple[int, str]]:
    """Every docstring, those of attributes and constants among them, with its line."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        documented = documented or isinstance(node, ast.AsyncFunctionDef)
        for before, statement in zip([None, *body], body, strict=False):
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))) if (
                    documented if before is None else isinstance(before, ast.Assign | ast.AnnAssign)
                ):
                    yield statement.lineno, text


def raised_in(source: str) -> Iterator[str]:
    """Every error in the section *Raises* of a docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            _, _, section = (ast.get_docstring(node) or "").partition("\nRaises:\n")
            for names in RAISED.findall(section):
                yield from names.split(", ")


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Names of the product, of its modules and packages, and of what is built in."""
    names = {*ELSEWHERE, *dir(builtins), "py"}
    for path, source in MODULES.items():
        names.update(IDENTIFIER.findall(path))
        names.update(names_in(source))
    return names


def test_a_name_in_backticks_exists(known: set[str]) -> None:
    """A rename is complete once every docstring and comment has the present name."""
    unknown = [
        f"{path}:{line}: {name}"
        for path, source in MODULES.items()
        for line, text in prose_in(source)
        for quoted in QUOTED.findall(text)
        for name in IDENTIFIER.findall(CHARACTER.sub("", quoted))
        if name not in known and not name.startswith(SETTINGS)
    ]

    assert unknown == []


def test_an_error_that_a_docstring_says_is_raised_exists(known: set[str]) -> None:
    """A caller may catch what the section *Raises* names."""
    unknown = [
        f"{path}: {name}"
        for path, source in MODULES.items()
        for name in raised_in(source)
        if name not in known
    ]

    assert unknown == []


def test_the_actor_is_named() -> None:
    """A reader learns which part of the system does it."""
    hidden = [
        f"{path}:{line}: {found[0]}"
        for path, source in MODULES.items()
        for line, text in prose_in(source)
        if (found := RIDDLE.search(QUOTED.sub("", text)))
    ]

    assert hidden == []


def test_a_docstring_begins_with_a_noun_or_a_verb() -> None:
    """A reader learns from the first word what it is about."""
    riddles = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path, source in MODULES.items()
        for line, text in docstrings_in(source)
        if NOT_FIRST.match(text)
    ]

    assert riddles == []
