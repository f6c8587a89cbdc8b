"""Where messages belong: it must never change, as an id that is looked for elsewhere is sent twice."""

from collections import Counter

import pytest

from lisa_common.errors import InvalidInput
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout, by_shard


def layout(**fields: object) -> Layout:
    """The layout of a topic with such a policy."""
    return Layout("lisa", "orders", Policy.of(fields))


def test_a_topic_is_one_shard_and_goes_by_its_name() -> None:
    """Nothing is added to its keys."""
    assert [keys.of("ready") for keys in layout().served] == ["lisa:{orders}:ready"]


def test_a_shard_adds_its_number_to_the_tag() -> None:
    """As the docs have it."""
    assert [keys.of("ready") for keys in layout(shards=2).served] == ["lisa:{orders/0}:ready", "lisa:{orders/1}:ready"]


@pytest.mark.parametrize(("id", "shard"), [("order-7", "2"), ("ü", "5"), ("", "0"), ("AAAAAAAAAAAAAAAA~", "1")])
def test_ids_stay_where_they_are(id: str, shard: str) -> None:
    """CRC-32 of the UTF-8 bytes, modulo the number of shards: of this release and of all later ones."""
    assert layout(shards=8).home(id).shard == shard


def test_shards_share_the_load() -> None:
    """Ids of people's making too."""
    counts = Counter(layout(shards=8).home(f"order-{number}").shard for number in range(8_000))
    assert set(counts) == set("01234567")
    assert 900 < min(counts.values()) < max(counts.values()) < 1_100


def test_a_reshard_makes_shards_of_its_own() -> None:
    """What was closed is never used again, even if the number is the same as before."""
    resharded = layout(shards=2, former=[1, 4, 2])
    assert [keys.tag for keys in resharded.shards] == ["orders/0.3", "orders/1.3"]
    assert [[keys.tag for keys in shards] for shards in resharded.former.values()] == [
        ["orders"],
        ["orders/0.1", "orders/1.1", "orders/2.1", "orders/3.1"],
        ["orders/0.2", "orders/1.2"],
    ]
    assert len({keys.tag for keys in resharded.ever}) == 9


def test_what_is_drained_is_not_served() -> None:
    """And an id is not looked for there."""
    resharded = layout(shards=2, former=[1, 4], drained=[0])
    assert [keys.tag for keys in resharded.homes("order-7")] == ["orders/0.2", "orders/2.1"]
    assert len(resharded.served) == 6
    assert len(resharded.ever) == 7


def test_items_by_shard_keep_their_order() -> None:
    """So that a batch is sent in order within each shard."""
    spread = layout(shards=3)
    found = by_shard(map(str, range(100)), spread.home)
    assert sorted(item for items in found.values() for item in items) == sorted(map(str, range(100)))
    assert all(items == sorted(items, key=int) for items in found.values())
    assert all(spread.home(item) == keys for keys, items in found.items() for item in items)


@pytest.mark.parametrize(("field", "value"), [("shards", 0), ("shards", 257), ("shards", "2"), ("former", [0])])
def test_bad_layouts_are_refused(field: str, value: object) -> None:
    """With the name of the field."""
    with pytest.raises(InvalidInput, match=f"policy field {field}"):
        layout(**{field: value})
