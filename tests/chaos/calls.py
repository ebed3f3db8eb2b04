"""Rules of calls between keys: judged from the logs, and from the books of a bank.

Pure, as the judge.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from rebaser_core.calls import key_of
from tests.chaos.bank import BALANCE
from tests.chaos.history import Kind
from tests.chaos.indexed_history import Case, Line, Violation


class _Send(NamedTuple):
    """A call that a commit sends."""

    sender: str
    line: int
    sequence: int
    """Sequence of the request whose handler sent it."""
    number: int
    """Number among what that handler sent."""
    target: str
    id: str
    handler: str


def wrong_calls(case: Case) -> Iterator[Violation]:
    """O1 to O4: what a commit sends takes effect once at its target, in order, and nothing else."""
    sends = list(_sends(case))
    if case.rest is not None:
        yield from _wrong_effects(case, sends)
    yield from _unsent(case, sends)


def _sends(case: Case) -> Iterator[_Send]:
    for change_set in sorted(case.logs):
        for line in case.logs[change_set]:
            for sequence, number, service, key, handler, *_, request in line.effect.get(
                "sends", ()
            ):
                target = str(key_of(service, key))
                yield _Send(change_set, line.sequence, sequence, number, target, request, handler)


def _settled(case: Case, target: str) -> dict[str, list[Line]]:
    """Lines that settle a request as no duplicate, by its id."""
    lines: dict[str, list[Line]] = defaultdict(list)
    for line in case.logs.get(target, ()):
        if line.settled and line.settled["sequence"] and line.settled["outcome"] != "duplicate":
            lines[line.settled["id"]].append(line)
    return lines


def _wrong_effects(case: Case, sends: list[_Send]) -> Iterator[Violation]:
    lines = {target: _settled(case, target) for target in {send.target for send in sends}}
    places: dict[tuple[str, str], list[tuple[int, _Send]]] = defaultdict(list)
    for send in sends:
        if send.target in case.logs and send.target not in case.complete:
            continue
        found = lines[send.target].get(send.id, [])
        said = [(line.settled or {})["outcome"] for line in found]
        if len(found) != 1:
            what = f"{send.id}, sent by {send.sender} at {send.sequence}, ended {said}"
            yield Violation("CALLS", send.target, what)
        elif said != ["dead"]:
            places[send.sender, send.target].append((found[0].sequence, send))
    for (sender, target), there in places.items():
        for (before, first), (after, second) in pairwise(there):
            if after < before:
                what = f"{second.id} was heard before {first.id}, and sent after it by {sender}"
                yield Violation("CALLS", target, what)


def _unsent(case: Case, sends: list[_Send]) -> Iterator[Violation]:
    """Calls that take effect although no commit of their sender has them."""
    known = {(send.target, send.id) for send in sends}
    if not case.complete.issuperset(case.logs):
        return
    for target in sorted(case.logs):
        for line in case.logs[target]:
            heard = line.effect.get("heard")
            if heard and (target, (line.settled or {})["id"]) not in known:
                what = f"{(line.settled or {})['id']} took effect, which no commit sent: {heard}"
                yield Violation("CALLS", target, what)


def wrong_books(case: Case) -> Iterator[Violation]:
    """The accounts at the end are what the logs say, and no money came or went unseen."""
    accounts = {event.data["change_set"]: event.data for event in case.history.of(Kind.ACCOUNT)}
    if not accounts or case.rest is None or not case.complete.issuperset(case.logs):
        return
    sends = list(_sends(case))
    outcomes = {
        (target, request): (lines[-1].settled or {})["outcome"]
        for target in case.logs
        for request, lines in _settled(case, target).items()
    }
    by_pair: dict[tuple[str, str], list[tuple[_Send, str]]] = defaultdict(list)
    for send in [each for each in sends if each.handler == "take"]:
        outcome = outcomes.get((send.target, send.id), "lost")
        by_pair[send.sender, send.target].append((send, outcome))
    lost, by_name = 0, {each["key"]: change_set for change_set, each in accounts.items()}
    for change_set, account in accounts.items():
        state = account["state"]
        yield from _wrong_account(change_set, account)
        yield from _wrong_payments(case, change_set, state)
        for other, paid in _by_other(state["paid"]).items():
            target = by_name[other]
            pair = by_pair.pop((change_set, target), [])
            if len(pair) != len(paid):
                what = f"{len(paid)} payments to {target}, and {len(pair)} calls sent for them"
                yield Violation("BANK", change_set, what)
                continue
            taken = _by_other(accounts[target]["state"]["taken"]).get(account["key"], [])
            said = list(zip(paid, (outcome for _, outcome in pair), strict=True))
            expected = [entry for entry, outcome in said if outcome == "applied"]
            lost += _sum([entry for entry, outcome in said if outcome != "applied"])
            if [entry[1:] for entry in taken] != [entry[1:] for entry in expected]:
                what = f"took {taken} of {change_set}, not {expected}"
                yield Violation("BANK", target, what[:1_000])
    for (sender, target), pair in by_pair.items():
        yield Violation("BANK", sender, f"{len(pair)} calls to {target} without a payment")
    total = sum(each["state"]["balance"] for each in accounts.values())
    if total + lost != BALANCE * len(accounts):
        what = f"{len(accounts)} accounts have {total}, and {lost} were refused"
        yield Violation("BANK", "", what)


def _wrong_account(change_set: str, account: Mapping[str, Any]) -> Iterator[Violation]:
    state = account["state"]
    expected = BALANCE - _sum(state["paid"]) + _sum(state["taken"])
    if state["balance"] != expected:
        what = f"a balance of {state['balance']}, and {expected} by its books"
        yield Violation("BANK", change_set, what)
    if account["sending"]:
        yield Violation("BANK", change_set, f"{account['sending']} calls are not sent at rest")
    if state["wrong_ticks"] or (account["ticks"] and state["ticks"] != account["ticks"]):
        what = f"{state['ticks']} calls of a timer, not {account['ticks']}; {state['wrong_ticks']}"
        yield Violation("BANK", change_set, what)


def _wrong_payments(case: Case, change_set: str, state: Mapping[str, Any]) -> Iterator[Violation]:
    """Payments are those of the clients' calls that took effect, in their order."""
    applied = [
        line.settled["id"]
        for line in case.logs.get(change_set, ())
        if line.settled and line.settled["outcome"] == "applied"
    ]
    expected = [
        transfer
        for request in applied
        for transfer in case.sent.get((change_set, request), {}).get("transfers", ())
    ]
    found = [transfer for _, transfer, _ in state["paid"]]
    if found != expected:
        yield Violation("BANK", change_set, f"paid {found}, not {expected}"[:1_000])


def _by_other(entries: list[list[Any]]) -> dict[str, list[list[Any]]]:
    """Entries of a book by the other account."""
    found: dict[str, list[list[Any]]] = defaultdict(list)
    for entry in entries:
        found[entry[0]].append(entry)
    return found


def _sum(entries: list[list[Any]]) -> int:
    return sum(amount for _, _, amount in entries)
