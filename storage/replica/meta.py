"""Meta file: which partition a replica's folder belongs to, its health, and a change in progress.

The folder is named by the topic's id, so the topic's name is stored here. Health is stored, because recovery may find
no trace of a damage that an earlier start has cut. A change of several steps (a cut across segments, a restart at
another offset) is stored before its first step. If a crash interrupts the change, recovery finishes it.
"""

from enum import StrEnum, unique

from msgspec import Struct
from msgspec.structs import replace

from milena.disk.files import Files
from milena.model.types import ReplicaHealth
from storage.state.sealed import seal, unseal
from storage.state.slots import SlotFile

META_NAME = "meta"

_MAGIC = b"MLRM"
_CONTENT_MAGIC = b"MRM1"


@unique
class ChangeKind(StrEnum):
    """The changes that take several steps; see ``Change``."""

    TRUNCATE = "truncate"
    RESTART = "restart"


class Change(Struct, frozen=True, array_like=True):
    """A change in progress: cut everything at and above ``offset``, or drop everything and restart there."""

    kind: ChangeKind
    offset: int


class ReplicaMeta(Struct, frozen=True, array_like=True, kw_only=True):
    """The content of the meta file. ``change`` is None if no change is in progress."""

    topic_id: str
    topic_name: str
    partition: int
    health: ReplicaHealth = ReplicaHealth.SOUND
    change: Change | None = None

    def encode(self) -> bytes:
        """Return the file's content."""
        return seal(_CONTENT_MAGIC, self)

    @classmethod
    def decode(cls, content: bytes) -> "ReplicaMeta":
        """Decode the content of a meta file.

        Raises:
            CorruptLogError: the content is damaged.
        """
        return unseal(_CONTENT_MAGIC, content, cls)


class MetaFile:
    """The meta file of one replica. It is replaced in place, so it can be written on a full disk."""

    def __init__(self, files: Files, directory: str) -> None:
        """Name the file in ``directory``, the replica's folder; no file is opened."""
        self._slots = SlotFile(files, f"{directory}/{META_NAME}", _MAGIC)

    def load(self) -> ReplicaMeta | None:
        """Read the file; None if it does not exist. Call this before ``store``.

        If one slot of the file is damaged, the content may be one version old. The replica is then suspect. A change in
        progress is dropped, because it may already be finished.

        Raises:
            CorruptLogError: neither slot is valid.
        """
        found = self._slots.load()
        if found is None:
            return None
        meta = ReplicaMeta.decode(found.content)
        if found.is_whole:
            return meta
        return replace(meta, health=worse(meta.health, ReplicaHealth.SUSPECT), change=None)

    def store(self, meta: ReplicaMeta) -> None:
        """Replace the file durably.

        Raises:
            DiskFullError: only for a replica's first meta file.
            DiskFailedError: stop the process.
        """
        self._slots.store(meta.encode())


_HEALTH_ORDER = (ReplicaHealth.SOUND, ReplicaHealth.SUSPECT, ReplicaHealth.DAMAGED)


def worse(one: ReplicaHealth, other: ReplicaHealth) -> ReplicaHealth:
    """Return the worse of two verdicts."""
    return max(one, other, key=_HEALTH_ORDER.index)
