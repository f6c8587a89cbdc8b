"""Alerts for Prometheus, and a dashboard for Grafana."""

from importlib import resources

__all__ = ["read_alerts", "read_dashboard"]


def read_alerts() -> str:
    """The rules file for Prometheus, as YAML."""
    return _read("alerts.yml")


def read_dashboard() -> str:
    """The dashboard for Grafana, as JSON."""
    return _read("dashboard.json")


def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text("utf-8")
