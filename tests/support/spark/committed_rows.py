"""Read a topic's committed records with the client."""

from milena import sync


def values_in(url: str, topic: str, partitions: int = 1) -> list[bytes | None]:
    """Return the values up to the last stable offset, partition by partition, in order."""
    found: list[bytes | None] = []
    with sync.Client(url) as client:
        for partition in range(partitions):
            with client.reader(topic, partition) as reader:
                found += [record.value for record in reader]
    return found


def rows_in(url: str, topic: str, partitions: int = 1) -> list[tuple[int, int]]:
    """Return file and row of the values that ``stream_query`` wrote, in the order of the partitions."""
    rows = []
    for value in values_in(url, topic, partitions):
        assert value is not None, "a row has a value"
        file, row = value.split()[:2]
        rows.append((int(file), int(row)))
    return rows
