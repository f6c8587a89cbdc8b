"""What a program imports where not everything is installed, or there."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["lisa_producer", "lisa_consumer", "lisa_manager.daemon"])
def test_only_embedded_servers_need_file_locks(package: str) -> None:
    """Systems without `fcntl` use all other schemes."""
    code = f"import sys; sys.modules['fcntl'] = None; import {package}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
