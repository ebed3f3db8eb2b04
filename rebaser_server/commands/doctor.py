"""`rebaser doctor`: check a deployment, and repair it."""

import argparse
from typing import TYPE_CHECKING, Final

from rebaser_server.commands.declarations import SAMPLE
from rebaser_server.commands.support.arguments import Exit

if TYPE_CHECKING:
    from rebaser_server.doctor.checks import Finding
    from rebaser_server.settings.settings import Settings

_HEADINGS: Final = {
    "severity": "",
    "check": "check",
    "where": "where",
    "what": "what",
    "done": "remedy",
}


async def examine(settings: "Settings", arguments: argparse.Namespace) -> int:
    """Check the deployment, repair it if asked to, and print the findings."""
    from rebaser_core.jetstream import connected
    from rebaser_server.doctor.checks import Examination, repair
    from rebaser_server.service.composition import provisioner_of
    from rebaser_server.settings.nats_connection import connect_options, open_jetstream
    from rebaser_server.terminal.tables import show

    async with connected(connect_options(settings)) as nc:
        examination = Examination(
            provisioner_of(open_jetstream(nc, settings.nats), settings),
            settings,
            sample=None if arguments.all else SAMPLE,
            deep=arguments.deep,
        )
        findings = [finding async for finding in examination.findings()]
        if arguments.repair:
            findings = [await repair(finding) for finding in findings]
    rows = [{**finding.plain(), "done": _remedy(finding)} for finding in findings]
    show(rows, _HEADINGS, arguments, nothing="nothing found: all is well")
    problems = [finding for finding in findings if finding.matters]
    if not problems:
        return Exit.OK
    return Exit.REPAIRABLE if all(finding.repair for finding in problems) else Exit.DAMAGED


def _remedy(finding: "Finding") -> str:
    if finding.repaired:
        return "repaired"
    return finding.remedy if finding.repair is None else "--repair"
