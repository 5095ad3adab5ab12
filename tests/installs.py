"""Programs that tests need besides Python: whether each is there, and the line that installs it.

Promises: `missing` says the line, so that a skip is one command away from a run.
Relies on: the names of Debian's packages; elsewhere they are a hint.
Does not promise: packages of Python. `make` installs those.
"""

from __future__ import annotations

import shutil

PACKAGES = {
    "go": "golang-go",
    "java": "openjdk-17-jre-headless",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "strace": "strace",
}


def missing(program: str) -> str:
    """That the program is not there, and how it comes; nothing when it is there."""
    if shutil.which(program) is not None:
        return ""
    return f"{program} is not installed: apt-get install {PACKAGES[program]}"
