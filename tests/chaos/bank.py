"""A bank whose accounts are keys: `rebaser serve --app tests.chaos.bank:bank`.

The books of two accounts show a transfer that is lost, doubled or out of order.
"""

import random
from dataclasses import field

from rebaser_server import Context, Reject, Service

BALANCE = 100
"""Balance with which an account begins."""
FULL = 115
"""Balance beyond which an account takes nothing: what it refuses is lost."""

Entry = tuple[str, str, int]
"""The other account, the transfer's id, the amount."""

bank = Service("bank")


@bank.state
class Account:
    balance: int = BALANCE
    paid: list[Entry] = field(default_factory=list)
    taken: list[Entry] = field(default_factory=list)
    ticks: int = 0
    """Calls of a timer."""
    wrong_ticks: list[int] = field(default_factory=list)
    """Calls of a timer that were not the next one."""


@bank.handler
def pay(ctx: Context[Account], to: str, amount: int, transfer: str) -> int:
    """Return the new balance."""
    if amount > ctx.state.balance:
        raise Reject(f"a balance of {ctx.state.balance}")
    ctx.state.balance -= amount
    ctx.state.paid.append((to, transfer, amount))
    ctx.to(to).send("take", ctx.key, amount, transfer)
    return ctx.state.balance


@bank.handler
def give(ctx: Context[Account], among: list[str], amount: int, transfer: str) -> int:
    """Pay to one of the accounts, another one each time that it is tried."""
    return pay(ctx, random.choice(among), amount, transfer)


@bank.handler
def spread(ctx: Context[Account], to: str, amount: int, parts: int, transfer: str) -> int:
    """Pay in several parts, and return the new balance."""
    for part in range(parts):
        pay(ctx, to, amount, f"{transfer}/{part}")
    return ctx.state.balance


@bank.handler
def take(ctx: Context[Account], payer: str, amount: int, transfer: str) -> int:
    if ctx.state.balance + amount > FULL:
        raise Reject(f"a balance of {ctx.state.balance}")
    ctx.state.balance += amount
    ctx.state.taken.append((payer, transfer, amount))
    return ctx.state.balance


@bank.handler
def tick(ctx: Context[Account], number: int, of: int, seconds: float) -> int:
    """Have a timer call this again until that was so often; return how often it was."""
    if number != ctx.state.ticks:
        ctx.state.wrong_ticks.append(number)
    ctx.state.ticks += 1
    if number + 1 < of:
        ctx.to(ctx.key).send("tick", number + 1, of, seconds, after=seconds, timer="tick")
    return ctx.state.ticks
