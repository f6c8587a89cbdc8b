"""The expressions of the Grafana dashboard and of the alerts."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from lisa_manager.monitoring import read_alerts, read_dashboard

__all__ = ["Expression", "alert_expressions", "panel_expressions", "rules"]


class Expression(NamedTuple):
    """One expression, and the texts beside it that name labels."""

    where: str
    text: str
    legend: str = ""


def panel_expressions() -> Iterator[Expression]:
    """What the panels ask for, with every topic and group."""
    for panel in json.loads(read_dashboard())["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "5m")
            yield Expression(panel["title"], re.sub(r"\$(topic|group)\b", ".*", text), target["legendFormat"])


def alert_expressions() -> Iterator[Expression]:
    """What the alerts ask for."""
    for rule in rules():
        yield Expression(rule["alert"], rule["expr"], " ".join(rule["annotations"].values()))


def rules() -> list[Any]:
    """The alerts."""
    return [rule for group in yaml.safe_load(read_alerts())["groups"] for rule in group["rules"]]
