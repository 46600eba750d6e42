"""Checkpoint: three offsets and a flag that describe a log without reading it, durable and checksummed.

The file lies in the partition's folder. It is replaced in place (``storage.state.slots``), so it can be written on a
full disk.

    offset  size  field of the content
    0       2     version (= 1)
    2       8     recovery_point
    10      8     log_start_offset
    18      8     high_watermark
    26      1     is_clean
"""

from dataclasses import dataclass
from struct import Struct, error

from milena.disk.files import Files
from milena.model.errors import CorruptLogError
from storage.state.slots import SlotFile

CHECKPOINT_NAME = "checkpoint"

_MAGIC = b"MLCP"
_VERSION = 1
_CONTENT = Struct(">Hqqq?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        recovery_point: everything below this offset is durable; recovery reads the log from here on.
        log_start_offset: the first readable offset.
        high_watermark: a lower bound of the high watermark when the checkpoint was written.
        is_clean: the log was closed in order with this checkpoint. After the next start, the file still says so until
            the next checkpoint is written.
        is_whole: False if a slot of the file is damaged. The offsets may then be one checkpoint old, and ``is_clean``
            is False. Not stored.
    """

    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    is_clean: bool = False
    is_whole: bool = True


class CheckpointFile:
    """The checkpoint of one partition; owned by the thread that owns the partition."""

    def __init__(self, files: Files, directory: str) -> None:
        """Name the file in ``directory``, the partition's folder; nothing is opened."""
        self._path = f"{directory}/{CHECKPOINT_NAME}"
        self._slots = SlotFile(files, self._path, _MAGIC)

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint; None if none was ever written. Call this before ``store``.

        Raises:
            CorruptLogError: neither slot is valid, or the version is a later one.
        """
        found = self._slots.load()
        if found is None:
            return None
        try:
            version, recovery_point, log_start_offset, high_watermark, is_clean = _CONTENT.unpack(
                found.content
            )
        except error as cause:
            raise CorruptLogError(f"{self._path} has an unknown layout") from cause
        if version != _VERSION:
            raise CorruptLogError(f"{self._path} has version {version}; this node knows {_VERSION}")
        return Checkpoint(
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            # If a slot is damaged, it may have been the newer one, written after the log was opened again.
            is_clean=is_clean and found.is_whole,
            is_whole=found.is_whole,
        )

    def store(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint durably.

        Raises:
            DiskFullError: only for a partition's first checkpoint.
            DiskFailedError: stop the process.
        """
        self._slots.store(
            _CONTENT.pack(
                _VERSION,
                checkpoint.recovery_point,
                checkpoint.log_start_offset,
                checkpoint.high_watermark,
                checkpoint.is_clean,
            )
        )
