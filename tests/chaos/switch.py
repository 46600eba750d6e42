"""The switch: it reads IP packets from one TUN interface per namespace, and forwards them by rules.

    python -m tests.chaos.switch TAG NODES SEED

It reads one JSON command per line from standard input, and writes "ok" per command. It creates its namespaces when it
starts, and removes them when its input ends. It needs only root and /dev/net/tun, no bridge and no netem. A fault of
one direction is as easy as a fault of both.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import random
import struct
import subprocess
import sys

from tests.chaos.disks import run
from tests.chaos.network import CLIENT, Rule, address_of

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x1, 0x1000
PACKET_BYTES_MAX = 65536
PACKETS_PER_WAKE = 64
"""The most packets to read from one interface before the other interfaces get their turn."""
MTU_BYTES = "32000"
IPV4 = 4
DESTINATION_LAST_BYTE = 19
"""The byte of an IPv4 header in which the addresses of this network differ."""


class Switch:
    """Forwards packets; it has one descriptor per interface."""

    def __init__(self, tag: str, node_count: int, seed: int) -> None:
        self._tag = tag
        self._places = [*range(1, node_count + 1), CLIENT]
        self._rng = random.Random(seed)
        self._rules: dict[tuple[int, int], Rule] = {}
        self._descriptors: dict[int, int] = {}

    def open(self) -> None:
        """Create the namespaces and interfaces, and start to forward."""
        loop = asyncio.get_running_loop()
        for place in self._places:
            name = f"{self._tag}-{place}"
            run("ip", "netns", "add", name)
            descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            request = struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI)
            fcntl.ioctl(descriptor, TUNSETIFF, request)
            self._descriptors[place] = descriptor
            run("ip", "link", "set", name, "netns", name)
            inside = ("ip", "-n", name)
            run(*inside, "link", "set", "lo", "up")
            run(*inside, "addr", "add", f"{address_of(place)}/24", "dev", name)
            run(*inside, "link", "set", name, "mtu", MTU_BYTES, "txqueuelen", "1000", "up")
            loop.add_reader(descriptor, self._forward_from, place)

    def close(self) -> None:
        """Remove the namespaces."""
        for place in self._places:
            name = f"{self._tag}-{place}"
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)

    def command(self, line: bytes) -> None:
        """Set or remove rules."""
        told = json.loads(line)
        if told.get("heal"):
            self._rules.clear()
        else:
            self._rules[told["source"], told["destination"]] = Rule(**told["rule"])

    def _forward_from(self, source: int) -> None:
        for _ in range(PACKETS_PER_WAKE):
            try:
                packet = os.read(self._descriptors[source], PACKET_BYTES_MAX)
            except OSError:
                return
            if packet[0] >> 4 != IPV4 or packet[DESTINATION_LAST_BYTE] not in self._descriptors:
                continue
            self._forward(source, packet[DESTINATION_LAST_BYTE], packet)

    def _forward(self, source: int, destination: int, packet: bytes) -> None:
        rule = self._rules.get((source, destination))
        if rule is None:
            self._deliver(destination, packet)
            return
        if rule.is_cut or self._rng.random() < rule.loss_share:
            return
        wait_s = (rule.delay_ms + self._rng.random() * rule.jitter_ms) / 1000
        for _ in range(2 if self._rng.random() < rule.double_share else 1):
            asyncio.get_running_loop().call_later(wait_s, self._deliver, destination, packet)

    def _deliver(self, destination: int, packet: bytes) -> None:
        # An interface that is down, or whose queue is full, loses the packet, like a real network.
        with contextlib.suppress(OSError):
            os.write(self._descriptors[destination], packet)


async def serve(switch: Switch) -> None:
    """Carry out commands until the input ends."""
    loop = asyncio.get_running_loop()
    try:
        switch.open()
        print("ready", flush=True)
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            switch.command(line)
            print("ok", flush=True)
    finally:
        switch.close()


if __name__ == "__main__":
    asyncio.run(serve(Switch(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
