"""`docs/wire.md` is true: its examples decode, and its tables are complete."""

import ast
import inspect
import json
import re

import pytest
from blake3 import blake3
from pydantic import TypeAdapter

from rebaser_core import codecs, query_protocol
from rebaser_core.activities import ActivityKind
from rebaser_core.calls import key_of
from rebaser_core.messages import CUT, MORE, ObjectRef, RequestState, UpdatesAddress, UpdatesBatch
from rebaser_core.stream_configs import StreamOptions, stream_configs
from rebaser_core.subjects import Subjects
from rebaser_core.updates import _KINDS, UpdateList
from rebaser_core.versioning import (
    APPLY_REQUEST,
    AUTHOR,
    CONTENT_TYPE,
    MESSAGE_ID,
    MESSAGE_TYPE,
    REPLY_INBOX,
    REQUEST_DIGEST,
)
from rebaser_server.processor import dead_letters
from rebaser_server.values import rebase
from tests.helpers.paths import ROOT
from tests.wire.samples import TYPES

DOCUMENT = (ROOT / "docs" / "wire.md").read_text()
BLOCKS = re.findall(r"<!-- ([a-z]+(?:: \w+)?) -->\n```json\n(.*?)\n```", DOCUMENT, re.DOTALL)


def blocks(mark):
    return [text for marked, text in BLOCKS if marked == mark]


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", DOCUMENT, re.DOTALL | re.MULTILINE)[1]


def first_column(title):
    return re.findall(r"^\| `([^`]+)`", section(title), re.MULTILINE)


def test_every_json_block_is_checked():
    assert len(BLOCKS) == DOCUMENT.count("```json") > 10


@pytest.mark.parametrize(
    ("name", "text"),
    [(mark.removeprefix("decode: "), text) for mark, text in BLOCKS if mark.endswith(tuple(TYPES))],
)
def test_an_example_decodes(name, text):
    message = TYPES[name].decode_stored(text.encode())

    assert TYPES[name].decode(*TYPES[name].encode(message)) == message


def test_an_address_decodes():
    [text] = blocks("decode: address")

    assert isinstance(TypeAdapter(UpdatesAddress).validate_json(text), ObjectRef)


def test_updates_decode_and_are_of_every_kind():
    [text] = blocks("decode: updates")

    updates = TypeAdapter(UpdateList).validate_python(codecs.loads(codecs.JSON, text.encode()))

    assert {update.KIND for update in updates} == set(_KINDS)


def test_the_complete_example_decodes_under_its_headers():
    """Byte for byte what a program in another language would send, and what it would get."""
    for headers, body in zip(map(json.loads, blocks("headers")), blocks("body"), strict=True):
        message = TYPES[headers[MESSAGE_TYPE]].decode(headers, body.encode())

        assert headers[MESSAGE_ID] == str(message.id)


def test_the_complete_example_names_its_subjects():
    request, _ = (codecs.loads(codecs.JSON, body.encode()) for body in blocks("body"))
    where = f"{request['v1']['workspaceId']}.{request['v1']['changeSetId']}"
    steps = section("A complete example")

    for subject in (f"rebaser.requests.{where}", f"rebaser.tasks.{where}.process"):
        assert f"`{subject}`" in steps
        assert str(Subjects().parse_change_set(subject)) == where


def test_the_ids_of_a_call_follow_from_its_names():
    [text] = blocks("decode: CallRequest")
    call = json.loads(text)["v1"]
    where = key_of(call["service"], call["key"])
    steps = section("Calls")

    assert {"workspaceId", "changeSetId"} <= call.keys()
    assert f"{call['workspaceId']}.{call['changeSetId']}" == str(where)
    assert f"`{where.workspace_id.bytes.hex()}`" in steps
    for subject in (f"rebaser.requests.{where}", f"rebaser.tasks.{where}.process"):
        assert f"`{subject}`" in steps
    for answer in blocks("decode: EnqueueUpdatesResponse"):
        [response] = json.loads(answer).values()
        if response["id"] == call["id"]:
            assert f"{response['workspaceId']}.{response['changeSetId']}" == str(where)


def test_the_object_is_named_by_its_bytes_and_holds_the_requests_id():
    [text] = blocks("object")
    request = json.loads(blocks("decode: EnqueueUpdatesRequest")[-1])["v1"]

    batch = UpdatesBatch.decode_stored(text.encode())

    assert request["updatesAddress"] == {"object": blake3(text.encode()).hexdigest()}
    assert str(batch.id) == request["id"]


def test_the_page_lists_every_stream_and_subject():
    told = section("Streams and subjects")

    for config in stream_configs(Subjects(), StreamOptions()):
        assert f"`{config.name}`" in told
        assert config.subjects[0].removesuffix(">") in told
    assert f"`{Subjects().batches_bucket}`" in told


def test_the_page_lists_every_header():
    told = first_column("Headers")

    assert {
        CONTENT_TYPE,
        MESSAGE_TYPE,
        "X-MESSAGE-VERSION",
        MESSAGE_ID,
        REPLY_INBOX,
        APPLY_REQUEST,
        AUTHOR,
        REQUEST_DIGEST,
        *(
            query_protocol.ACCEPTS_PIECES,
            query_protocol.REPLY_TIMEOUT,
            query_protocol.PIECE,
            query_protocol.RETRY_AFTER,
        ),
        "traceparent",
    } == set(told)


def test_the_page_lists_every_version():
    rows = re.findall(r"^\| `(\w+)` \| ([\d, ]+) \|", section("Versions"), re.MULTILINE)

    assert {name: int(versions.split(",")[-1]) for name, versions in rows} == {
        name: kind.current.VERSION for name, kind in TYPES.items()
    }


def test_the_page_lists_every_update_with_its_fields():
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section("Updates"), re.MULTILINE)

    assert {kind: fields.strip() for kind, fields in rows} == {
        kind: ", ".join(
            f"`{field.alias}`{'' if field.is_required() else '?'}"
            for field in shape.model_fields.values()
        )
        for kind, shape in _KINDS.items()
    }


def test_the_page_lists_every_correction():
    """The codes are constants of the calls that make them."""
    trees = [ast.parse(inspect.getsource(module)) for module in (rebase, rebase)]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    codes = [call.args[0] for call in calls if getattr(call.func, "attr", "") == "_correct"] + [
        word.value for call in calls for word in call.keywords if word.arg == "code"
    ]

    made = {code.value for code in codes if isinstance(code, ast.Constant)}
    assert set(first_column("Corrections")) == made | {MORE, CUT}


def test_the_page_lists_every_dead_letter_header():
    named = {v for k, v in vars(dead_letters).items() if k.isupper() and str(v).startswith("X-")}

    assert set(first_column("Dead letters")) == named


def test_the_page_lists_every_activity():
    assert first_column("Activities") == [kind.value for kind in ActivityKind]


def test_the_page_lists_every_state_of_a_request():
    assert first_column("Asking later") == [state.value for state in RequestState]


def test_the_page_has_the_limits_as_they_are():
    assert f"at most {codecs.MAX_MESSAGE_DEPTH} arrays and objects" in section("Bodies").lower()
    assert f"at most {codecs.MAX_DEPTH} in a value" in section("Bodies")
