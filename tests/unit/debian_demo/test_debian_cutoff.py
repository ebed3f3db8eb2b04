"""In the Debian graph, a fix recomputes what it reaches before values stop changing, no more."""

from pydantic import TypeAdapter

from benchmarks.debian import Dependents
from debian_demo.graph import load_packages
from rebaser_core.updates import Update
from rebaser_server.values.rebase import rebase
from tests.helpers.graph_builder import Builder, due

PACKAGE = "python3-pil"
UPDATES = TypeAdapter(list[Update])


def test_a_fix_among_others_stops_where_values_stop_changing() -> None:
    packages = load_packages()
    packages = Dependents(packages).above([PACKAGE])
    build = Builder()
    rebase(build.graph, 1, UPDATES.validate_python(packages.updates()))
    build.update()
    before, source = build.state(), packages.own_id(PACKAGE)
    assert before[source] == ("ok", True)

    build.source(source, False)
    affected = affected_by(build, source)
    roots = set(build.graph.roots)
    outcomes = build.update()

    recomputed = sum(outcome.recomputed for outcome in outcomes)
    changed = {value_id for outcome in outcomes for value_id, *_ in outcome.value_results}
    assert recomputed == due(build.graph, before, roots)
    assert 0 < len(changed) < recomputed < len(affected)
    assert changed < affected


def affected_by(build: Builder, source: str) -> set[str]:
    """All that depends on it, however far."""
    values, found, new = build.graph.values, set[str](), [source]
    while new:
        new = [
            each for value_id in new for each in values[value_id].dependents if each not in found
        ]
        found.update(new)
    return found
