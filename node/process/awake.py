"""Processors that stay awake while clients write, where the operator asked for it (``cpu_awake_ms``).

A processor without work is halted, and to wake it takes tens of microseconds where that is the hypervisor's business.
One write with acks=all waits for five such wakes, one after the other, which can be more than all the work that it is.
For programs that cannot afford them Linux has a bound on how long a processor may take to wake (PM QoS): as long as
somebody holds ``/dev/cpu_dma_latency`` open with 0 in it, no processor of the machine is halted. They wait in a loop
instead and take power, and the time of whoever shares them: hence only from a write on until some time after the last.
"""

import asyncio
import logging
import os
import struct

from milena.model.errors import StartupError

logger = logging.getLogger(__name__)

DEVICE = "/dev/cpu_dma_latency"

_AWAKE = struct.pack("=i", 0)
"""In microseconds."""
_NO_BOUND = struct.pack("=i", -1)


class Awake:
    """The bound, held from a write until nothing was written for ``hold_ms`` to twice that. Runs on the data loop."""

    def __init__(
        self, hold_ms: int, *, loop: asyncio.AbstractEventLoop, device: str = DEVICE
    ) -> None:
        """Open the device, without a bound.

        Raises:
            StartupError: it is not there, or not for us.
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
        """Somebody writes: others may wait for this node by now."""
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
        # The device has no position: each write replaces the bound. Nobody's write may fail with it.
        try:
            os.write(self._descriptor, bound)
        except OSError as error:
            logger.warning("processors are not kept awake: %s", error)

    def close(self) -> None:
        """Let processors sleep: the bound ends with the descriptor."""
        if self._timer is not None:
            self._timer.cancel()
        os.close(self._descriptor)
