"""`lisa-manager grafana | alerts`."""

from lisa_manager.monitoring import read_alerts, read_dashboard

__all__ = ["alerts", "grafana"]


def grafana() -> None:
    """Prints the dashboard for Grafana, as JSON to import or to provision. Its data source is a variable."""
    print(read_dashboard(), end="")  # noqa: T201 - a file, not a message


def alerts() -> None:
    """Prints the alerts for Prometheus, as a rules file."""
    print(read_alerts(), end="")  # noqa: T201
