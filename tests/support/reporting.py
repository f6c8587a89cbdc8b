"""Nothing is skipped in silence: the last lines of a run name what did not run, and why.

With `LISA_TEST_ALL=1` a skipped test fails the run; that is for machines which have everything.
"""

import os
from collections import Counter

import pytest

from support.engines import chosen


def pytest_report_header() -> str:
    """Say which server the suite runs on, without a password."""
    return f"server: {chosen().rpartition('@')[2]}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that had to be complete and was not."""
    if os.environ.get("LISA_TEST_ALL") and _not_run(session.config) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the skipped tests by reason."""
    reasons = _not_run(terminalreporter.config)
    terminalreporter.write_sep("-", "not run")
    left = sum("long" in item.keywords for item in terminalreporter.stats.get("deselected", []))
    if left:
        terminalreporter.write_line(f"not run: {left} (they take long: make test-long)")
    elif not reasons:
        terminalreporter.write_line("not run: nothing; every test that was asked for ran")
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"not run: {count} ({reason})", yellow=True)


def _not_run(config: pytest.Config) -> Counter[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.getreports("skipped") if reporter else []
    return Counter(_reason(report) for report in skipped)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return f"expected to fail: {getattr(report, 'wasxfail', '')}"
