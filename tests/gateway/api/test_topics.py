"""Topics over HTTP, where operators have set policies of patterns."""

from collections.abc import Iterator

import httpx
import pytest

from lisa_manager import Admin, ManagerSettings
from support.gateways import Gateways


@pytest.fixture
def admin(gateways: Gateways) -> Iterator[Admin]:
    """The operator beside the gateway."""
    with Admin(settings=ManagerSettings(redis_url=gateways.url, prefix=gateways.prefix)) as opened:
        yield opened


def test_answers_have_the_capped_value(http: httpx.Client, admin: Admin, topic: str) -> None:
    """Declared, declared again, changed or shown: the policy is the one that holds; the topic keeps its own value."""
    admin.set_pattern_policy(topic, {"ttl_ms": 60_000}, cap=True)
    url, wanted = f"/v1/topics/{topic}", {"ttl_ms": 7_200_000}
    answers = [http.put(url, json=wanted), http.put(url, json=wanted), http.patch(url, json=wanted), http.get(url)]
    # What was shown may be declared as well.
    answers.append(http.put(url, json={"ttl_ms": 60_000}))
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200, 200]
    assert [answer.json()["policy"]["ttl_ms"] for answer in answers] == [60_000] * 5
    other = http.put(url, json={"ttl_ms": 30_000})
    assert (other.status_code, other.json()["field"]) == (409, "ttl_ms")
    admin.drop_pattern_policy(topic, cap=True)
    assert http.get(url).json()["policy"]["ttl_ms"] == 7_200_000


def test_filters_in_the_query_of_a_purge_are_refused(http: httpx.Client, topic: str) -> None:
    """They belong into the body; ignored, everything would be deleted."""
    refused = http.post(f"/v1/topics/{topic}/garbage/purge?reason=nack", json={"all": True})
    assert (refused.status_code, refused.json()["field"]) == (400, "query parameter")


def test_a_value_that_a_cap_cannot_have_is_one_error(http: httpx.Client, admin: Admin, topic: str) -> None:
    """Nothing is declared."""
    admin.set_pattern_policy(topic, {"max_messages": 2}, cap=True)
    refused = http.put(f"/v1/topics/{topic}", json={"shards": 4})
    assert refused.status_code == 400
    assert "max_messages must be at least 4, one for each shard" in refused.json()["detail"]
    assert http.get(f"/v1/topics/{topic}").status_code == 404
    admin.drop_pattern_policy(topic, cap=True)
