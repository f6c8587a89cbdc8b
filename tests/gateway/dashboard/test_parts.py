"""Parts of pages that need no server."""

import tracemalloc

import pytest

from lisa_common.errors import InvalidInput
from lisa_common.model.policy import Policy
from lisa_gateway.dashboard.bodies import show_body
from lisa_gateway.dashboard.charts import bars, series, spark
from lisa_gateway.dashboard.policy_form import changes, form_fields
from lisa_gateway.dashboard.selection import Selection
from lisa_gateway.dashboard.site import Site, encode, link
from lisa_gateway.forms import read_fields
from lisa_manager import DEFAULT, Lags, Sample


def test_policy_form_has_every_field_that_people_set() -> None:
    """A new field of policies appears by itself."""
    names = {field.name for field in form_fields(Policy())}
    assert set(Policy.model_fields) - names <= {"shards", "former", "drained", "limits_revision", "own"}
    assert all(field.help for field in form_fields(Policy()))


def test_policy_changes_are_those_of_touched_fields() -> None:
    """What was shown and not touched is left alone."""
    policy = Policy(max_retries=3, ttl_ms=5)
    assert changes(policy, {"ttl_ms": "5ms", "visibility_ms": "30s"}) == {}
    assert changes(policy, {"max_retries": "4", "ttl_ms": "", "backoff_jitter": "0.1"}) == {
        "max_retries": 4,
        "ttl_ms": DEFAULT,
    }
    assert changes(policy, {"max_retries": "9", "seen": '{"max_retries": "9"}'}) == {}
    with pytest.raises(InvalidInput, match="policy field max_retries must be"):
        changes(policy, {"max_retries": "x"})
    with pytest.raises(InvalidInput, match="seen must be"):
        changes(policy, {"seen": "["})


@pytest.mark.parametrize(
    ("body", "forms", "text"),
    [
        (b'{"a":[1]}', ("json", "text", "hex"), '{\n  "a": [\n    1\n  ]\n}'),
        (b"plain", ("text", "hex"), "plain"),
        (b"\xff\x00", ("hex",), "00000000  ff 00" + " " * 44 + ".."),
        (b"", ("text", "hex"), ""),
        (b"[" * 100_000, ("text", "hex"), "[" * 65_536),
        (b"[" + b"1," * 500_000 + b"1]", ("text", "hex"), "[" + "1," * 32_767 + "1"),
    ],
)
def test_bodies_are_shown_in_the_form_that_suits(body: bytes, forms: tuple[str, ...], text: str) -> None:
    """JSON before text before hex; another form where it is asked for, and possible."""
    shown = show_body(body, "")
    assert (shown.forms, shown.text) == (forms, text)
    assert show_body(body, "hex").form == "hex"
    assert show_body(body, "nonsense") == shown


def test_deep_json_is_laid_out_no_further_than_shown() -> None:
    """Its indentation would make a hundred MiB of it."""
    tracemalloc.start()
    shown = show_body(b"[" * 900 + b"1," * 60_000 + b"1" + b"]" * 900, "")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (shown.form, shown.cut, len(shown.text)) == ("json", True, 65_536)
    assert most < 8 * 1024 * 1024


def test_lags_are_at_most_a_fifth_too_high() -> None:
    """Whatever the lag, and after managers' lags were added up."""
    for lag in (0, 1, 2, 7, 50, 999, 123_456):
        lags = Lags()
        lags.add(lag, 10)
        other = Lags()
        other.add(lag, 5)
        lags.merge(other)
        quantile = lags.quantile(0.5)
        assert quantile is not None
        assert lag <= quantile + 0.1
        assert quantile <= lag * 1.2 + 0.1
    assert Lags().quantile(0.5) is None


def test_charts_from_samples() -> None:
    """Rates are differences; a counter that restarted gives none."""
    samples = [
        Sample(60_000, waiting=5, added=10, read=5),
        Sample(120_000, waiting=8, added=70, read=5),
        Sample(180_000, added=3, read=8),
    ]
    columns = series(samples)
    assert columns["at"] == [60, 120, 180]
    assert columns["ready_s"] == [None, 1.0, None]
    assert columns["read_s"] == [None, 0.0, 0.05]
    assert series([])["at"] == []
    assert spark(samples[:1]) == ""
    assert spark(samples).startswith("0.0,")
    assert [name for name, _, _ in bars([0] * 9)][:2] == ["up to 1 min", "1-10 min"]
    assert [width for _, _, width in bars([1_000_000, 1, *[0] * 7])][:3] == [100.0, 1.0, 0.0]


def test_selections_are_queries_and_back() -> None:
    """So that an operation can be started again with what is stored of it."""
    fields = {"state": "garbage", "header": "a=b&c", "group": "g", "junk": "x", "age": "1h"}
    fields["as_of"] = "2026-01-31T12:00:00.123000+00:00"
    selection = Selection.of("t", fields, sees_bodies=True)
    stored = read_fields(selection.text.encode(), 200)
    assert Selection.of("t", stored, sees_bodies=True) == selection
    for wrong in ({"state": "x"}, {"age": "soon"}, {"reason": "x"}, {"group": "g"}, {"body": "x" * 501}, {"to": "x"}):
        with pytest.raises(InvalidInput):
            Selection.of("t", {"state": "waiting"} | wrong, sees_bodies=True)
    with pytest.raises(InvalidInput, match="as you may not see headers and bodies"):
        Selection.of("t", {"body": "x"}, sees_bodies=False)


def test_links_and_pages_carry_any_name() -> None:
    """Also those of damaged messages, which are not valid UTF-8."""
    assert link("message", id="a/b c&d", topic="") == "message?id=a%2Fb+c%26d"
    assert link("message", id="\udcff") == "message?id=%FF"
    assert encode("a\udcff") == b"a\\udcff"


def test_every_static_file_has_its_licence() -> None:
    """Of the files of others."""
    names = set(Site().names)
    assert {"htmx.LICENSE", "sse.LICENSE", "uplot.LICENSE"} <= names
    assert {"htmx.min.js", "sse.min.js", "uplot.min.js", "uplot.min.css", "dashboard.js", "dashboard.css"} <= names


def test_what_a_browser_loads_is_small() -> None:
    """All scripts and styles, packed as they travel: less than a picture. docs/dashboard.md has the figure."""
    assets = [asset for name, asset in Site().assets.items() if name.endswith((".js", ".css"))]
    assert sum(len(asset.packed) for asset in assets) < 50_000
    assert sum(len(asset.content) for asset in assets) < 125_000
