"""How much is measured: enough to believe the medians, or just enough to see that it runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int
    """Of each measurement; what is compared alternates."""
    cluster_rounds: int
    """The same, with three servers."""
    change_sets: int
    """At once, where there are many."""
    one_by_one: int
    """Requests of a round that are enqueued each after the commit of the one before it."""
    flood: int
    """Requests of a round that are enqueued as fast as the client can."""
    trips: int
    """Requests over a slow network."""
    whole_graph: bool
    """Or of the Debian graph only what is changed, and what depends on it."""
    affected: tuple[int, ...]
    """About so many values are affected by what is changed."""
    dvu_rounds: int
    starts: int
    """Of Spark, in each way."""
    values: int
    """Of a large run."""
    peer_rounds: int
    graphs: tuple[int, ...]
    """So many values in one change set."""
    large: int
    """Values in part `large`."""
    large_put: int
    """Of these come in by requests."""
    store_values: int
    """In the large change set of part `store`."""
    store_commits: int
    """Of which the space is measured."""
    branches: int
    """Of one head."""
    asked: int
    """Values of the change set that questions are about."""


FULL = Sizes(
    rounds=7,
    cluster_rounds=3,
    change_sets=50,
    one_by_one=500,
    flood=1_000,
    trips=20,
    whole_graph=True,
    affected=(10, 1_000, 50_000),
    dvu_rounds=9,
    starts=5,
    values=1_000_000,
    peer_rounds=3,
    graphs=(1_000, 100_000, 1_000_000, 10_000_000),
    large=10_000_000,
    large_put=1_100_000,
    store_values=1_000_000,
    store_commits=10_000,
    branches=10_000,
    asked=100_000,
)
QUICK = Sizes(
    rounds=1,
    cluster_rounds=1,
    change_sets=10,
    one_by_one=50,
    flood=100,
    trips=5,
    whole_graph=False,
    affected=(10,),
    dvu_rounds=2,
    starts=1,
    values=20_000,
    peer_rounds=1,
    graphs=(1_000, 100_000),
    large=200_000,
    large_put=100_000,
    store_values=20_000,
    store_commits=2_000,
    branches=200,
    asked=2_000,
)
