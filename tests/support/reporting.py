"""Nothing is skipped in silence: the last lines of a run name what did not run, and why.

With `LISA_TEST_ALL=1` a skipped test fails the run; set it on machines that have everything.
"""

import os
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from support.engines import chosen

_LEFT_OUT = "long_tests_left_out"
_left_out = 0
"""Long tests that this run did not choose. Where processes share the tests, each of them counts the same ones."""


def pytest_report_header() -> str:
    """Say which server the suite runs on, without a password."""
    return f"server: {chosen().rpartition('@')[2]}"


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count the long tests that are left out."""
    global _left_out  # noqa: PLW0603 - pytest offers hooks no place to keep things
    _left_out += sum(not {"slow", "long"}.isdisjoint(item.keywords) for item in items)


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there are no processes
def pytest_testnodedown(node: Any) -> None:
    """Take over the count of a process that ran a share of the tests."""
    global _left_out  # noqa: PLW0603
    _left_out = max(_left_out, getattr(node, "workeroutput", {}).get(_LEFT_OUT, 0))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show lone surrogates in the logs of a test as escapes: no process could send them to another."""
    report = yield
    report.sections = [(title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections]
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that had to be complete and was not."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_LEFT_OUT] = _left_out
        return
    if os.environ.get("LISA_TEST_ALL") and _not_run(session.config) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the skipped tests by reason."""
    reasons = _not_run(terminalreporter.config)
    terminalreporter.write_sep("-", "not run")
    if _left_out:
        terminalreporter.write_line(f"not run: {_left_out} (they take long: make test-long)")
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
