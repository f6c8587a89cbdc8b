"""The Grafana dashboard and the alerts ask only for what is exported, and each alert fires by its fault alone."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from lisa_common.observing.catalog import METRICS, Kind
from lisa_manager.monitoring import read_alerts, read_dashboard
from support.commands import Commands
from support.grafana import Expression, alert_expressions, panel_expressions, rules

_HERE = Path(__file__).parent

_FOREIGN = {
    "process_cpu_seconds_total": set[str](),
    "process_resident_memory_bytes": set[str](),
    # Of redis_exporter.
    "redis_memory_used_bytes": set[str](),
    "redis_memory_max_bytes": set[str](),
    "redis_instance_info": {"maxmemory_policy"},
    "redis_commands_processed_total": set[str](),
    "redis_connected_clients": set[str](),
    "redis_blocked_clients": set[str](),
}
"""Metrics that are not ours, with the labels that we use."""

_OF_SCRAPES = {"instance", "job"}


def _exported() -> dict[str, set[str]]:
    """Every series that can be asked for, with its labels as Prometheus has them."""
    found = {name: labels | _OF_SCRAPES for name, labels in _FOREIGN.items()}
    for metric in METRICS:
        labels = {*metric.labels, *_OF_SCRAPES} | ({"exported_job"} if "job" in metric.labels else set())
        if metric.kind is Kind.HISTOGRAM:
            found |= {f"{metric.name}_bucket": labels | {"le"}}
            found |= {f"{metric.name}_{part}": labels for part in ("sum", "count")}
        else:
            found[metric.name] = labels
    return found


def _children(node: Any) -> list[Any]:
    names = ("lhs", "rhs", "expr", "param", "vector_selector")
    return [child for name in names if (child := getattr(node, name, None))] + list(getattr(node, "args", ()))


def _selectors(node: Any) -> Iterator[Any]:
    if isinstance(node, promql.VectorSelector):
        yield node
    for child in _children(node):
        yield from _selectors(child)


def _labels(node: Any, exported: dict[str, set[str]]) -> set[str]:
    """The labels of the result; fails where an expression names a label that its series do not have."""
    if isinstance(node, promql.VectorSelector):
        assert node.name in exported, f"nobody exports {node.name}"
        matched = {matcher.name for matcher in node.matchers.matchers}
        assert matched <= exported[node.name], f"{node.name} has no {matched - exported[node.name]}"
        return exported[node.name]
    if isinstance(node, promql.AggregateExpr):
        inner = _labels(node.expr, exported)
        if node.modifier is None:
            return inner if "topk" in str(node.op) else set()
        by = {*node.modifier.labels}
        assert by <= inner, f"there is no {by - inner} to aggregate by"
        return by
    if isinstance(node, promql.BinaryExpr):
        left, right = _labels(node.lhs, exported), _labels(node.rhs, exported)
        matching = {*node.modifier.matching.labels} if node.modifier and node.modifier.matching else set()
        assert matching <= left, f"the left side has no {matching - left}"
        assert matching <= right, f"the right side has no {matching - right}"
        return left or right
    if isinstance(node, promql.Call) and node.func.name == "label_replace":
        series, added, _, source, _ = node.args
        inner = _labels(series, exported)
        assert source.val in inner, f"there is no {source.val} to take {added.val} from"
        return inner | {added.val}
    parts = [getattr(node, "expr", None), getattr(node, "vector_selector", None), *getattr(node, "args", ())]
    return set().union(*(_labels(part, exported) for part in parts if part is not None))


_EXPRESSIONS = [*panel_expressions(), *alert_expressions()]


@pytest.mark.parametrize("expression", _EXPRESSIONS, ids=[f"{n} {each.where}" for n, each in enumerate(_EXPRESSIONS)])
def test_an_expression_asks_for_what_there_is(expression: Expression) -> None:
    """Metrics, labels to match, to aggregate by and to match on, and labels in legends and texts."""
    tree = promql.parse(expression.text)
    labels = _labels(tree, _exported())
    named = set(re.findall(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}", expression.legend)) - {"value"}
    if "topk" not in expression.text and "absent" not in expression.text:
        assert named <= labels, f"{named - labels} of the text are not in the result"


@pytest.mark.parametrize("bad", ["lisa_no", "lisa_messages{tpic='x'}", "sum by (tpic) (lisa_messages)"])
def test_the_check_finds_mistakes(bad: str) -> None:
    """A name that nobody exports, a label that a metric does not have."""
    with pytest.raises(AssertionError):
        _labels(promql.parse(bad), _exported())


def test_every_metric_is_in_a_panel_or_in_an_alert() -> None:
    """Nothing is counted that nobody looks at."""
    used = {s.name for each in _EXPRESSIONS for s in _selectors(promql.parse(each.text))}
    unused = [m.name for m in METRICS if not any(name.startswith(m.name) for name in used)]
    assert unused == []


def test_garbage_has_a_row_on_the_board() -> None:
    """How much there is, how old it is, when it is removed, and what makes and removes it."""
    panels = json.loads(read_dashboard())["panels"]
    at = next(number for number, panel in enumerate(panels) if (panel["type"], panel["title"]) == ("row", "Garbage"))
    row = [panel for panel in panels[at + 1 : at + 4] if panel["type"] == "timeseries"]
    assert {panel["gridPos"]["y"] for panel in row} == {panels[at]["gridPos"]["y"] + 1}
    asked = " ".join(target["expr"] for panel in row for target in panel["targets"])
    assert [m.name for m in METRICS if "garbage" in m.name and m.name not in asked] == []
    assert 'lisa_settled_total{outcome="garbage"}' in asked
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    assert len(set(places)) == len(places), "panels overlap"


def test_the_page_says_after_which_time_each_alert_fires() -> None:
    """Severity and `for` of each rule, beside its condition."""
    page = (Path(__file__).parents[2] / "docs/observability.md").read_text("utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `Lisa")
    ]
    shown = [(name.strip("`"), severity, held) for name, severity, _, held, _ in rows]
    assert shown == [(rule["alert"], rule["labels"]["severity"], rule.get("for", "0s")) for rule in rules()]


def test_the_page_names_all_that_is_scraped_and_installed() -> None:
    """Targets of every kind of program; the SDK beside the extras that bring only OpenTelemetry's API."""
    page = (Path(__file__).parents[2] / "docs/observability.md").read_text("utf-8")
    [example] = re.findall(r"^```yaml\n(scrape_configs:.*?)^```$", page, re.MULTILINE | re.DOTALL)
    [job] = yaml.safe_load(example)["scrape_configs"]
    targets = [target for static in job["static_configs"] for target in static["targets"]]
    assert {target.partition("-")[0] for target in targets} == {"manager", "worker", "gateway", "pusher", "shop"}
    [traces] = re.findall(r"^## Traces\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    assert "pip install 'lisa-producer[otel]' 'lisa-consumer[otel]' opentelemetry-sdk" in traces


def test_the_board_can_be_provisioned() -> None:
    """Its data source is a variable of the dashboard: an import's input would break provisioning by file."""
    dashboard = json.loads(read_dashboard())
    assert "__inputs" not in dashboard
    [datasource, *queries] = dashboard["templating"]["list"]
    assert (datasource["type"], datasource["query"]) == ("datasource", "prometheus")
    places = [*queries, *(panel for panel in dashboard["panels"] if panel["type"] != "row")]
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    uids = {each["datasource"]["uid"] for each in (*places, *targets)}
    assert uids == {"${datasource}"}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for query in queries:
        name, *labels = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", query["definition"]).groups()
        assert {*labels} <= _exported()[name]


def _aggregated(node: Any, by: str = "") -> Iterator[tuple[str, str]]:
    """Each metric of an expression, and the aggregation right around it; "" for none."""
    if isinstance(node, promql.VectorSelector):
        yield node.name, by
    if isinstance(node, promql.AggregateExpr):
        by = node.prettify().partition("(")[0].split()[0]
    for child in _children(node):
        yield from _aggregated(child, by)


def test_structures_are_never_summed_over_managers() -> None:
    """All managers export the same values: an expression takes their maximum before anything else."""
    sampled = {metric.name for metric in METRICS if metric.sampled}
    found = {(each.where, *pair) for each in _EXPRESSIONS for pair in _aggregated(promql.parse(each.text))}
    assert {(where, name) for where, name, by in found if name in sampled and by not in ("max", "min")} == set()
    assert ("lisa_messages", "sum") in _aggregated(promql.parse("max(sum(lisa_messages))")), "or this finds nothing"


def test_commands_print_both(redis_url: str, prefix: str) -> None:
    """As files, whatever the settings say."""
    commands = Commands(redis_url, prefix)
    dashboard, alerts = commands.manager("grafana"), commands.manager("alerts")
    assert dashboard.document == json.loads(read_dashboard())
    assert (alerts.code, alerts.out) == (0, read_alerts())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool; Debian has it in prometheus")
def test_each_alert_fires_by_its_fault() -> None:
    """By promtool: rules that Prometheus takes, faults in tests/monitoring/alerts.yml, and a calm run."""
    file = Path(__file__).parents[2] / "manager/src/lisa_manager/monitoring/alerts.yml"
    for words in (("check", "rules", file), ("test", "rules", _HERE / "alerts.yml")):
        ran = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    faults = (_HERE / "alerts.yml").read_text("utf-8")
    assert [rule["alert"] for rule in rules() if faults.count(rule["alert"]) == 0] == []
