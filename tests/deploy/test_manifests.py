"""What deploy/ says fits together, fits what the daemon does, and is what Kubernetes takes."""

import json
import os
import re
import subprocess
import sys
import tomllib
from configparser import RawConfigParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.settings.settings import Settings, unknown_variables
from tests.deploy.__main__ import README, page
from tests.deploy.manifests import (
    CHART,
    DEPLOY,
    EXAMPLES,
    RELEASE,
    ROOT,
    compose,
    documents,
    environment,
    examples,
    helm,
    of_kind,
    rebaser,
    rendered,
    service_variables,
)
from tests.helpers.deployment import SCALED, Daemon
from tests.helpers.nats_process import NatsServer, running
from tests.security.identities import Certificates, certificates

pytestmark = pytest.mark.xdist_group("manifests")  # they are rendered once

KUBERNETES_VERSION = "1.32"
WRITABLE = ("/var/lib/rebaser", "/tmp")  # noqa: S108 - in a container
VARIABLE = re.compile(r"\bREBASER_[A-Z_]+\b")
NOT_OURS = {"REBASER_REQUESTS", "REBASER_TASKS", "REBASER_COMMITS", "REBASER_BATCHES",
            "REBASER_OPS_TOKEN"}  # fmt: skip


OTHERS = {"ScaledObject", "ServiceMonitor", "PrometheusRule"}
"""Kinds that Kubernetes does not have itself: `test_types`."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_kubernetes_knows_every_field(example: str) -> None:
    for resource in rendered(example):
        if resource["kind"] not in OTHERS:
            kubernetes_validate.validate(resource, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("example", EXAMPLES)
def test_helm_has_nothing_to_complain_of(example: str) -> None:
    assert examples()[example]["lint"] == ["icon is recommended"]


MISTAKES = {
    "no store": {},
    "choose an object store or a volume": {"store": {"root": "s3://b", "claim": {"enabled": True}}},
    "only one node can mount it": {
        "store": {"claim": {"enabled": True, "accessMode": "ReadWriteOnce"}}
    },
    "put all options into the secret": {
        "store": {"root": "s3://b", "options": {"AWS_REGION": "x"}, "optionsSecret": "s"}
    },
    "at least 15 above shutdownGrace": {"store": {"root": "s3://b"}, "shutdownGrace": 30},
    "give both, or none": {
        "store": {"root": "s3://b"},
        "nats": {"tls": {"secretName": "s", "cert": "tls.crt"}},
    },
    "minReplicas is above maxReplicas": {
        "store": {"root": "s3://b"},
        "autoscaling": {"keda": {"minReplicas": 30}},
    },
    "say at which HOST:PORT": {
        "store": {"root": "s3://b"},
        "nats": {"url": "nats://n:4222"},
        "autoscaling": {"keda": {"enabled": True}},
    },
    "additional properties 'replicas' not allowed": {"replicas": 3},
    "additional properties 'CONCURRENCY' not allowed": {"settings": {"CONCURRENCY": "5"}},
    "got number, want string": {"settings": {"REBASER_CONCURRENCY": 5}},
    "'/var/lib/rebaser' does not match": {"store": {"root": "/var/lib/rebaser"}},
}


def test_values_that_cannot_work_are_refused_with_a_reason() -> None:
    for complaint, answer in zip(MISTAKES, helm(*MISTAKES.values()), strict=True):
        assert complaint in answer.get("error", "")


def test_the_page_of_the_chart_has_every_value() -> None:
    """`python -m tests.deploy` writes it."""
    assert README.read_text() == page()


def test_the_chart_has_the_version_of_the_wheel() -> None:
    [chart] = documents(CHART / "Chart.yaml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert [chart["version"], chart["appVersion"]] == [project["version"]] * 2


def test_every_variable_is_a_setting() -> None:
    files = [
        f
        for f in DEPLOY.rglob("*")
        if f.suffix in {".yaml", ".tpl", ".service"} and f.parent != DEPLOY / "nats"
    ]
    named = set().union(*(VARIABLE.findall(f.read_text()) for f in [*files, ROOT / "Dockerfile"]))
    settings = named - NOT_OURS

    assert unknown_variables(dict.fromkeys(settings, "")) == []
    for name in settings:
        _, *path = name.removeprefix("REBASER_").lower().split("__")
        group = Settings.model_fields[name.removeprefix("REBASER_").lower().split("__")[0]]
        assert not path or path[0] in group.annotation.model_fields, name


PREFIX = "REBASER_"
OF_THE_CLUSTER = ("NATS__URL", "NATS__MONITORING", "NATS__REPLICAS", "OPS__HOST", "OPS__PORT",
                  "NATS__USER", "NATS__PASSWORD", "STORE__ROOT", "STORE__OPTIONS", "INSTANCE_ID",
                  "SHUTDOWN_GRACE")  # fmt: skip
"""Settings that say where the pod's neighbours are, of which none is here."""
MASTER = "REBASER_SPARK__MASTER"
SECRETS = {"options": '{"AWS_SECRET_ACCESS_KEY": "hush"}', "tokens": "anna operator hushhushhush"}
"""Contents of the keys of secrets, where these have a form."""


