"""Finds the version of Java."""

import os
import re
import shutil
import subprocess
from functools import cache

__all__ = ["JAVA", "java_version"]

JAVA = 17
"""The oldest that Spark 4 runs on."""


@cache
def java_version() -> int:
    """The Java that Spark would start; 0 where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        return 0
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    # Java 8 still calls itself 1.8.
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(version[1]) if version else 0
