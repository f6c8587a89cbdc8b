"""The runbook has a section for each alert, and its commands run."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from lisa_manager import AsyncAdmin
from lisa_manager.monitoring import read_alerts
from support import Server
from support.commands import Commands
from support.documents import read_blocks
from support.running import managed

RUNBOOK = (Path(__file__).parents[2] / "docs/runbook.md").read_text("utf-8")
ALERTS = [rule for group in yaml.safe_load(read_alerts())["groups"] for rule in group["rules"]]
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))


def test_each_alert_has_its_section_in_order() -> None:
    """And no section is about an alert that does not exist."""
    assert list(SECTIONS) == [alert["alert"] for alert in ALERTS]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_leads_to_what_it_means_where_to_look_and_what_to_do(alert: dict[str, dict[str, str]]) -> None:
    """By its annotation, and in three parts."""
    assert alert["annotations"]["runbook_url"].rpartition("/")[2] == f"#{str(alert['alert']).lower()}"
    positions = [SECTIONS[str(alert["alert"])].index(f"**{part}:**") for part in ("Means", "Look", "Do")]
    assert positions == sorted(positions)


async def test_the_commands_run_as_printed(own_server: Callable[..., Server]) -> None:
    """On a server with a topic and a group of the names that the page uses, where nothing is wrong."""
    server = own_server(appendonly="yes", save="", maxmemory_policy="noeviction")
    run = Commands(server.url, "lisa").manager
    commands = [command for block in read_blocks(RUNBOOK) for command, _ in block.commands]
    assert len(commands) > 10
    async with managed(server.url, "lisa"), AsyncAdmin(server.url) as admin:
        await admin.create_topic("TOPIC")
        await admin.create_group("TOPIC", "GROUP")
        for command in commands:
            name, *words = command.split()
            assert name == "lisa-manager"
            done = await asyncio.to_thread(run, *words)
            assert done.code == 0, (command, done.out, done.err)
