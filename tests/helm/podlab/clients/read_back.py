"""Reads every partition of a topic to its end, over plain HTTP: nothing of the client library that wrote it.

Prints a line for every record.
"""

import argparse
import base64
import json
from urllib.request import Request, urlopen

from tests.helm.podlab.clients.ask import authorization
from tests.helm.podlab.clients.ledger import Stored, encode

PAGE_RECORDS = 2000
ANSWER_S = 30
BINARY = "application/vnd.kafka.binary.v2+json"


def get(url: str) -> object:
    """The JSON at a URL."""
    headers = {"Accept": BINARY, **authorization()}
    with urlopen(Request(url, headers=headers), timeout=ANSWER_S) as answer:
        found: object = json.loads(answer.read())
    return found


def read_partition(url: str, topic: str, partition: int) -> list[Stored]:
    """All of its records."""
    place = f"{url}/topics/{topic}/partitions/{partition}"
    offsets = get(f"{place}/offsets")
    assert isinstance(offsets, dict), f"offsets are an object, not {offsets!r}"
    at, end, records = offsets["beginning_offset"], offsets["end_offset"], []
    while at < end:
        page = get(f"{place}/records?offset={at}&count={PAGE_RECORDS}&timeout=1000")
        assert isinstance(page, list), f"records are a list, not {page!r}"
        for record in page:
            value = base64.b64decode(record["value"]).decode()
            records.append(Stored(partition, record["offset"], value))
        at = records[-1].offset + 1 if page else at
    return records


def main() -> None:
    """Read the command line, read, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    options = parser.parse_args()
    for partition in range(options.partitions):
        for record in read_partition(options.url, options.topic, partition):
            print(encode(record))


if __name__ == "__main__":
    main()
