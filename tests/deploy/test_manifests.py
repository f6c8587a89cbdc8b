"""What `deploy/` starts: systemd, Compose and Kubernetes take it, and each program becomes ready with its settings."""

import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from support.processes import Process
from support.waiting import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
MANIFESTS = sorted(path for path in (DEPLOY / "kubernetes").glob("**/*.yaml") if path.name != "kustomization.yaml")
PROGRAMS = Path(sys.executable).parent
SHOP = "from lisa_consumer import Worker\n\nworker = Worker('billing')\nworker.on('orders')(print)\n"
GRANTS = '[[gateway.grants]]\nname = "shop"\ntokens = ["sha256:%s"]\nroles = ["send"]\n' % ("0" * 64)


@dataclass(frozen=True)
class Started:
    """A program as a manifest starts it, and the port at which it says that it is ready."""

    command: list[str]
    environment: dict[str, str]
    port: int


def _resources(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def _deployments() -> Iterator[dict[str, Any]]:
    for path in MANIFESTS:
        yield from (each for each in _resources(path) if each["kind"] == "Deployment")


def _started() -> Iterator[Any]:
    for name, service in yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"].items():
        if "healthcheck" in service:
            port = int(re.findall(r"127\.0\.0\.1:(\d+)/readyz", service["healthcheck"]["test"][-1])[0])
            yield pytest.param(Started(service["command"], service["environment"], port), id=f"compose {name}")
    for each in _deployments():
        [container] = each["spec"]["template"]["spec"]["containers"]
        environment = {entry["name"]: entry["value"] for entry in container["env"]}
        port = container["readinessProbe"]["httpGet"]["port"]
        yield pytest.param(
            Started(container["command"], environment, port), id=f"kubernetes {each['metadata']['name']}"
        )
    for unit in UNITS:
        text = unit.read_text("utf-8")
        environment = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))
        [line] = re.findall(r"^ExecStart=/opt/lisa/bin/(.*)$", text, re.MULTILINE)
        port = re.findall(r":(\d+)$", " ".join(environment.values()))
        if port:
            yield pytest.param(Started(line.split(), environment, int(port[0])), id=f"systemd {unit.stem}")


@pytest.mark.parametrize("started", list(_started()))
def test_a_program_becomes_ready(
    started: Started, redis_url: str, prefix: str, tmp_path: Path, reserve_port: Callable[[], int]
) -> None:
    """With the settings of the manifest, on a free port; and it ends by SIGTERM."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "lisa.toml").write_text(GRANTS)
    port = reserve_port()
    environment = {
        name: value.replace(f":{started.port}", f":{port}").replace("/etc/lisa", str(tmp_path))
        for name, value in started.environment.items()
    }
    environment = {**os.environ, **environment, "LISA_REDIS_URL": redis_url, "LISA_PREFIX": prefix}
    program = Process(
        [str(PROGRAMS / started.command[0]), *started.command[1:]], environment, tmp_path / "log", tmp_path
    )
    try:
        wait_until(lambda: not program.runs or _is_ready(port), 60, what=f"readiness of {started.command}")
        assert program.runs, program.log
    finally:
        code = program.stop()
    assert code == 0, program.log


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze; Debian has it in systemd")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """Without a word, when the programs are where the units look for them."""
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text("utf-8").replace("/opt/lisa/bin", str(PROGRAMS)))
    ran = subprocess.run(["systemd-analyze", "verify", *tmp_path.iterdir()], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_kubernetes_takes_the_manifests(path: Path) -> None:
    """By the schemas of two releases; those of KEDA are no part of Kubernetes."""
    for resource in _resources(path):
        if not resource["apiVersion"].startswith("keda.sh/"):
            for release in ("1.29", kubernetes_validate.latest_version()):
                kubernetes_validate.validate(resource, release, strict=True)


def test_each_deployment_has_probes_a_budget_and_time_to_drain() -> None:
    """One pod of each stays during a disruption; pods stop later than their programs drain."""
    budgets = [each for path in MANIFESTS for each in _resources(path) if each["kind"] == "PodDisruptionBudget"]
    for each in _deployments():
        spec = each["spec"]["template"]["spec"]
        labels = each["spec"]["template"]["metadata"]["labels"].items()
        [container] = spec["containers"]
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert any(budget["spec"]["selector"]["matchLabels"].items() <= labels for budget in budgets)
        if "worker" in each["metadata"]["name"]:
            assert spec["terminationGracePeriodSeconds"] > 30


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl; Debian has it in kubernetes-client")
def test_kustomize_builds_all_of_it() -> None:
    """All resources, with the image that the kustomization names."""
    ran = subprocess.run(["kubectl", "kustomize", DEPLOY / "kubernetes"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    built = list(yaml.safe_load_all(ran.stdout))
    named = {(each["kind"], each["metadata"]["name"]) for each in built}
    assert named == {
        (each["kind"], each["metadata"]["name"])
        for path in MANIFESTS
        if path.parent.name == "kubernetes"
        for each in _resources(path)
    }
    images = {
        c["image"]
        for each in built
        if each["kind"] == "Deployment"
        for c in each["spec"]["template"]["spec"]["containers"]
    }
    assert len(images) == 1
    assert not images & {"lisa"}
