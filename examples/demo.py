"""txsink in two minutes, as `make demo` shows it: on Spark where that runs, in plain Python where it does not.

Imports nothing that must be installed, so that it can always say what is missing.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

JAVA_MIN = 17


def missing() -> str:
    """What must be installed before Spark runs here; nothing if it does."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'txsink[spark]'"
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        return f"there is no Java: install Java {JAVA_MIN} or later, or set JAVA_HOME"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return f"{java} does not run ({error}): install Java {JAVA_MIN} or later, or set JAVA_HOME"
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    if found is None or int(found[1]) < JAVA_MIN:
        return f"{java} is Java {found[1] if found else '?'}: install Java {JAVA_MIN} or later, or set JAVA_HOME"
    return ""


def main() -> int:
    reason = missing()
    if reason:
        print(f"Not on Spark: {reason}.\nIn plain Python then.\n", flush=True)
    script = "demo_plain.py" if reason else "demo_spark.py"
    return subprocess.run([sys.executable, Path(__file__).with_name(script)], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
