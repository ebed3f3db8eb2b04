"""Spoilt files, arguments and settings, given to the command line in this process.

Files are valid ones with octets and words changed; arguments and variables are drawn from words
that other tools stumbled over. NATS is not there: a file that a command takes ends with code 69,
and what is planned of it is compared with what another reader says.
"""

import csv
import io
import json
import random
import re
import signal
import tempfile
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from rebaser_client import InvalidDraft
from rebaser_client.documents import parse_json
from rebaser_client.graph_files import read_graph_file, read_table_file
from rebaser_client.plan import build_plan
from rebaser_core.updates import PutValue
from rebaser_server.commands.cli import build_parser
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.settings.settings import setting_names
from tests.helpers.command_line import Done, run_command

NOWHERE = {"REBASER_NATS__URL": "nats://127.0.0.1:1", "REBASER_NATS__CONNECT_TIMEOUT": "PT0.02S"}
BY_COMMAND = 0.1
"""Share of the files that a command reads; the functions behind it read the others, faster."""

PATIENCE = 60
"""Seconds until a command is said to hang, on a machine that may be busy."""

GRAPH = {
    "functions": {"twice": {"cel": "a * 2.0"}, "all": {"builtin": "sum"}},
    "sources": {"a": 1.5, "b/c": [1, "x", None, {"k": True}], "d": "010"},
    "values": {"e": {"function": "all", "inputs": ["a"]}},
    "remove": ["old"],
}
ROWS = [{"name": "a", "value": 1}, {"name": "b", "value": -2}, {"name": "c d", "value": None}]
YAML = """\
functions: {twice: {cel: "a * 2.0"}}
sources: &s
  a: 1e3   # ten
  b/c: [NO, 12:30:00, 010, "q", 'x', ~]
  d: {x: &x {k: 0x1F}, y: *x}
values:
  e: {function: twice, inputs: {a: a}}
remove: [old]
"""
TOML = """\
remove = ["old"]
[sources]
a = 1.5
"b/c" = [1, "x", {k = true}]
d = '''
long'''
[values.e]
function = "sum"
inputs = ["a"]
"""
CSV = 'name,value\na,1\n"b ""q""\n",2.5\nc,1234567890123456789\n'
UPDATES = [{"setValue": {"valueId": "01M81N6GT09Y84DVJTHDECX696", "value": {"a": [1, None]}}}]

WORDS = [
    *(b"\xef\xbb\xbf", b"\xff", b"\0", b"\r", b"\n", b"\t", b'"', b"'", b'""', b",", b":", b": "),
    *(b"&a ", b"*a", b"<<: *s\n", b"!!set ", b"!x ", b"---\n", b"...\n", b"%YAML 1.1\n", b"| \n"),
    *(b"? ", b"- ", b"[" * 3000, b"{" * 3000, b"[[", b"]", b"{", b"}", b"#", b"9" * 5000, b"1e999"),
    *(b"NaN", b".nan", b"-Infinity", b"0b_", b"0x", b"2026-13-45", b"2026-01-01T25:00:00", b"~"),
    *(b'"a": 1, "a": 2', b"a: 1\na: 2\n", b"\\ud800", b"\\u0000", b"\xc2\x85", b"\xe2\x80\xa8"),
    *(b"a." * 500, b"null", b"[]", b"{}", b"", b"sources", b"tables", b"18446744073709551616"),
]
"""Pieces that are put into files, each once the cause of a fault."""

ARGUMENTS = [
    *("", "-", "--", "-1", "-1e5", "--json", "--wait", "--timeout", "1e999", "nan", "0", "--at"),
    *(
        "shop",
        "shop/winter",
        "/",
        "//",
        "a" * 5000,
        "\udcff",
        "\u202e",
        "\n",
        "*",
        "%s",
        "{",
        "[1]",
    ),
    *("--help", "--prune", "--yes", "--text", "--map", "=", "a=b", "-x", "--no-such"),
    *(
        "01M81N6GT09Y84DVJTHDECX696",
        "01m81n6gt09y84dvjthdecx696",
        "99999999999999999999",
        "/dev/null",
    ),
]
NONSENSE = [
    *("", " ", "-1", "0", "nan", "1e999", "{", "[]", "null", '{"a": 1}', "\udcff", "\u202e", "P"),
    *("PT99999999999999S", "9" * 5000, "true", "/dev/null/x", "a\nb", "é", "-PT1S", "['"),
]
VARIABLES = {
    "COLUMNS": NONSENSE,
    "LINES": NONSENSE,
    "HOME": ["", "/dev/null", "relative", "\udcff"],
    "XDG_CONFIG_HOME": ["", "/dev/null", "relative", "/proc/none", "\udcff"],
    "XDG_STATE_HOME": ["", "/dev/null", "relative", "/proc/none", "\udcff"],
    "TERM": ["", "none", "dumb", "\udcff"],
    "NO_COLOR": ["", "1"],
    "FORCE_COLOR": ["", "1"],
    "TZ": ["Nowhere/None", ":::", ""],
    "LC_ALL": ["none", "C"],
    "OTEL_TRACES_SAMPLER": NONSENSE,
    "OTEL_SERVICE_NAME": NONSENSE,
    "REBASER_NATS__URL": ["", ",", "::::", "nats://127.0.0.1:99999", "nats://[", "127.0.0.1:x"],
    "REBASER_NO_SUCH": ["1"],
}
NETWORK = ("REBASER_NATS__", "REBASER_SPARK__MASTER")
"""Settings that are given no words which could be names of hosts."""

