"""`rebaser services`: list services; print a typed client of one, or a caller's permissions.

A client is a module of Python made of the service's description. That is foreign text: names are
printed if they are identifiers, all else by `repr`.
"""

import argparse
import builtins
import json
import keyword
import re
from collections.abc import Collection, Iterable
from typing import Any, Final

from rebaser_core.calls import ServiceRecordV1, service_id
from rebaser_core.subjects import Subjects
from rebaser_server.commands.support.deployment import Deployment, with_deployment
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import say
from rebaser_server.terminal.tables import show_cells


async def show_services(settings: Settings, arguments: argparse.Namespace) -> int | None:
    if arguments.permissions is None:
        return await _list(settings, arguments)
    granted = permissions(Subjects(settings.nats.prefix), arguments.permissions)
    say(*f"permissions: {json.dumps(granted, indent=2)}".splitlines())
    return None


@with_deployment
async def _list(deployment: Deployment, arguments: argparse.Namespace) -> None:
    if arguments.stub is not None:
        say(*stub(await deployment.client.service(arguments.stub).describe()).splitlines())
        return
    records = await deployment.client.workspaces.services()
    rows = [(each.name, each.version, ", ".join(sorted(each.handlers))) for each in records]
    plain = [record.to_wire() for record in records]
    headings = ("service", "version", "handlers")
    show_cells(headings, rows, arguments, plain=plain, nothing="no services yet")


def permissions(subjects: Subjects, services: Iterable[str]) -> dict[str, list[str]]:
    """Return the subjects of a user in the account CLIENTS of `deploy/nats/accounts.conf`."""
    publish, bucket = [], subjects.change_sets_bucket
    for workspace in map(service_id, services):
        kinds = (("requests",), ("tasks", "process"), ("outcomes",), ("states",))
        publish += [subjects.join(f"rebaser.{kind}", workspace, "*", *end) for kind, *end in kinds]
        record = f"$KV.{bucket}.{workspace}.service.description"
        publish.append(f"js.rebaser.DIRECT.GET.KV_{bucket}.{record}")
    return {"subscribe": ["_INBOX.client.NAME.>"], "publish": publish}


_HEAD: Final = """\
from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict, Unpack

from rebaser_client import RebaserClient
"""
_IMPORTED: Final = {"Any", "Literal", "NotRequired", "TypedDict", "Unpack", "RebaserClient"}
_OF_CALL: Final = {"self", "more", "result", "returns", "request_id", "timeout"}
"""Names that an argument cannot have, by name."""
_PLAIN: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


def stub(record: ServiceRecordV1) -> str:
    """Return the module."""
    words = "".join(word.capitalize() for word in re.findall("[A-Za-z0-9]+", record.name))
    name = f"{'' if words[:1].isalpha() else 'Service'}{words}Key"
    types = _Types({*dir(builtins), *_IMPORTED, *record.handlers, "_Service", name})
    methods = [_method(types, *each) for each in sorted(record.handlers.items())]
    return (
        f"# Client of service {record.name!r}, version {record.version}: "
        "printed by `rebaser services --stub`.\n"
        f"{_HEAD}\n\nclass _Service:\n    name = {record.name!r}\n    version = {record.version}\n"
        f"{''.join(types.classes.values())}\n\nclass {name}:\n"
        f"    def __init__(self, client: RebaserClient, key: str) -> None:\n"
        f"        self.at_key = client.service(_Service()).key(key)\n{''.join(methods)}"
    )


def _method(types: "_Types", name: str, described: Any) -> str:
    arguments, required = described["arguments"], described["required"]
    taken, given = ["self"], [repr(name)]
    if described.get("named", True) and _are_names(*arguments, taken=_OF_CALL):
        for each in required:
            taken.append(f"{each}: {types.of(arguments[each])}")
            given.append(f"{each}={each}")
        optional = {each: arguments[each] for each in arguments if each not in required}
        if optional:
            more = types.declare(f"{name}_options", optional, ())
            taken.append(f"**more: Unpack[{more}]")
            given.append("**more")
    else:
        taken += ["*arguments: Any", "**named: Any"]
        given += ["*arguments", "**named"]
    result, doc = types.of(described["result"]), described["doc"]
    hidden = {"str", "int", "float", "bool", "list", "dict", "at_key", *_IMPORTED}
    method = name if _are_names(name, taken=hidden) else f"{name}_"
    return (
        f"\n    async def {method}({', '.join(taken)}) -> {result}:\n"
        + (f"        {doc!r}\n" if doc else "")
        + f"        result: {result} = await self.at_key.call({', '.join(given)})\n"
        "        return result\n"
    )


class _Types:
    """Types of Python for JSON schemas."""

    def __init__(self, taken: Collection[str]) -> None:
        self.classes: dict[str, str] = {}
        """Classes of objects that types name, by their names, which are none of `taken`."""
        self._taken, self._shapes = taken, dict[str, Any]()

    def of(self, schema: Any, definitions: Any = None) -> str:
        """Return the type of what fits the schema, or a wider one."""
        schema = schema if isinstance(schema, dict) else {}
        definitions = schema.get("$defs", definitions) or {}
        match schema:
            case {"$ref": str(reference)}:
                target = definitions.get(name := reference.rpartition("/")[2], {})
                ends = "properties" in target or "enum" in target  # another one may name itself
                kind = self.of({"title": name, **target}, definitions) if ends else "Any"
            case {"enum": [*values]} if all(isinstance(each, str | int) for each in values):
                kind = f"Literal[{', '.join(map(repr, values))}]"
            case {"anyOf": [*several]} | {"oneOf": [*several]}:
                kinds = dict.fromkeys(self.of(each, definitions) for each in several)
                kind = "Any" if "Any" in kinds else " | ".join(kinds)
            case {"properties": dict(fields), "title": str(title)} if _are_names(title, *fields):
                kind = self.declare(title, fields, schema.get("required", ()), definitions)
            case {"type": "object"}:
                kind = f"dict[str, {self.of(schema.get('additionalProperties'), definitions)}]"
            case {"type": "array"}:
                kind = f"list[{self.of(schema.get('items'), definitions)}]"
            case {"type": "null"}:
                kind = "None"
            case _:
                kind = _PLAIN.get(schema.get("type"), "Any")
        return kind

    def declare(self, title: str, fields: Any, required: Any, definitions: Any = None) -> str:
        """Return the name of a class with these fields."""
        shape, name = (fields, required), title
        while name in self._taken or self._shapes.get(name, shape) != shape:
            name += "_"
        if name not in self._shapes:  # else it may name itself
            self._shapes[name] = shape
            kinds = {each: self.of(schema, definitions) for each, schema in fields.items()}
            kinds |= {each: f"NotRequired[{kinds[each]}]" for each in kinds if each not in required}
            body = "\n".join(f"    {each}: {kind}" for each, kind in kinds.items()) or "    pass"
            self.classes[name] = f"\n\nclass {name}(TypedDict):\n{body}\n"
        return name


def _are_names(*texts: str, taken: Collection[str] = ()) -> bool:
    is_each = (each.isascii() and each.isidentifier() and each not in taken for each in texts)
    return all(is_each) and not any(keyword.iskeyword(x) or x.startswith("__") for x in texts)
