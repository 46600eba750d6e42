"""Swap: replace several segments with one that compaction has written, safe against a crash at any point.

    <base>.cleaned        the new segment while it is written; recovery removes it after a crash
    <base>-<next>.swap    the new segment, complete and synced; from this rename on, recovery finishes the swap
    <base>.log            the final name, given once the other segments between ``base`` and ``next`` are removed

The name of the ``.swap`` file tells recovery which segments it replaces. Every step may be repeated. The last rename
overwrites the first of the old segments, so there is always a segment that starts at ``base``. The index of that old
segment is removed before the new segment's index is written under the same name.
"""

from contextlib import suppress

from milena.model.errors import DiskFullError
from storage.replica.folder import ReplicaFiles
from storage.segments.segment import LOG_SUFFIX, offset_name, parse_offset_name

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"


def cleaned_path(replica: ReplicaFiles, base_offset: int) -> str:
    """Return the path at which the new segment is written."""
    return replica.path(offset_name(base_offset, CLEANED_SUFFIX))


def swap_in(
    replica: ReplicaFiles,
    base_offset: int,
    next_offset: int,
    index: tuple[str, bytes],
) -> None:
    """Replace the segments in [base_offset, next_offset) with the new one, which is written and synced.

    Args:
        replica: the folder.
        base_offset: where the new segment and the first replaced one start.
        next_offset: where the new segment and the last replaced one end.
        index: path and content of its index file. If the disk is full, it is not written; recovery rebuilds the index.

    Raises:
        DiskFailedError: stop the process.
    """
    replica.files.rename_durably(
        cleaned_path(replica, base_offset), _swap_path(replica, base_offset, next_offset)
    )
    _finish(replica, base_offset, next_offset, index)


def _finish(
    replica: ReplicaFiles,
    base_offset: int,
    next_offset: int,
    index: tuple[str, bytes] | None = None,
) -> None:
    files = replica.files
    for replaced in reversed(replica.offsets_of(LOG_SUFFIX)):
        if base_offset < replaced < next_offset:
            replica.remove_segment(replaced)
    replica.remove_index(base_offset)
    # Sync before the last step. Otherwise a power cut could bring removed segments back beside the new one.
    files.sync_directory(replica.directory)
    if index is not None:
        with suppress(DiskFullError):
            files.write_atomically(*index)
    files.rename_durably(
        _swap_path(replica, base_offset, next_offset),
        replica.path(offset_name(base_offset, LOG_SUFFIX)),
    )


def finish_swaps(replica: ReplicaFiles) -> None:
    """Finish swaps that a crash interrupted, and remove new segments that were not written completely.

    Raises:
        DiskFailedError: stop the process.
    """
    for name in replica.files.list_directory(replica.directory):
        if name.endswith(CLEANED_SUFFIX):
            replica.files.remove(replica.path(name))
        swap = _parse_swap_name(name)
        if swap is not None:
            # After a kill, the ``.swap`` name may be only in the page cache. Sync it before old segments are removed.
            # Otherwise a power cut could undo the rename but keep the removals.
            replica.files.sync_directory(replica.directory)
            _finish(replica, *swap)


def _swap_path(replica: ReplicaFiles, base_offset: int, next_offset: int) -> str:
    return replica.path(f"{offset_name(base_offset, '')}-{offset_name(next_offset, SWAP_SUFFIX)}")


def _parse_swap_name(name: str) -> tuple[int, int] | None:
    first, _, second = name.partition("-")
    # ``parse_offset_name`` expects a suffix.
    base_offset = parse_offset_name(first + SWAP_SUFFIX, SWAP_SUFFIX)
    next_offset = parse_offset_name(second, SWAP_SUFFIX)
    return None if base_offset is None or next_offset is None else (base_offset, next_offset)