LONG_RUNNING = {"serve", "up", "train", "demo", "init", "completion"}


@dataclass
class Figures:
    """What was tried, and what was wrong."""

    tried: int = 0
    taken: int = 0
    """Files that a command took, all compared with another reader."""
    faults: list[str] = field(default_factory=list)


class Hang(Exception):
    """A command did not end."""


def fuzz(seed: int, enough: Callable[[Figures], bool]) -> Figures:
    """Try inputs until it is enough; the seed decides which."""
    rng, figures = random.Random(seed), Figures()
    commands = _commands()
    kinds = [*[_try_file] * 30, lambda *a: _try_words(*a, commands), _try_settings]
    before = signal.signal(signal.SIGALRM, _hang)
    try:
        with tempfile.TemporaryDirectory(prefix="rebaser-fuzz-") as directory:
            while not enough(figures):
                rng.choice(kinds)(rng, Path(directory), figures)
                figures.tried += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    return figures


def _hang(*_: object) -> None:
    raise Hang


def _run(words: list[str], variables: dict[str, str], figures: Figures, about: object) -> Done:
    """Run a command, and note what no command may do."""
    signal.alarm(PATIENCE)
    try:
        done = run_command(words, NOWHERE | variables)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        done = Done(-1, "", f"Traceback: {type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
    documented = done.code in [*Exit]
    if not documented or "Traceback" in done.err or "a fault of Rebaser's own" in done.err:
        figures.faults.append(f"{words} {variables} {about!r:.3000}: {done.code} {done.err[-800:]}")
    return done


def _try_file(rng: random.Random, directory: Path, figures: Figures) -> None:
    suffix, sound = rng.choice(_sound_files())
    octets = _spoil(rng, sound)
    file = directory / f"file{suffix}"
    file.write_bytes(octets)
    home = {"XDG_STATE_HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
    by_command = rng.random() < BY_COMMAND
    if suffix == ".updates" and not by_command:
        with suppress(InvalidDraft, UnicodeDecodeError):
            _call(lambda: parse_json(octets.decode()), figures, octets)
        return
    if suffix == ".updates":
        _run(["enqueue", "shop", str(file)], home, figures, octets)
        with suppress(UnicodeDecodeError):
            _run(["values", "set", "shop", "a", octets.decode()], home, figures, octets)
        return
    if (
        by_command
        and _run(["load", "--dry-run", "shop", str(file)], home, figures, octets).code
        == Exit.FAILED
    ):
        return
    is_table = suffix in (".csv", ".jsonl", ".parquet")
    try:
        read = read_table_file if is_table else read_graph_file
        updates = _call(lambda: build_plan(read(file), {}).updates, figures, octets)
    except (InvalidDraft, OSError):
        return
    if updates is None:
        return
    figures.taken += 1
    planned = {
        update.name: update.value
        for update in updates
        if isinstance(update, PutValue) and update.func_id is None
    }
    try:
        said = _OTHER_READERS[suffix](octets)
    except Exception as error:  # noqa: BLE001 - it reads what the other does not
        figures.faults.append(f"{octets!r:.3000}: taken, but {type(error).__name__}: {error}")
        return
    if said is not None and not _same(planned, said):
        figures.faults.append(
            f"{suffix} {octets!r:.3000}: planned {planned!r}, but it says {said!r}"
        )


def _call(work: Callable[[], Any], figures: Figures, about: object) -> Any:
    """What a function of the product returns; note what it may not raise."""
    signal.alarm(PATIENCE)
    try:
        return work()
    except (InvalidDraft, OSError, UnicodeDecodeError):
        raise
    except Exception as error:  # noqa: BLE001 - that is looked for
        figures.faults.append(f"{about!r:.3000}: {type(error).__name__}: {error}")
        return None
    finally:
        signal.alarm(0)


def _sound_files() -> list[tuple[str, bytes]]:
    parquet = io.BytesIO()
    pq.write_table(pa.table({key: [row[key] for row in ROWS] for key in ROWS[0]}), parquet)
    return [
        (".json", json.dumps(GRAPH, indent=1).encode()),
        (".yaml", json.dumps(GRAPH).encode()),
        (".yaml", YAML.encode()),
        (".toml", TOML.encode()),
        (".csv", CSV.encode()),
        (".csv", "name,value\na,1\nb,é\n".encode()),
        (".jsonl", "\n".join(map(json.dumps, ROWS)).encode()),
        (".parquet", parquet.getvalue()),
        (".updates", json.dumps(UPDATES).encode()),
    ]


def _spoil(rng: random.Random, octets: bytes) -> bytes:
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        start = rng.randrange(len(octets) + 1)
        end = min(len(octets), start + rng.choice((0, 0, 1, 2, 8)))
        match rng.randrange(4):
            case 0:
                octets = octets[:start] + rng.choice(WORDS) + octets[end:]
            case 1:
                octets = octets[:start] + bytes([rng.randrange(256)]) + octets[end:]
            case 2:
                other = rng.randrange(len(octets) + 1)
                octets = octets[:start] + octets[other : other + rng.randrange(30)] + octets[end:]
            case _:
                octets = octets[:start] if rng.random() < 0.2 else octets[:start] + octets[end:]
    return octets


def _try_words(
    rng: random.Random, directory: Path, figures: Figures, commands: list[list[str]]
) -> None:
    words = [*rng.choice(commands), *rng.choices(ARGUMENTS, k=rng.randrange(5))]
    home = {"XDG_STATE_HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
    _run(words, home, figures, "")


def _commands() -> list[list[str]]:
    def below(parser: Any) -> list[list[str]]:
        groups = [action for action in parser._actions if isinstance(action.choices, dict)]
        return [parser.prog.split()[1:]] + [
            found for group in groups for each in group.choices.values() for found in below(each)
        ]

    return [words for words in below(build_parser()) if not LONG_RUNNING & {*words}]


def _try_settings(rng: random.Random, directory: Path, figures: Figures) -> None:
    names = [name for name in setting_names() if not name.startswith(NETWORK)]
    variables = {}
    for _ in range(rng.choice((1, 1, 2, 4))):
        if rng.random() < 0.4:
            name = rng.choice([*VARIABLES])
            variables[name] = rng.choice(VARIABLES[name])
        else:
            name = rng.choice(names)
            variables[name if rng.random() < 0.9 else name.partition("__")[0]] = rng.choice(
                NONSENSE
            )
    words = rng.choice((["values", "shop"], ["settings"], ["queue"], ["values", "--help"]))
    _run(words, {"XDG_STATE_HOME": str(directory)} | variables, figures, "")


def _same(planned: dict[str, Any], said: dict[str, Any]) -> bool:
    return planned.keys() == said.keys() and all(_agree(planned[n], said[n]) for n in said)


class Text(str):
    """A scalar without its type: what stands there."""

    __slots__ = ()


def _agree(one: Any, other: Any) -> bool:
    """Whether a value is what the other reader says, who may only know the text of a scalar."""
    if isinstance(other, Text):
        return _stands_for(one, str(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_agree(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_agree, one, other))
    return type(one) is type(other) and one == other


def _stands_for(one: Any, text: str) -> bool:
    if isinstance(one, str):
        return one == text
    if one is None:
        return text in ("", "~", "null", "Null", "NULL")
    if isinstance(one, bool):
        return text.lower() == str(one).lower()
    if isinstance(one, int):
        return int(text, 0 if text[:2] in ("0x", "0o") else 10) == one
    return bool(float(text) == one)


def _yaml(octets: bytes) -> dict[str, Any] | None:
    text = octets.decode("utf-8-sig")
    if any(each in text for each in ("<<", "!", "\t", "?")):
        return None  # where the two readers are not of one mind, or know other rules
    if re.search(r"[&*][\w-]*[^\w\s,\]}-]", text):
        return None  # an anchor's name has more characters in YAML 1.2
    try:
        return _texts(yaml.load(text, Loader=yaml.BaseLoader).get("sources", {}))  # noqa: S506
    except yaml.YAMLError:
        return None  # YAML 1.1 has fewer anchors and tags


def _texts(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _texts(item) for key, item in data.items()}
    return [*map(_texts, data)] if isinstance(data, list) else Text(data)


def _csv(octets: bytes) -> dict[str, Any]:
    lines = io.StringIO(octets.decode("utf-8-sig"), newline="")
    header, *rows = [row for row in csv.reader(lines, strict=True) if row]
    name, value = header.index("name"), header.index("value")
    return {row[name]: Text(row[value]) for row in rows}


def _json_lines(octets: bytes) -> dict[str, Any]:
    rows = [json.loads(line) for line in octets.decode("utf-8-sig").split("\n") if line.strip()]
    return {str(row["name"]): row.get("value") for row in rows}


def _parquet(octets: bytes) -> dict[str, Any]:
    rows = pq.read_table(io.BytesIO(octets)).to_pylist()
    return {str(row["name"]): row["value"] for row in rows}


_OTHER_READERS: dict[str, Callable[[bytes], dict[str, Any] | None]] = {
    ".json": lambda octets: json.loads(octets.decode("utf-8-sig")).get("sources", {}),
    ".toml": lambda octets: tomllib.loads(octets.decode("utf-8-sig")).get("sources", {}),
    ".yaml": _yaml,
    ".csv": _csv,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
