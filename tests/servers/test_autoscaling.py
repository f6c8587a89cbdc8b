"""The manifests for autoscaling name metrics and fields that exist."""

import re
from itertools import chain
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from lisa_common.observing.catalog import Program, metrics_of
from lisa_gateway.v1.topics import TopicDetails

FILES = sorted((Path(__file__).parents[2] / "deploy/kubernetes/autoscaling").iterdir())
_QUERY = re.compile(r"max\((\w+)\{(.*)\}\)")


def _documents() -> list[dict[str, Any]]:
    return list(chain.from_iterable(yaml.safe_load_all(file.read_text("utf-8")) for file in FILES))


def _triggers(kind: str) -> list[dict[str, str]]:
    scaled = [each["spec"] for each in _documents() if each["kind"] == "ScaledObject"]
    return [trigger["metadata"] for spec in scaled for trigger in spec["triggers"] if trigger["type"] == kind]


def test_queries_have_metrics_of_managers() -> None:
    """With their labels; and the thresholds are text, as KEDA wants them."""
    metrics = metrics_of(Program.MANAGER)
    triggers = _triggers("prometheus")
    assert len(triggers) == 2
    for trigger in triggers:
        match = _QUERY.fullmatch(trigger["query"])
        assert match
        assert set(re.findall(r"(\w+)=", match[2])) <= set(metrics[match[1]].labels)
        assert float(trigger["threshold"]) > 0


def test_the_autoscaler_has_a_metric_of_managers() -> None:
    """With its labels."""
    [spec] = [each["spec"] for each in _documents() if each["kind"] == "HorizontalPodAutoscaler"]
    [metric] = [each["external"]["metric"] for each in spec["metrics"]]
    assert set(metric["selector"]["matchLabels"]) == set(metrics_of(Program.MANAGER)[metric["name"]].labels)


@pytest.mark.parametrize("field", ["late_ms", "sizes.ready"])
def test_the_gateway_has_the_fields(field: str) -> None:
    """In its answer for a topic."""
    assert field in [trigger["valueLocation"] for trigger in _triggers("metrics-api")]
    answer: Any = TopicDetails
    for name in field.split("."):
        answer = get_type_hints(answer)[name]
    assert answer is int