def mounted(variables: dict[str, str], made: Certificates) -> dict[str, str]:
    """The variables, with files of ours in place of those that the pod has from secrets."""
    files = {"creds": made.ca, "ca.crt": made.ca}
    found = {}
    for name, value in variables.items():
        found[name] = SECRETS.get(value, value)
        if value.startswith("/etc/rebaser/"):
            found[name] = str(files.get(Path(value).name, made.server))
    return found


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_daemon_accepts_the_settings_of_its_pod(example: str, tmp_path: Path) -> None:
    """All of them, each with the value that it has there."""
    pod = mounted(environment(rendered(example)), certificates(tmp_path / "pem"))
    others = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}

    command = [sys.executable, "-m", "rebaser_server", "settings"]
    done = subprocess.run(command, env=others | pod, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["nats"]["url"] == pod["REBASER_NATS__URL"]
    assert shown["store"]["root"] == pod["REBASER_STORE__ROOT"]
    assert shown["spark"]["master"] == pod.get("REBASER_SPARK__MASTER", "local[*]")


@pytest.mark.parametrize("example", ["claim", "connect", "tls"])
async def test_a_daemon_starts_with_the_environment_that_its_pod_has(
    example: str, tmp_path: Path
) -> None:
    """Also where the Services of others have names that begin as ours do, in all three forms."""
    ports = [{"port": 80, "name": "web-ui"}]
    foreign = service_variables("rebaser", ports) | service_variables("rebaser-ops--page", ports)
    made = certificates(tmp_path / "pem")
    pod = mounted(environment(rendered(example)) | foreign, made)
    variables = {
        name.removeprefix(PREFIX): value
        for name, value in pod.items()
        if name.removeprefix(PREFIX) not in OF_THE_CLUSTER
    }
    config = made.asks_for_certificates if example == "tls" else ""

    with running(NatsServer(tmp_path / "nats", config)) as server:
        here = {"NATS__URL": server.url, "OPS__PORT": "0", "STORE__ROOT": str(tmp_path / "store")}
        daemon = Daemon("daemon", tmp_path, SCALED | variables | here)
        try:
            await daemon.ready()
        finally:
            daemon.kill()


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_pod_asks_nothing_of_kubernetes(example: str) -> None:
    """Neither is it told of Services by variables."""
    resources = rendered(example)
    for deployment in of_kind(resources, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["enableServiceLinks"] is pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_a_pod_may_take_is_bounded_on_a_node_of_any_size(example: str) -> None:
    """Spark takes a process for each core, and `local[*]` is all of the node's."""
    resources = rendered(example)
    for deployment in of_kind(resources, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        [container] = pod["containers"]
        assert container["resources"]["limits"]["memory"]
        assert all(v["emptyDir"]["sizeLimit"] for v in pod["volumes"] if "emptyDir" in v)
        arguments = dict(each.split("=", 1) for each in container.get("args", ()))
        if "args" in container or not environment(resources)[MASTER].startswith("sc://"):
            master = arguments.get("spark.master", environment(resources).get(MASTER, ""))
            assert re.fullmatch(r"local\[\d+\]", master)


def test_servers_of_nats_take_the_accounts_with_passwords_of_a_secret() -> None:
    [values] = documents(DEPLOY / "nats/helm-values.yaml")
    wanted = set(re.findall(r"\$(NATS_\w+)", (DEPLOY / "nats/accounts.conf").read_text()))
    env = values["container"]["env"]

    assert values["config"]["merge"]["$include"] == "accounts.conf"
    assert wanted == {name for name, value in env.items() if "valueFrom" in value}
    assert env["GOMEMLIMIT"] < values["container"]["merge"]["resources"]["limits"]["memory"]


def systemd_unit() -> RawConfigParser:
    unit = RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read(DEPLOY / "systemd/rebaser.service")
    return unit


def test_systemd_does_not_start_a_rebaser_again_that_refused_its_settings() -> None:
    service = systemd_unit()["Service"]

    assert service["Restart"] == "always"
    assert int(service["RestartPreventExitStatus"]) == Exit.BAD_SETTINGS


def test_stopping_a_rebaser_allows_its_shutdown_grace() -> None:
    grace = Settings.model_fields["shutdown_grace"].default.total_seconds()

    given = [
        rebaser(rendered("s3"))["spec"]["terminationGracePeriodSeconds"],
        int(compose()["services"]["rebaser"]["stop_grace_period"].removesuffix("s")),
        int(systemd_unit()["Service"]["TimeoutStopSec"]),
    ]

    assert all(seconds >= grace + 10 for seconds in given), "and to close what it has open"


def test_no_container_is_root_or_writes_outside_its_volumes() -> None:
    for deployment in of_kind(rendered("connect"), "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        [container] = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {m["mountPath"] for m in container["volumeMounts"]} == set(WRITABLE)
    for name in ("rebaser", "spark"):
        service = compose()["services"][name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


STAGES = {
    stage.split()[2]: stage
    for stage in re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
}
"""Each stage of the Dockerfile by its name."""


def test_images_list_their_content_report_their_health_and_run_without_root() -> None:
    base = STAGES["base"]
    [sbom] = re.findall(r'rebaser\.sbom="([^"]+)"', base)
    [probe] = re.findall(r'HEALTHCHECK.*\n  CMD \["python3", "-m", "([\w.]+)"\]', base)

    assert find_spec(probe)
    assert "STOPSIGNAL SIGTERM" in base
    for image, application in (("thin", "application-thin"), ("daemon", "application")):
        assert f"--output-file {sbom}" in STAGES[application]
        assert f"COPY --from={application} /opt/app" in STAGES[image]
        assert re.findall(r"^USER (.+)", base + STAGES[image], re.MULTILINE)[-1] == "10001:10001"
        labels = re.findall(r"opencontainers\.image\.(\w+)", base + STAGES[image])
        assert {"version", "revision", "source", "licenses"} <= {*labels}


def test_a_change_of_ours_leaves_the_layer_of_what_others_wrote() -> None:
    assert re.findall(r"^COPY (\S+)", STAGES["dependencies"], re.MULTILINE) == [
        "deploy/requirements.lock"
    ]


def test_images_are_made_of_all_requirements_by_their_hashes() -> None:
    """`make lock` makes the file anew, once pyproject.toml asks for something else."""
    lock = (DEPLOY / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    images = ("cli", "server", "tracing", "worker")
    wanted = [*project["dependencies"], *(line for name in images for line in extras[name])]

    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        assert name == "rebaser" or locked[name] in requirement.specifier, requirement
    assert lock.count("==") < lock.count("--hash=sha256:")


FORMS = {
    ".github/workflows/*.yaml": "vendor.github-workflows",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "vendor.github-issue-forms",
    "deploy/compose.yaml": "vendor.compose-spec",
}


@pytest.mark.parametrize("pattern", FORMS)
def test_files_for_others_programs_have_the_form_that_these_take(pattern: str) -> None:
    """Compose's as `docker compose config` looks at it, but for what is filled in."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", FORMS[pattern]]
    files = sorted(ROOT.glob(pattern))
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)

    assert files
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", EXAMPLES)
def test_selectors_match_existing_pods(example: str) -> None:
    """Each the pods of one Deployment."""
    resources = rendered(example)
    pods = [d["spec"]["template"]["metadata"]["labels"] for d in of_kind(resources, "Deployment")]
    selectors = [
        *(d["spec"]["selector"]["matchLabels"] for d in of_kind(resources, "Deployment")),
        *(p["spec"]["podSelector"]["matchLabels"] for p in of_kind(resources, "NetworkPolicy")),
        *(b["spec"]["selector"]["matchLabels"] for b in of_kind(resources, "PodDisruptionBudget")),
        *(s["spec"]["selector"] for s in of_kind(resources, "Service")),
    ]
    for selector in selectors:
        assert [selector.items() <= labels.items() for labels in pods].count(True) == 1


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_resource_says_what_it_belongs_to(example: str) -> None:
    wanted = {"name", "instance", "version", "component", "managed-by", "part-of"}
    for resource in rendered(example):
        labels = resource["metadata"]["labels"]
        assert {f"app.kubernetes.io/{name}" for name in wanted} < labels.keys()
        assert labels["app.kubernetes.io/instance"] == RELEASE


def allowed(resources: list[dict[str, Any]], name: str) -> set[int]:
    """The ports that this pod may reach."""
    [policy] = [p for p in of_kind(resources, "NetworkPolicy") if p["metadata"]["name"] == name]
    return {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}


def test_pods_reach_what_they_need_and_nothing_else() -> None:
    """An object store is reached by Spark, too; a volume by the node."""
    assert allowed(rendered("s3"), "rebaser") == {53, 443, 4222, 8222}
    assert allowed(rendered("claim"), "rebaser") == {53, 4222, 8222}
    assert allowed(rendered("own-nats"), "rebaser") == {53, 443, 4222, 4223, 8222, 9000}
    assert allowed(rendered("connect"), "rebaser") == {53, 4222, 8222, 15002}
    assert allowed(rendered("connect"), "rebaser-spark") == {53}
    remote = rendered("connect", store={"root": "s3://bucket"})
    assert allowed(remote, "rebaser-spark") == {53, 443}


def test_nobody_reaches_the_ops_port_if_no_peer_is_named() -> None:
    """An empty `from` would let in everybody."""
    resources = rendered("s3", networkPolicy={"monitoring": []})
    [policy] = of_kind(resources, "NetworkPolicy")

    assert "Ingress" in policy["spec"]["policyTypes"]
    assert "ingress" not in policy["spec"]


def test_nats_is_found_by_the_names_that_its_own_chart_gives() -> None:
    """The release's, which has the chart's behind it unless that is in it."""
    for release, name in (("nats", "nats"), ("east-nats", "east-nats"), ("bus", "bus-nats")):
        settings = environment(rendered("s3", nats={"release": release, "namespace": "infra"}))
        assert settings["REBASER_NATS__URL"] == f"nats://{name}.infra.svc:4222"
        servers = [f"http://{name}-{n}.{name}-headless.infra.svc:8222" for n in range(3)]
        assert settings["REBASER_NATS__MONITORING"].split(",") == servers


def test_an_object_store_takes_no_volume() -> None:
    for resources in (rendered("s3"), rendered("connect", store={"root": "s3://bucket"})):
        assert of_kind(resources, "PersistentVolumeClaim") == []
        for deployment in of_kind(resources, "Deployment"):
            volumes = deployment["spec"]["template"]["spec"]["volumes"]
            assert [volume["name"] for volume in volumes] == ["tmp"]


def test_changed_settings_replace_the_pods() -> None:
    before, after = rendered("s3"), rendered("s3", settings={"REBASER_CONCURRENCY": "50"})

    assert environment(after)["REBASER_CONCURRENCY"] == "50"
    assert rebaser(before)["metadata"]["annotations"] != rebaser(after)["metadata"]["annotations"]


def test_prometheus_operator_gets_the_alerts_as_they_are() -> None:
    resources = rendered("tls")
    [rule], [monitor] = of_kind(resources, "PrometheusRule"), of_kind(resources, "ServiceMonitor")
    [service] = of_kind(resources, "Service")
    [endpoint] = monitor["spec"]["endpoints"]

    assert rule["spec"] == next(documents(DEPLOY / "prometheus" / "rules.yaml"))
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert "rebaser" in service["metadata"]["labels"][monitor["spec"]["jobLabel"]]


def test_keda_watches_the_consumer_that_all_rebasers_share() -> None:
    prefixed = rendered("keda", settings={"REBASER_NATS__PREFIX": "east"})
    for resources, subjects in ((rendered("keda"), Subjects()), (prefixed, Subjects("east"))):
        [scaled] = of_kind(resources, "ScaledObject")
        [trigger] = scaled["spec"]["triggers"]
        told = trigger["metadata"]

        [deployment] = of_kind(resources, "Deployment")
        assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
        assert "replicas" not in deployment["spec"], "it is KEDA's"
        assert (told["stream"], told["consumer"]) == (subjects.tasks_stream, TASKS_CONSUMER)
        host, _, port = told["natsServerMonitoringEndpoint"].partition(":")
        assert host == "nats-headless.messaging.svc", "KEDA asks from its own namespace"
        assert port == "8222"
        assert int(told["lagThreshold"]) < Settings.model_fields["concurrency"].default


def test_compose_asks_for_secrets_and_shows_nothing_beyond_this_machine() -> None:
    services = compose()["services"]
    wanted = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose.yaml").read_text()))
    example = (DEPLOY / "example.env").read_text()

    assert set(re.findall(r"^(\w+)=", example, re.MULTILINE)) >= wanted
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    mounted = [v.split(":")[0] for s in services.values() for v in s.get("volumes", [])]
    assert all((DEPLOY / name).exists() for name in mounted if name.startswith("."))
