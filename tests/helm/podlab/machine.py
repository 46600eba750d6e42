"""What the pod runner needs of the machine: root, a few Debian packages, and commands that must succeed."""

import os
import subprocess
from collections.abc import Sequence

from prerequisites import PODS, missing_programs

COMMAND_S_MAX = 30.0


class LabError(Exception):
    """Pods cannot be run here; the message says what is missing or what went wrong."""


def check_machine() -> None:
    """Make sure that pods can be run.

    Raises:
        LabError: Not root, or a program is missing.
    """
    missing = missing_programs(*PODS)
    if missing:
        raise LabError(f"pods are run with tools that are missing: {', '.join(missing)}")
    if os.geteuid() != 0:
        raise LabError(
            "pods are run in network and mount namespaces of their own: only root can make those"
        )


def run(command: Sequence[str], *, text: str = "") -> str:
    """Run a command to its end; what it printed.

    Raises:
        LabError: It failed; the message is what it said.
    """
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
    )
    if done.returncode:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
