"""Each kind of server that the suite can run on really starts; a missing one is reported."""

from pathlib import Path

import pytest

from support.engines import KINDS, running
from support.plain import plain_client

MARKS = {"testcontainers": pytest.mark.docker}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=MARKS.get(k, ())) for k in KINDS])
def test_engine_runs_scripts_and_streams(kind: str, tmp_path: Path) -> None:
    """The server has what our scripts are made of."""
    script = "redis.call('XADD', KEYS[1], '*', 'id', ARGV[1]) return redis.call('XLEN', KEYS[1])"
    with running(kind, tmp_path) as url, plain_client(url) as client:
        assert client.eval(script, 1, "{engine}:ready", "m1") == 1
