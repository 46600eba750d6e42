"""One segment in the place of several, across a crash at any point.

    <base>.cleaned        being written; a crash leaves it behind, and recovery removes it
    <base>-<next>.swap    whole and synced: from this rename on the new segment counts
    <base>.log            where it ends up, once the others between ``base`` and ``next`` are gone

The name of the ``.swap`` file says which segments it replaces, so that whoever finds one can finish what was begun;
every step may be repeated. The first of the old segments is replaced by the last rename, so there is always a segment
that begins at ``base``. Index files are removed with the segments they describe, before one of the new segment's may
be taken for theirs.
"""

from collections.abc import Sequence
from contextlib import suppress

from milena.model.errors import DiskFullError
from storage.replica.folder import ReplicaFiles
from storage.segments.segment import LOG_SUFFIX, offset_name, parse_offset_name

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"


def cleaned_path(replica: ReplicaFiles, base_offset: int) -> str:
    """Where the new segment is written."""
    return replica.path(offset_name(base_offset, CLEANED_SUFFIX))


def swap_in(
    replica: ReplicaFiles,
    base_offset: int,
    next_offset: int,
    indexes: Sequence[tuple[str, bytes]],
) -> None:
    """Put the new segment, which is written and synced, in the place of those in [base_offset, next_offset).

    Args:
        replica: the folder.
        base_offset: of the new segment, and of the first that it replaces.
        next_offset: where it ends, and the last that it replaces.
        indexes: path and content of its index files; they are hints, and left out on a full disk.

    Raises:
        DiskFailedError: stop the process.
    """
    replica.files.rename_durably(
        cleaned_path(replica, base_offset), _swap_path(replica, base_offset, next_offset)
    )
    _finish(replica, base_offset, next_offset, indexes)


def _finish(
    replica: ReplicaFiles,
    base_offset: int,
    next_offset: int,
    indexes: Sequence[tuple[str, bytes]] = (),
) -> None:
    files = replica.files
    for replaced in reversed(replica.offsets_of(LOG_SUFFIX)):
        if base_offset < replaced < next_offset:
            replica.remove_segment(replaced)
    replica.remove_index(base_offset)
    # Before the last step: a segment that comes back would overlap with the new one.
    files.sync_directory(replica.directory)
    with suppress(DiskFullError):
        for path, content in indexes:
            files.write_atomically(path, content)
    files.rename_durably(
        _swap_path(replica, base_offset, next_offset),
        replica.path(offset_name(base_offset, LOG_SUFFIX)),
    )


def finish_swaps(replica: ReplicaFiles) -> None:
    """Finish what a crash cut short, and remove what was not whole yet.

    Raises:
        DiskFailedError: stop the process.
    """
    for name in replica.files.list_directory(replica.directory):
        if name.endswith(CLEANED_SUFFIX):
            replica.files.remove(replica.path(name))
        swap = _parse_swap_name(name)
        if swap is not None:
            # After a kill the name may be in memory alone: a power cut must not take it back while the others go.
            replica.files.sync_directory(replica.directory)
            _finish(replica, *swap)


def _swap_path(replica: ReplicaFiles, base_offset: int, next_offset: int) -> str:
    return replica.path(f"{offset_name(base_offset, '')}-{offset_name(next_offset, SWAP_SUFFIX)}")


def _parse_swap_name(name: str) -> tuple[int, int] | None:
    first, _, second = name.partition("-")
    # ``parse_offset_name`` wants a suffix that is there.
    base_offset = parse_offset_name(first + SWAP_SUFFIX, SWAP_SUFFIX)
    next_offset = parse_offset_name(second, SWAP_SUFFIX)
    return None if base_offset is None or next_offset is None else (base_offset, next_offset)
