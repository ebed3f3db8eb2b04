"""The named instances: small worlds that are explored completely."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple

from tests.model import pausing
from tests.model.applying import Applying
from tests.model.built import Built
from tests.model.explorer import Model
from tests.model.keeping import Keeping
from tests.model.pasts import Pasts
from tests.model.pausing import Pausing
from tests.model.power_cuts import PowerCuts
from tests.model.presence import Presence
from tests.model.reference import Reference
from tests.model.remembering import Remembering
from tests.model.ringing import Ringing
from tests.model.ringing import Rules as RingingRules
from tests.model.sending import Sending
from tests.model.shapes import Instance, Rules
from tests.model.streams_made_anew import MadeAnew

PROMPT: Final = Rules(pending_requests=False, pending_dvus=False)
"""No reconciler: what must be well at once, not only a period later."""

NO_DVUS: Final = Rules(pending_dvus=False)
"""A reconciler that looks at requests alone."""

REFERENCE: Final[Mapping[str, Model]] = {
    "reference": Reference(requests=2),
    "reference-dvu": Reference(requests=2, dvus=True),
}

UNWATCHED: Final = RingingRules(looks=False)
"""Rules without the look for lost alarms, which would heal what the other rules break."""

World = (
    Applying
    | Instance
    | Keeping
    | MadeAnew
    | Pasts
    | Pausing
    | PowerCuts
    | Presence
    | Remembering
    | Ringing
    | Sending
)

SMALL: Final[Mapping[str, World]] = {
    "no-faults": Instance(("dd",)),
    "no-faults-prompt": Instance(("dd",), rules=PROMPT),
    "two-clients-prompt": Instance(("d", "p"), rules=PROMPT),
    "closed": Instance(("dc",), crashes=1),
    "crash": Instance(("dd",), crashes=1),
    "crash-prompt": Instance(("p",), crashes=1, rules=PROMPT),
    "client-crash": Instance(("d",), client_crashes=1),
    "lost-acks": Instance(("d",), losses=2, client_crashes=1),
    "zombie": Instance(("d",), zombies=1),
    "zombie-prompt": Instance(("d",), zombies=1, rules=PROMPT),
    "stop": Instance(("dp",), stops=1),
    "failures": Instance(("d",), failures=2),
    "parts": Instance(("dc",), parts=2, crashes=1),
    "parts-zombie": Instance(("d",), parts=1, zombies=1),
    "put-off": Instance(("p",), put_off=4),
    "poison": Instance(("xp",), crashes=1),
    "killer": Instance(("kp",)),
    "presumed-dead": Instance(("d",), presumptions=1),
    "presumed-dead-prompt": Instance(("d",), presumptions=1, rules=PROMPT),
    "presumed-dead-crash": Instance(("p",), presumptions=1, crashes=1),
    "given-back-crash": Instance(("p",), presumptions=1, crashes=1, unowned=True),
    "ahead": Instance(("pd",), at_once=2, pipelined=True),
    "ahead-prompt": Instance(("pd",), at_once=2, pipelined=True, rules=PROMPT),
    "ahead-crash": Instance(("pp",), at_once=2, pipelined=True, crashes=1),
    "ahead-losses": Instance(("pp",), at_once=2, losses=2),
    "ahead-strangers": Instance(("ppp",), at_once=3, strangers=2),
    "ahead-zombie": Instance(("pp",), at_once=2, zombies=1),
    "ahead-killer": Instance(("pk",), at_once=2),
    "together": Instance(("pd",), at_once=2, together=True, pipelined=True),
    "together-crash": Instance(("pp",), at_once=2, together=True, pipelined=True, crashes=1),
    "together-losses": Instance(("pp",), at_once=2, together=True, losses=2),
    "together-strangers": Instance(("ppp",), at_once=3, together=True, strangers=2),
    "together-zombie": Instance(("pp",), at_once=2, together=True, zombies=1),
    "together-killer": Instance(("pk",), at_once=2, together=True),
    "pipelined-crash": Instance(("d",), pipelined=True, crashes=1),
    "pipelined-prompt": Instance(("p",), pipelined=True, crashes=1, rules=PROMPT),
    "purging": Instance(("pd",), at_once=2, pipelined=True, purging=True),
    "purging-prompt": Instance(("pd",), at_once=2, pipelined=True, purging=True, rules=PROMPT),
    "purging-crash": Instance(("pp",), at_once=2, pipelined=True, purging=True, crashes=1),
    "purging-poison": Instance(("px",), pipelined=True, purging=True, crashes=1),
    "purging-zombie": Instance(("pp",), pipelined=True, purging=True, zombies=1),
    "turns": Instance(("dp",), turns=True),
    "turns-crash": Instance(("pd",), turns=True, crashes=1),
    "looks-prompt": Instance(("dd",), looks=True, rules=PROMPT),
    "looks-crash": Instance(("d",), looks=True, crashes=1),
    "looks-zombie": Instance(("p",), looks=True, zombies=1, crashes=1),
    "made-anew": MadeAnew(),
    "made-anew-twice": MadeAnew(requests=3, others=3, crashes=2, remakes=2),
    "pasts": Pasts(),
    "power-cuts": PowerCuts(),
    "pauses-prompt": Pausing(),
    "pauses": Pausing(dies=True, pauses=2, rules=pausing.Rules(reconciler=True)),
    "remembering": Remembering(),
    "reused-ids": Remembering(repeats=1, reuses=1),
    "applying": Applying(),
    "sending": Sending(),
    "sending-refused": Sending(requests=1, refusals=1),
    "ringing": Ringing(),
    "ringing-unwatched": Ringing(rules=UNWATCHED),
    "ringing-lost": Ringing(losses=1),
    "keeping": Keeping(),
    "presence": Presence(),
    "presence-older": Presence(answers=False),
}

BIG: Final[Mapping[str, World]] = {
    "sending-more": Sending(repeats=1),
    "keeping-more": Keeping(rooms=2, crashes=1),
    "three-requests-two-crashes": Instance(("dpd",), crashes=2),
    "two-clients-crashes": Instance(("dp", "d"), crashes=1, client_crashes=1),
    "failures-crash": Instance(("dd",), failures=2, crashes=1),
    "killer-crash": Instance(("kd",), crashes=1),
    "zombie-two-requests": Instance(("dp",), zombies=1),
    "zombie-crash": Instance(("d",), zombies=1, crashes=1),
    "zombie-poison-crash": Instance(("xp",), zombies=1, crashes=1),
    "zombie-closed": Instance(("dc",), zombies=1),
    "zombie-stop": Instance(("d",), zombies=1, stops=1),
    "zombie-put-off": Instance(("d",), zombies=1, put_off=1),
    "zombie-losses": Instance(("d",), zombies=1, losses=1, client_crashes=1),
    "presumed-dead-crash-dvu": Instance(("d",), presumptions=1, crashes=1),
    "presumed-dead-stop": Instance(("d",), presumptions=1, stops=1),
    "presumed-dead-zombie": Instance(("p",), presumptions=1, zombies=1, crashes=1),
    "two-survivors-prompt": Instance(("d",), presumptions=2, survivors=2, rules=PROMPT),
    "two-survivors-dvu": Instance(("d",), presumptions=2, survivors=2),
    "two-survivors-crash": Instance(("p",), presumptions=2, survivors=2, crashes=1),
    "two-survivors-three-runs": Instance(("p",), presumptions=2, survivors=2, runs=3),
    "three-survivors": Instance(("p",), presumptions=3, survivors=3),
    "given-back": Instance(("d",), presumptions=1, unowned=True),
    "given-back-prompt": Instance(("d",), presumptions=1, unowned=True, rules=PROMPT),
    "given-back-stop": Instance(("d",), presumptions=1, stops=1, unowned=True),
    "given-back-zombie": Instance(("p",), presumptions=1, zombies=1, crashes=1, unowned=True),
    "ahead-dvus-crash": Instance(("dd",), at_once=2, pipelined=True, crashes=1),
    "ahead-three-crash": Instance(("ppp",), at_once=3, pipelined=True, crashes=1, strangers=1),
    "ahead-zombie-losses": Instance(("pp",), at_once=2, pipelined=True, zombies=1, losses=1),
    "ahead-zombie-crash": Instance(("pp",), at_once=2, pipelined=True, zombies=1, crashes=1),
    "purging-zombie-crash": Instance(
        ("pp",), at_once=2, pipelined=True, purging=True, zombies=1, crashes=1
    ),
    "purging-dvus-crash": Instance(("dd",), at_once=2, pipelined=True, purging=True, crashes=1),
    "pipelined-zombie": Instance(("d",), pipelined=True, zombies=1),
    "many-pauses-prompt": Pausing(requests=4, rebasers=3, pauses=4),
    "many-pauses": Pausing(3, 3, pauses=3, dies=True, rules=pausing.Rules(reconciler=True)),
    "turns-three-dvus": Instance(("ddd",), turns=True, crashes=1),
    "turns-zombie": Instance(("dp",), turns=True, zombies=1),
    "ahead-turns-crash": Instance(("pd",), at_once=2, pipelined=True, turns=True, crashes=1),
}


class Flawed(NamedTuple):
    """An instance in which rules make the difference."""

    without: str
    """The rules, separated by blanks."""
    world: World
    problem: str
    """How what is found without them begins."""


FLAWED: Final[Mapping[str, Flawed]] = {
    "S-5": Flawed("identity", MadeAnew(), "S1"),
    "S-6": Flawed("equal", Pasts(), "S3"),
    "S-6-ids": Flawed("by_id", Pasts(), "S3"),
    "S-7": Flawed("synced", PowerCuts(), "S1"),
    "S-7-files": Flawed("files_first", PowerCuts(), "S1"),
    "S-7-read": Flawed("read_back", PowerCuts(), "S1"),
    "S-7-two": Flawed("one_more", PowerCuts(), "S1"),
    "C2": Flawed("poke_confirmed", Instance(("p",), losses=1, rules=PROMPT), "S1"),
    "W2": Flawed("takeover", Instance(("d",), zombies=1), "never rests"),
    "W2b": Flawed("heed_head", Instance(("d",), looks=True, crashes=1), "never rests"),
    "W2c": Flawed("last_line", Keeping(), "S1"),
    "W2c-id": Flawed("by_id", Keeping(), "S1"),
    "W2c-sound": Flawed("sound", Keeping(), "S1"),
    "W5": Flawed("last_sequence recent_ids", Instance(("p",), crashes=1), "S3"),
    "W6": Flawed("gapless", Instance(("pp",), losses=1), "S1"),
    "W7": Flawed("compare_and_swap", Instance(("pp",), zombies=1), "S3"),
    "W7-ids": Flawed("recent_ids", Instance(("p",), losses=1), "S3"),
    "W7-sequence": Flawed("foreseen", Instance(("ppp",), at_once=2, strangers=1), "S2"),
    "W7-chain": Flawed("after_own", Instance(("pp",), at_once=2, zombies=1), "S1"),
    "W7-together": Flawed(
        "batch_compared", Instance(("pp",), at_once=2, together=True, zombies=1), "S3"
    ),
    "W9": Flawed("line_first", Instance(("p",), pipelined=True, crashes=1), "S1"),
    "W9-confirmed": Flawed(
        "deletes_confirmed", Instance(("p",), pipelined=True, crashes=1, rules=PROMPT), "S1"
    ),
    "W9-bounded": Flawed("purge_bounded", Instance(("pp",), pipelined=True, purging=True), "S1"),
    "W10c": Flawed("turn_request", Instance(("d",), turns=True, crashes=1, rules=NO_DVUS), "S5"),
    "W11": Flawed("remove_by_sequence", Instance(("pp",), rules=PROMPT), "S1"),
    "W12": Flawed("look_again", Instance(("pp",), rules=PROMPT), "S1"),
    "W12-order": Flawed("requests_first", Instance(("pd",), zombies=1, rules=PROMPT), "S5"),
    "W14": Flawed("release_on_stop", Instance(("p",), stops=3), "L1"),
    "D1": Flawed("need_in_head", Instance(("d",), crashes=1), "S5"),
    "D4": Flawed("claim", Instance(("dc",)), "S4"),
    "D4-at-last": Flawed("claim_at_last", Instance(("dc",)), "S4"),
    "D4-fenced": Flawed("fenced", Instance(("d",), zombies=1), "S4"),
    "D4-one-line": Flawed("one_line", Instance(("d",), crashes=1), "S5"),
    "D4-part": Flawed("part_settles_nothing", Instance(("d",), parts=1), "S5"),
    "D4-part-claim": Flawed("claim", Instance(("dc",), parts=1), "S4"),
    "D5": Flawed("covers", Instance(("dd",)), "S5"),
    "L1": Flawed("blame", Instance(("kp",)), "never rests"),
    "L1-living": Flawed("living_spared", Instance(("p",), zombies=3), "L1"),
    "L1-alone": Flawed("careful", Instance(("pk",), at_once=2), "L1"),
    "L2": Flawed("copy_first", Instance(("x",), crashes=1), "S1"),
    "X1": Flawed("pending_requests", Instance(("p",), client_crashes=1), "S1"),
    "X2": Flawed("pending_dvus", Instance(("d",), crashes=2, presumptions=1), "S5"),
    "F1": Flawed("presumed_once", Instance(("p",), presumptions=1), "never rests"),
    "F6": Flawed("twice", Presence(), "F6"),
    "F6-overdue": Flawed("overdue", Presence(), "F6"),
    "F6-settles": Flawed("settles", Presence(), "F6"),
    "F6-marked": Flawed("marked", Presence(answers=False), "F6"),
    "W7-time": Flawed("by_time", Remembering(), "S3"),
    "W7-stored": Flawed("stored_time", Remembering(), "S3"),
    "W7-content": Flawed("by_content", Remembering(repeats=1, reuses=1), "S1"),
    "B1": Flawed("reads_log", Applying(), "S3"),
    "B1-asks": Flawed("asks", Applying(), "S3"),
    "P2": Flawed("asks", Pausing(), "S1"),
    "P2-order": Flawed("asks_last", Pausing(), "S1"),
    "P5": Flawed("pokes", Pausing(), "S1"),
    "O1": Flawed("in_commit", Sending(), "S1"),
    "O2": Flawed("behind", Sending(), "O2"),
    "O2-order": Flawed("in_order", Sending(requests=1, crashes=0), "S1"),
    "O3": Flawed("confirmed", Sending(), "S1"),
    "O4": Flawed("hears", Sending(), "S3"),
    "O4-refused": Flawed("hears_refused", Sending(requests=1, refusals=1), "S3"),
    "O5": Flawed("hint", Ringing(rules=UNWATCHED), "O5"),
    "O5-late": Flawed("later_stays", Ringing(rules=UNWATCHED), "S1"),
    "O5-ids": Flawed("own_ids", Ringing(rules=UNWATCHED), "S1"),
    "O5-stored": Flawed("stored_first", Ringing(rules=UNWATCHED), "S1"),
    "O5-looks": Flawed("looks", Ringing(losses=1), "S1"),
    "P5-order": Flawed("pokes_last", Pausing(), "S1"),
}
"""By the rule of docs/protocol.md that is off."""


def model(name: str) -> Model:
    """The instance of that name; `without-X` has the rules of X off, `with-X` has them on."""
    if name in REFERENCE:
        return REFERENCE[name]
    world = (SMALL | BIG).get(name)
    if world is None:
        how, _, rule = name.partition("-")
        off, world, _ = FLAWED[rule]
        if how == "without":
            rules: Any = world.rules
            world = replace(world, rules=replace(rules, **dict.fromkeys(off.split(), False)))
    return Built(world) if isinstance(world, Instance) else world


def describe(name: str) -> str:
    """Return what sets a world apart: its kind, and the fields and rules that it has changed."""
    one: Any = model(name)
    world = one.world if isinstance(one, Built) else one
    return ", ".join([type(world).__name__, *_changed(world)])


def _changed(world: Any) -> Iterator[str]:
    for each in fields(world):
        value = getattr(world, each.name)
        if each.name == "rules":
            yield from _changed(value)
        elif value != each.default:
            yield f"{each.name}={'+'.join(value) if isinstance(value, tuple) else value}"


def names() -> list[str]:
    flawed = [f"{how}-{rule}" for rule in FLAWED for how in ("without", "with")]
    return [*REFERENCE, *SMALL, *BIG, *flawed]
