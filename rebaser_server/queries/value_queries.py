"""The queries of the value graph: each kind, and what answers it."""

from typing import Any

from rebaser_core.queries import (
    DIFFERENCES,
    PROVENANCE,
    REVERTS,
    TABLE_DIFFERENCES,
    TABLES,
    VALUES,
)
from rebaser_server.commit_log.state_loader import OpenLoader
from rebaser_server.queries.comparisons import ComparisonService
from rebaser_server.queries.provenance import ProvenanceService
from rebaser_server.queries.query_service import DEFAULT, QueryBounds, QueryKind
from rebaser_server.queries.table_differences import TableDifferenceService
from rebaser_server.queries.table_reads import TableService
from rebaser_server.queries.values import ValueService


class ValueQueries:
    """Answers about values, from log and store; owns and changes nothing."""

    def __init__(self, open_loader: OpenLoader, bounds: QueryBounds = DEFAULT) -> None:
        self.open_loader = open_loader
        self.values = ValueService(open_loader, bounds)
        self.tables = TableService(open_loader, self.values)
        self.table_differences = TableDifferenceService(open_loader, self.tables)
        self.provenance = ProvenanceService(open_loader)
        self.comparisons = ComparisonService(open_loader, bounds.answer_bytes)

    def kinds(self) -> list[QueryKind[Any, Any]]:
        return [
            QueryKind(PROVENANCE, self.provenance.replies),
            QueryKind(VALUES, self.values.replies),
            QueryKind(TABLES, self.tables.replies),
            QueryKind(TABLE_DIFFERENCES, self.table_differences.replies),
            QueryKind(DIFFERENCES, self.comparisons.difference),
            QueryKind(REVERTS, self.comparisons.revert),
        ]
