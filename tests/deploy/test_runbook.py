"""The runbook has a section for each alert, and the commands of the pages exist."""

import re
from pathlib import Path

import pytest
import yaml

from lisa_manager.monitoring import read_alerts
from support.commands import Commands

DOCS = Path(__file__).parents[2] / "docs"
RUNBOOK = (DOCS / "runbook.md").read_text("utf-8")
ALERTS = [rule for group in yaml.safe_load(read_alerts())["groups"] for rule in group["rules"]]
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
COMMAND = re.compile(r"(?:^|`)(lisa-manager [^`\n]+)", re.MULTILINE)


def test_each_alert_has_its_section_in_order() -> None:
    """And no section is about an alert that does not exist."""
    assert list(SECTIONS) == [alert["alert"] for alert in ALERTS]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_leads_to_what_it_means_where_to_look_and_what_to_do(alert: dict[str, dict[str, str]]) -> None:
    """By its annotation, and in three parts."""
    assert alert["annotations"]["runbook_url"].rpartition("/")[2] == f"#{str(alert['alert']).lower()}"
    positions = [SECTIONS[str(alert["alert"])].index(f"**{part}:**") for part in ("Means", "Look", "Do")]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    "line",
    sorted({line for page in ("runbook", "deploy") for line in COMMAND.findall((DOCS / f"{page}.md").read_text())}),
)
def test_a_command_exists_with_its_options(line: str) -> None:
    """By its help."""
    words = line.split()[1:]
    options = [word for word in words if word.startswith("--")]
    path = [word for word in words[:2] if word.islower() and not word.startswith("-")]
    help_ = Commands("redis://localhost:1", "lisa").manager(*path, "--help", COLUMNS="300")
    assert help_.code == 0, help_.err
    assert [option for option in options if f"{option} " not in help_.out] == []
