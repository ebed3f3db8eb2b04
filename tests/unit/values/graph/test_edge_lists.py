"""The newest edge of an input leads to all of its edges, the newest first."""

import random

import numpy as np

from rebaser_server.values.adjacency import link_edges


def test_each_input_leads_to_its_edges() -> None:
    """However many come at once, and whatever was there before."""
    chosen = random.Random(1)
    newest, following, inputs = np.full(5, -1, np.int32), [], []
    for count in (0, 1, 3, 20, 2):
        refs = [chosen.randrange(5) for _ in range(count)]
        following += link_edges(newest, np.array(refs, np.int32), len(inputs)).tolist()
        inputs += refs

    for each in range(5):
        found, edge = [], int(newest[each])
        while edge >= 0:
            found.append(edge)
            edge = following[edge]
        assert found == [number for number, ref in enumerate(inputs) if ref == each][::-1]
