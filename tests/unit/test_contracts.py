"""The import contracts hold, and an import that they forbid breaks them."""

from collections.abc import Iterator
from copy import deepcopy
from itertools import combinations, product
from pathlib import Path
from typing import Any, Final

import grimp
import pytest
from grimp import ImportGraph
from importlinter.application import use_cases
from importlinter.application.user_options import UserOptions
from importlinter.configuration import configure
from importlinter.contracts.acyclic_siblings import AcyclicSiblingsContract
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract
from importlinter.domain.contract import Contract

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("rebaser_core", "rebaser_client", "rebaser_server")

FORBIDDEN: Final = [
    ("spark", "rebaser_server.commit_log.state", "pyspark"),
    ("spark", "rebaser_server.values.graph", "pyspark"),
    ("spark", "rebaser_server.compute.plan", "py4j"),
    ("delta", "rebaser_server.queries.values", "deltalake"),
    ("delta", "rebaser_server.compute.executors", "deltalake"),
    ("cli", "rebaser_server.commands.queue", "pyarrow"),
    ("cli", "rebaser_server.commands.support.deployment", "rebaser_server.files"),
    ("cli", "rebaser_client.client", "pyarrow"),
    ("cli", "rebaser_server.cluster.pauses", "rebaser_server.store.checkpoints"),
    ("server", "rebaser_server.compute.plan", "rebaser_server.store.checkpoints"),
    ("server", "rebaser_server.values.rebase", "rebaser_server.processor.run"),
    ("engine", "rebaser_server.cluster.tasks", "rebaser_client.errors"),
    ("engine", "rebaser_server.commit_log.log", "rebaser_client.reader"),
    ("engine", "rebaser_server.runtime.containment", "rebaser_client.client"),
    ("engine", "rebaser_server.processor.run", "rebaser_server.values.graph"),
    ("engine", "rebaser_server.commit_log.state", "rebaser_server.graph_application.content"),
    ("engine", "rebaser_server.cluster.tasks", "rebaser_server.compute.plan"),
    ("engine", "rebaser_server.commit_log.state_loader", "rebaser_server.store.checkpoints"),
    ("engine", "rebaser_server.commit_log.batch_store", "rebaser_server.tables"),
    ("engine", "rebaser_server.processor.application", "rebaser_core.table_values"),
    ("tables", "rebaser_server.graph_application.application", "rebaser_server.tables"),
    ("tables", "rebaser_server.graph_application.commands", "rebaser_server.compute.tables"),
    ("tables", "rebaser_server.graph_application.dvu", "rebaser_core.table_values"),
    ("tables", "rebaser_server.compute.plan", "rebaser_server.compute.tables"),
    ("tables", "rebaser_server.compute.executors", "rebaser_server.tables"),
    ("tables", "rebaser_server.compute.functions.runtimes", "rebaser_server.compute.tables"),
    ("tables", "rebaser_server.compute.spark.spark_executor", "rebaser_core.table_schemas"),
    ("tables", "rebaser_server.compute.spark.launch", "rebaser_server.compute.spark.table_job"),
    ("tables", "rebaser_server.compute.work_unit", "rebaser_core.table_schemas"),
    ("tables", "rebaser_server.store.checkpoints", "rebaser_server.tables"),
    ("tables", "rebaser_server.values.graph", "rebaser_core.table_values"),
    ("values-alone", "rebaser_server.values.rebase", "rebaser_core.jetstream"),
    ("packages", "rebaser_core.ids", "rebaser_server.errors"),
    ("examples", "rebaser_server.commands.cli", "debian_demo"),
    ("pure", "rebaser_core.ids", "nats"),
    ("pure", "rebaser_core.messages", "rebaser_core.jetstream"),
    ("circles", "rebaser_core.ids", "rebaser_core.messages"),
    ("circles", "rebaser_server.values.columns", "rebaser_server.values.graph"),
    ("jetstream", "rebaser_core.jetstream.api", "rebaser_core.ids"),
    ("jetstream", "rebaser_core.jetstream.fetch", "pydantic"),
]
"""Contract, a module, and what it must not import."""

NOT_PURE: Final = {"jetstream", "registry", "requests", "streams", "stream_configs"}
"""Modules of the core that know JetStream."""

CONTRACTS: Final = {
    "acyclic_siblings": AcyclicSiblingsContract,
    "forbidden": ForbiddenContract,
    "layers": LayersContract,
}
"""The classes of contracts that are in use, by the names of their types."""


@pytest.fixture(scope="module")
def options() -> UserOptions:
    configure()
    return use_cases.read_user_options(str(ROOT / ".importlinter"))


