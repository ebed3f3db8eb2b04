"""How affected values are shared out: what is connected stays together."""

import heapq

from rebaser_server.graph import Value


def components(affected: list[Value]) -> list[list[Value]]:
    """`affected`, which is in topological order, cut into weakly connected components.

    Each is in the order it came in. Inputs that are not affected connect nothing.
    """
    labels: dict[str, int | None] = {}  # by value id; labels of one component come together later
    parents: list[int] = []  # by label: one that is lower, of the same component
    for value in affected:
        met: set[int | None] = set()
        for target in value.inputs.values():
            if isinstance(target, list):
                met.update(map(labels.get, target))
            else:
                met.add(labels.get(target))
        roots = {_root(parents, label) for label in met if label is not None}
        if not roots:
            roots.add(len(parents))
            parents.append(len(parents))
        labels[value.id] = lowest = min(roots)
        for root in roots:
            parents[root] = lowest
    found: dict[int, list[Value]] = {}
    for value, label in zip(affected, labels.values(), strict=True):
        found.setdefault(_root(parents, label or 0), []).append(value)
    return list(found.values())


def _root(parents: list[int], label: int) -> int:
    while parents[label] != label:
        parents[label] = label = parents[parents[label]]
    return label


def shared_out(parts: list[list[Value]], count: int) -> list[list[Value]]:
    """At most `count` groups of whole parts, of similar size, the largest first."""
    groups: list[list[Value]] = [[] for _ in range(count)]
    sizes = [(0, index) for index in range(count)]
    for part in sorted(parts, key=len, reverse=True):
        size, index = sizes[0]
        groups[index] += part
        heapq.heapreplace(sizes, (size + len(part), index))
    return sorted(filter(None, groups), key=len, reverse=True)
