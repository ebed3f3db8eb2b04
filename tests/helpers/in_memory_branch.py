"""A head and a branch of it without streams, and the plainest way to say what it must be."""

from copy import deepcopy

from rebaser_server.values.edits import Edits, Preimage, edits_from_json, edits_to_json
from rebaser_server.values.graph import Graph
from rebaser_server.values.merge import changes_between, merge
from rebaser_server.values.rebase import RebaseResult, rebase
from tests.helpers.reference_model import Model, plain


def definitions(graph):
    """Values and functions without what is computed."""
    return {
        "values": {
            v.id: (v.name, v.func_id, v.inputs, None if v.func_id else plain(v.value))
            for v in graph.values.values()
        },
        "funcs": {f.id: (f.name, f.runtime, f.code) for f in graph.funcs.values()},
    }


class Head:
    """A graph, and every batch as performed."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.log: list[list] = []

    def request(self, updates) -> RebaseResult:
        done = rebase(self.graph, len(self.log) + 1, updates)
        self.log.append(done.updates)
        return done


class Branch:
    """Forked from `head` as it is now."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.graph = deepcopy(head.graph)
        self.edits = Edits()
        self.cursor = len(head.log)
        self.reached = deepcopy(head.graph)
        """Head as of the cursor."""

    def fork(self) -> "Branch":
        """As it is now, head's changes to come included."""
        other = Branch(self.head)
        other.graph, other.cursor = deepcopy(self.graph), self.cursor
        other.edits = edits_from_json(edits_to_json(self.edits, self.graph), other.graph)
        other.reached = deepcopy(self.reached)
        return other

    def request(self, updates) -> RebaseResult:
        before = Preimage.of(self.graph, updates)
        done = rebase(self.graph, 1, updates)
        self.edits.add(done.updates, before)
        return done

    def catch_up(self, lines: int | None = None) -> list:
        """Take over so many of head's batches, or all, at once; what changed."""
        until = len(self.head.log) if lines is None else self.cursor + lines
        changes = [update for batch in self.head.log[self.cursor : until] for update in batch]
        return self._merge(changes, until)

    def catch_up_by_difference(self) -> list:
        """The same without head's log."""
        view = self.edits.head_view(self.graph)
        values = {*self.graph.values, *self.edits.theirs}
        funcs = {*self.graph.funcs, *self.edits.their_funcs}
        changes = changes_between(view, self.head.graph, values, funcs)
        return self._merge(changes, len(self.head.log))

    def _merge(self, changes, until: int) -> list:
        found = merge(self.graph, self.edits, changes)
        done = rebase(self.graph, 1, found.updates)
        assert not done.corrections, done.corrections
        self.edits.update_theirs(found.theirs)
        for batch in self.head.log[self.cursor : until]:
            rebase(self.reached, 1, batch)
        self.cursor = until
        return found.updates

    def difference(self) -> list:
        return self.edits.difference(self.graph)

    def must_be(self):
        """Head with the branch's edits rebased onto it, as the reference model does it."""
        model = Model()
        for batch in [*self.head.log[: self.cursor], self.edits.to_batch()]:
            model.apply(1, batch)
        return {
            "values": {
                i: (n.name, n.func, n.inputs, None if n.func else plain(n.value))
                for i, n in model.nodes.items()
            },
            "funcs": model.funcs,
        }