@pytest.fixture(scope="module")
def contracts(options: UserOptions) -> dict[str, Contract]:
    """The contracts by their ids."""
    return {
        contract["id"]: CONTRACTS[contract["type"]](
            name=contract["name"],
            session_options=options.session_options,
            contract_options=contract,
        )
        for contract in options.contracts_options
    }


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    """All modules and their imports, as `lint-imports` sees them."""
    modules = grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)
    modules.add_module("debian_demo", is_squashed=True)  # it is there once a module imports it
    return modules


def modules_in(package: str) -> set[str]:
    """The modules and packages that lie directly in a package, by their last names."""
    directory = ROOT / package.replace(".", "/")
    modules = {path.stem for path in directory.glob("*.py")} - {"__init__"}
    return modules | {path.parent.name for path in directory.glob("*/__init__.py")}


def sources(contract: Contract) -> set[str]:
    return {str(module) for module in contract.source_modules}


def is_kept(contract: Contract, graph: ImportGraph) -> bool:
    """Whether it is; a check takes the imports that are to be ignored out of its graph."""
    checked = deepcopy(graph) if getattr(contract, "ignore_imports", None) else graph
    return contract.check(checked, verbose=False).kept


def breaks(contract: Contract, graph: ImportGraph, importer: str, imported: str) -> bool:
    """Whether one more import breaks the contract. Leaves the graph as it was."""
    if imported not in graph.modules:  # a package that no module imports today
        graph.add_module(imported, is_squashed=True)
    if graph.direct_import_exists(importer=importer, imported=imported):
        return False
    graph.add_import(importer=importer, imported=imported)
    try:
        return not is_kept(contract, graph)
    finally:
        graph.remove_import(importer=importer, imported=imported)


def forbidden_pairs(contract: Contract) -> Iterator[tuple[str, str]]:
    """Importer and imported of every import that the contract forbids between what it names."""
    if isinstance(contract, AcyclicSiblingsContract):
        return
    if isinstance(contract, ForbiddenContract):
        for source, forbidden in product(contract.source_modules, contract.forbidden_modules):
            yield str(source), str(forbidden)
        return
    for container in contract.containers or [""]:
        names = [
            sorted(f"{container}.{tail.name}".strip(".") for tail in layer.module_tails)
            for layer in contract.layers
        ]
        for higher, lower in combinations(names, 2):
            yield from product(lower, higher)
        for siblings in names:
            yield from combinations(siblings, 2)


def test_every_command_works_with_the_extra_cli_or_is_named(contracts: dict[str, Contract]) -> None:
    """The contract names each module of the command line but those whose commands need more.

    `cli` itself imports all of them.
    """
    others = modules_in("rebaser_server.commands") - {"cli", "doctor", "serve", "train"}

    assert sources(contracts["cli"]) == {f"rebaser_server.commands.{name}" for name in others}


def test_every_module_of_core_is_pure_but_jetstream(contracts: dict[str, Contract]) -> None:
    """The contract that keeps I/O out of the core names each, but those about the streams."""
    pure = modules_in("rebaser_core") - NOT_PURE

    assert sources(contracts["pure"]) == {f"rebaser_core.{name}" for name in pure}


def test_all_but_the_extension_of_tables_knows_no_tables(contracts: dict[str, Contract]) -> None:
    """The contract names each module of application and store but those that tables brought."""
    graph = modules_in("rebaser_server.graph_application") - {"tables", "publisher", "openlineage"}
    store = modules_in("rebaser_server.store") - {"publications", "sources"}

    assert sources(contracts["tables"]) >= {
        *(f"rebaser_server.graph_application.{name}" for name in graph),
        *(f"rebaser_server.store.{name}" for name in store),
    }


def test_the_jetstream_layer_knows_no_module_of_core(contracts: dict[str, Contract]) -> None:
    """The contract that lets JetStream stand alone names each neighbour but that of errors."""
    others = modules_in("rebaser_core") - {"jetstream", "errors"}
    neighbours = {f"rebaser_core.{name}" for name in others}
    forbidden = {str(module) for module in contracts["jetstream"].forbidden_modules}

    assert neighbours <= forbidden


@pytest.mark.parametrize(("name", "importer", "imported"), FORBIDDEN)
def test_a_forbidden_import_breaks_its_contract(
    contracts: dict[str, Contract], graph: ImportGraph, name: str, importer: str, imported: str
) -> None:
    """One import deep inside a package is enough to break the contract that forbids it."""
    assert is_kept(contracts[name], graph)
    assert breaks(contracts[name], graph, importer, imported)


@pytest.mark.long
def test_every_forbidden_pair_breaks_its_contract(
    options: UserOptions, contracts: dict[str, Contract], graph: ImportGraph
) -> None:
    """Each contract notices each single import that it forbids between the packages it names."""
    unnoticed: list[Any] = [
        (contract["id"], importer, imported)
        for contract in options.contracts_options
        for importer, imported in forbidden_pairs(contracts[contract["id"]])
        if not breaks(contracts[contract["id"]], graph, importer, imported)
    ]

    assert unnoticed == []
