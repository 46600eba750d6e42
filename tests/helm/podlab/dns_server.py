"""The cluster's DNS server: answers from what the store holds at that moment, so a change is seen by the next query."""

import asyncio
import random

from tests.helm.podlab.dns_wire import DnsFormatError, encode_answer, parse_question
from tests.helm.podlab.dns_zone import resolve
from tests.helm.podlab.firewall import DNS_IP
from tests.helm.podlab.store import ObjectStore


class DnsServer(asyncio.DatagramProtocol):
    """Answers one packet with one packet; what is no question is dropped."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._random = random.Random()
        self._transport: asyncio.DatagramTransport | None = None

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        endpoint = loop.create_datagram_endpoint(lambda: self, local_addr=(DNS_IP, 53))
        self._transport, _ = await endpoint

    def close(self) -> None:
        """Stop listening."""
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes, addr: tuple[str | int, int]) -> None:
        try:
            question = parse_question(data)
        except DnsFormatError:
            return
        addresses = resolve(question.name, self._store.all("Service"), self._store.all("Pod"))
        if addresses is not None:
            self._random.shuffle(addresses)
        if self._transport is not None:
            self._transport.sendto(encode_answer(question, addresses), addr)
