"""Java, which Spark needs."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

__all__ = ["java_17"]


@cache
def java_17() -> bool:
    """Whether there is a Java that Spark runs on."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if not java or not Path(java).exists():
        return False
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', done.stderr)
    return version is not None and int(version[1]) >= 17
