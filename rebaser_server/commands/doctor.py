"""`rebaser doctor`: whether the deployment is well."""

import argparse
import asyncio
from typing import Any, Final

from rebaser_server.commands.support.arguments import add_json
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.settings.settings import Settings

SAMPLE: Final = 20
"""Change sets whose store and log are compared unless all are asked for."""


def add(commands: Any) -> None:
    """Declare the command."""
    doctor = commands.add_parser(
        "doctor",
        help="check streams, tasks, store and logs; exit code 0 well, 3 repairable, 4 not",
    )
    doctor.add_argument("--repair", action="store_true", help="repair what is safe to repair")
    doctor.add_argument("--all", action="store_true", help=f"all change sets, not {SAMPLE} of them")
    doctor.add_argument(
        "--deep", action="store_true", help="compare each checkpoint with what the log makes of it"
    )
    add_json(doctor)
    doctor.set_defaults(command=_doctor)


def _doctor(settings: Settings, arguments: argparse.Namespace) -> int:
    return asyncio.run(_examined(settings, arguments))


async def _examined(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_core.jetstream import connected
    from rebaser_server.commands.render.output import show
    from rebaser_server.doctor.checks import Examination, repaired
    from rebaser_server.service.composition import assets_of
    from rebaser_server.settings.nats_connection import connect_options, jetstream

    async with connected(connect_options(settings)) as nc:
        examination = Examination(
            assets_of(jetstream(nc, settings.nats), settings),
            settings,
            sample=None if arguments.all else SAMPLE,
            deep=arguments.deep,
        )
        found = [finding async for finding in examination.findings()]
        if arguments.repair:
            found = [await repaired(finding) for finding in found]
    rows = [finding.plain() for finding in found]
    for row in rows:
        row["done"] = "repaired" if row["repaired"] else ""
        if not row["repaired"]:
            row["done"] = "--repair" if row["repairable"] else row["remedy"] or ""
    headings = {
        "severity": "",
        "check": "check",
        "where": "where",
        "what": "what",
        "done": "remedy",
    }
    show(rows, headings, as_json=arguments.json, nothing="nothing found: all is well")
    left = [finding for finding in found if finding.matters]
    if not left:
        return Exit.OK
    return Exit.REPAIRABLE if all(finding.repair for finding in left) else Exit.DAMAGED
