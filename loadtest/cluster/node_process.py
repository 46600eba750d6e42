"""An operating-system process that is started, killed, paused and restarted with the same command.

Signals go only to the process id that this object started. On Linux the process ends with its parent, so a killed test
leaves no node running.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
STOP_TIMEOUT_S = 20.0
"""The time for a graceful stop, in s. The node hands leadership over and syncs; normally that takes far less."""

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends (Linux only)."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class NodeProcess:
    """A command with its environment and log file; at most one process of it runs at a time."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log_path: Path
    ) -> None:
        self.command = tuple(command)
        self.log_path = log_path
        self.is_paused = False
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Return whether the process exists; it may be paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the last process; None while it runs, or before there was one."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int | None:
        """Return the process id of the last process."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process, if it does not run."""
        if self.is_running:
            return
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                # Start a new session: Ctrl-C reaches only the parent, which then stops nodes in its own order.
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one prctl call, no lock is taken
            )
        self.is_paused = False

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self.is_paused = False

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Stop gracefully, and kill the process after the timeout; return whether it ended by itself."""
        self._signal(signal.SIGTERM)
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def interrupt(self) -> None:
        """Send SIGINT, like Ctrl-C."""
        self._signal(signal.SIGINT)

    def kill_all(self) -> None:
        """Kill -9 the process and the children that it started, and wait until it is gone."""
        if self._process is not None:
            # The process is the leader of a session and of a process group. The group may outlive it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self.is_paused = False

    def pause(self) -> None:
        """Pause the process with SIGSTOP."""
        self._signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Resume the process with SIGCONT."""
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def log_tail(self, size: int = 2000) -> str:
        """Return the end of the log, for messages about a node that does not start."""
        with contextlib.suppress(FileNotFoundError), self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - size))
            return log.read().decode(errors="replace")
        return ""

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
