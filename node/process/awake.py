"""Keeps processors awake while clients write, if the operator asks for it (``cpu_awake_ms``).

A processor without work is halted. If a hypervisor has to wake it, this takes tens of microseconds. A write with
acks=all waits for five such wakes, one after the other. Together they can take longer than the work of the write.

Linux has a limit on the time that a processor may take to wake (PM QoS). While a process holds ``/dev/cpu_dma_latency``
open with the value 0, no processor of the machine is halted. Idle processors then wait in a loop. This uses power, and
takes processor time from other users of the machine. So the limit is held only from a write until some time after the
last write.
"""

import asyncio
import logging
import os
import struct

from milena.model.errors import StartupError

logger = logging.getLogger(__name__)

DEVICE = "/dev/cpu_dma_latency"

_AWAKE = struct.pack("=i", 0)
"""The limit of 0 microseconds."""
_NO_BOUND = struct.pack("=i", -1)


class Awake:
    """Holds the limit from a write until there was no write for ``hold_ms`` to twice that. Runs on the data loop."""

    def __init__(
        self, hold_ms: int, *, loop: asyncio.AbstractEventLoop, device: str = DEVICE
    ) -> None:
        """Open the device, without a limit.

        Raises:
            StartupError: the device is missing, or this process may not open it.
        """
        self._hold_s = hold_ms / 1000
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._is_wanted = False
        try:
            self._descriptor = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StartupError(
                f"cpu_awake_ms={hold_ms}: {device} cannot be opened ({error.strerror}); "
                "give the node that device (as a rule it takes root), or leave cpu_awake_ms at 0"
            ) from error
        self._set(_NO_BOUND)

    def on_write(self) -> None:
        """Note that a client writes, and hold the limit, because other nodes may soon wait for this one."""
        self._is_wanted = True
        if self._timer is None:
            self._set(_AWAKE)
            self._timer = self._loop.call_later(self._hold_s, self._look)

    def _look(self) -> None:
        if self._is_wanted:
            self._is_wanted = False
            self._timer = self._loop.call_later(self._hold_s, self._look)
        else:
            self._timer = None
            self._set(_NO_BOUND)

    def _set(self, bound: bytes) -> None:
        # The device has no position: each write replaces the limit. If this fails, the client's write must not fail.
        try:
            os.write(self._descriptor, bound)
        except OSError as error:
            logger.warning("processors are not kept awake: %s", error)

    def close(self) -> None:
        """Close the device. This ends the limit, so processors may be halted again."""
        if self._timer is not None:
            self._timer.cancel()
        os.close(self._descriptor)
