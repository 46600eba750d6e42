"""Writes numbered records at an even pace until it is told to stop: an idempotent producer of the client library.

Prints a line for every acknowledged record, a line for every failed one, and at the end how it went.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from functools import partial

from milena import Client, ClientError, Credentials, Receipt
from tests.helm.podlab.clients.ledger import Stored, encode

DELIVERY_MS = 120_000
PARTITIONS = 6
GAP_S_NOTED = 0.5


@dataclass
class Tally:
    """How the writing goes. The gap is between two acknowledgements of one partition."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    longest_gap_s: float = 0.0
    last_s: dict[int, float] = field(default_factory=dict)

    def note(self, value: str, receipt: Receipt | None, error: ClientError | None) -> None:
        """A record has its outcome."""
        if receipt is None or receipt.offset is None:
            self.failed += 1
            print(f"failed {value}: {error}", flush=True)
            return
        now_s = time.monotonic()
        gap_s = now_s - self.last_s.get(receipt.partition, now_s)
        self.longest_gap_s = max(self.longest_gap_s, gap_s)
        if gap_s > GAP_S_NOTED:
            print(f"gap of {gap_s:.2f} s in partition {receipt.partition} until {now_s:.2f}")
        self.last_s[receipt.partition] = now_s
        self.acknowledged += 1
        print(encode(Stored(receipt.partition, receipt.offset, value)))


def credentials() -> Credentials:
    """Of the user whom the environment names, as ``milena`` reads it."""
    user, password_file = os.environ.get("MILENA_USER"), os.environ.get("MILENA_PASSWORD_FILE")
    return Credentials(user=user, password_file=password_file)


async def write(urls: list[str], topic: str, rate: float, stopping: asyncio.Event) -> Tally:
    """Send until told to stop, then wait for every outcome."""
    tally = Tally()
    async with (
        Client(urls, credentials=credentials()) as client,
        client.producer(acks="all", linger_ms=20, delivery_timeout_ms=DELIVERY_MS) as producer,
    ):
        begun = time.monotonic()
        while not stopping.is_set():
            value = str(tally.sent)
            await producer.send(
                topic,
                value.encode(),
                partition=tally.sent % PARTITIONS,
                on_delivery=partial(tally.note, value),
            )
            tally.sent += 1
            await asyncio.sleep(max(begun + tally.sent / rate - time.monotonic(), 0))
            sys.stdout.flush()
        await producer.flush()
    return tally


async def main() -> None:
    """Read the command line, write, report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True, action="append", help="may be repeated")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=float, default=200.0)
    options = parser.parse_args()
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    tally = await write(options.url, options.topic, options.rate, stopping)
    summary = {
        "sent": tally.sent,
        "acknowledged": tally.acknowledged,
        "failed": tally.failed,
        "longest_gap_s": round(tally.longest_gap_s, 2),
    }
    print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
