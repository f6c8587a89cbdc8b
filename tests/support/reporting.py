"""Nothing is skipped in silence: the last lines of a run name what did not run, and why."""

from collections import Counter

import pytest

from support.engines import chosen


def pytest_report_header() -> str:
    """Say which server the suite runs on, without a password."""
    return f"server: {chosen().rpartition('@')[2]}"


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the skipped tests by reason."""
    reasons = Counter(_reason(report) for report in terminalreporter.getreports("skipped"))
    terminalreporter.section("not run", sep="-")
    if not reasons:
        terminalreporter.write_line("not run: nothing; every test that was asked for ran")
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"not run: {count} ({reason})", yellow=True)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return f"expected to fail: {getattr(report, 'wasxfail', '')}"
