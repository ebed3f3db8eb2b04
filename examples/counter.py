"""A counter for each key: `rebaser serve --app counter:counters`, or this program."""

from rebaser_server import Context, Service

counters = Service("counters")


@counters.state
class Counter:
    total: int = 0


@counters.handler
def add(ctx: Context[Counter], number: int = 1) -> int:
    ctx.state.total += number
    return ctx.state.total


if __name__ == "__main__":
    counters.run()
