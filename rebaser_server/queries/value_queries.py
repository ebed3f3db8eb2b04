"""The queries of the value graph: each kind, and what answers it."""

from typing import Any

from rebaser_core.queries import (
    DifferenceQuery,
    DifferenceReply,
    ProvenanceQuery,
    ProvenanceReply,
    RevertQuery,
    RevertReply,
    TableDifferenceQuery,
    TableDifferenceReply,
    TableQuery,
    TableReply,
    ValuesQuery,
    ValuesReply,
)
from rebaser_server.commit_log.state_loader import OpenLoader
from rebaser_server.queries.comparisons import ComparisonService, no_difference, no_revert
from rebaser_server.queries.provenance import ProvenanceService, no_provenance
from rebaser_server.queries.query_service import DEFAULT, QueryBounds, QueryKind
from rebaser_server.queries.table_differences import TableDifferenceService, no_rows
from rebaser_server.queries.table_reads import TableService, no_table
from rebaser_server.queries.values import ValueService, refusal


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
            QueryKind(
                "provenance",
                ProvenanceQuery,
                ProvenanceReply,
                self.provenance.replies,
                no_provenance,
            ),
            QueryKind("values", ValuesQuery, ValuesReply, self.values.replies, refusal),
            QueryKind("tables", TableQuery, TableReply, self.tables.replies, no_table),
            QueryKind(
                "table-differences",
                TableDifferenceQuery,
                TableDifferenceReply,
                self.table_differences.replies,
                no_rows,
            ),
            QueryKind(
                "differences",
                DifferenceQuery,
                DifferenceReply,
                self.comparisons.difference,
                no_difference,
            ),
            QueryKind("reverts", RevertQuery, RevertReply, self.comparisons.revert, no_revert),
        ]
