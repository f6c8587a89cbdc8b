"""What a program imports where not everything is installed, or there."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["lisa_producer.client", "lisa_consumer.worker.worker", "lisa_manager.daemon"])
def test_only_embedded_servers_need_file_locks(module: str) -> None:
    """Systems without `fcntl` use all other schemes."""
    code = f"import sys; sys.modules['fcntl'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
