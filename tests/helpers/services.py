"""What the runs of a daemon share, in the process of a test."""

from datetime import timedelta

from rebaser_server.cluster.membership import Membership
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.processor.context import Services
from rebaser_server.service.composition import build_services, provisioner_of
from rebaser_server.service.daemon import ValueGraph
from tests.helpers.deployment import Deployment


def services_of(
    deployment: Deployment,
    instance: str = "in-test",
    attempts: int = 5,
) -> Services:
    """Services of one Rebaser, in this process."""
    quiet_period = timedelta(seconds=0.2)
    update = {"quiet_period": quiet_period, "max_attempts": attempts}
    settings = deployment.settings.model_copy(update=update)
    return build_services(
        provisioner_of(deployment.js, settings),
        settings,
        ValueGraph(settings, deployment.executor, lambda: 1, CostModel()),
        Membership(deployment.streams, instance),
    )
