"""A node's data directory: whose it is, which replicas it promised to hold, and room set aside for a full disk.

    <root>/lock                                held while a process uses the directory
    <root>/identity                            format, directory id, node id, cluster id, broker epoch, clean stop
    <root>/replicas                            the manifest: every replica that was created here
    <root>/reserve                             preallocated room, given up when the disk is full
    <root>/topics/<topic-id>/<partition>/      a partition log

The identity is replaced in place (``storage.state.slots``) and needs no room. The manifest grows and is replaced by
rename. A replica is listed after its files were made and before its first acknowledgement, and taken off before its
files are removed: a listed replica without files is known to be *damaged* and never mistaken for a new one, and files
that are not listed are leftovers of a crash that nobody counts on (``unlisted_replicas``).

What is not trusted: a directory of another node or cluster, of a later format, or that fails a checksum. The node
refuses to start then and says which file and which two values differ.

Manifest: ``storage.state.sealed`` with magic "MRM1" over [[topic_id, partition], ...], sorted.
"""

import errno
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import msgpack  # type: ignore[import-untyped]  # ships no types

from milena.disk.files import Files, Lock
from milena.model.errors import CorruptLogError, DiskFailedError, DiskFullError, StartupError
from storage.state.sealed import seal, unseal
from storage.state.slots import SlotFile

FORMAT_VERSION = 1

RESERVE_BYTES = 16 << 20
"""Enough for a manifest, producer snapshots and indexes to be written while an operator makes room."""

ReplicaKey = tuple[str, int]
"""Topic id and partition number."""

NO_BROKER_EPOCH = -1

_NOT_USABLE = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS, errno.ENOENT})
"""How the operating system says that a path is not one to keep data at, which no failed disk says."""

_IDENTITY_MAGIC = b"MLID"
_MANIFEST_MAGIC = b"MRM1"

_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@contextmanager
def _refused_where_not_usable(root: str) -> Iterator[None]:
    """Make of an operating system's no to the path a refusal to start: nobody's disk has failed."""
    try:
        yield
    except FileNotFoundError as error:
        raise StartupError(
            f"the data directory {root} cannot be used: {error.strerror or error}"
        ) from error
    except DiskFailedError as error:
        if error.errno in _NOT_USABLE:
            raise StartupError(
                f"the data directory {root} cannot be used: {error.message}"
            ) from error
        raise


class DataDirectory:
    """An open data directory, locked until ``close``. Owned by one thread.

    Invariants:
        - what a method changed is durable when it returns;
        - the clean-stop marker is set only by the last change of a process, and gone once the next has seen it.
    """

    def __init__(self, files: Files, root: str, lock: Lock) -> None:
        """Use ``open``."""
        self._files = files
        self._root = root
        self._lock = lock
        self._identity = SlotFile(files, f"{root}/identity", _IDENTITY_MAGIC)
        self._manifest_path = f"{root}/replicas"
        self._reserve_path = f"{root}/reserve"
        self._replicas: frozenset[ReplicaKey] = frozenset()
        self._directory_id = ""
        self._node_id = -1
        self._cluster_id: str | None = None
        self._broker_epoch = NO_BROKER_EPOCH
        self._is_clean = False
        self._is_new = False
        self._reserve_bytes = 0

    @classmethod
    def open(
        cls,
        files: Files,
        root: str,
        *,
        node_id: int,
        directory_id: str,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> "DataDirectory":
        """Open the directory of this node, or make it.

        Args:
            files: the file system.
            root: its path.
            node_id: must be that of the directory if there is one already.
            directory_id: a fresh unique id, used only when the directory is new.
            reserve_bytes: room to set aside; less is there when the disk is full already.

        Raises:
            StartupError: it cannot be used, is in use, of another node or format, or damaged.
            DiskFullError: it is new and the disk is full.
            DiskFailedError: the disk failed.
        """
        with _refused_where_not_usable(root):
            return cls._open(files, root, node_id, directory_id, reserve_bytes)

    @classmethod
    def _open(
        cls, files: Files, root: str, node_id: int, directory_id: str, reserve_bytes: int
    ) -> "DataDirectory":
        files.make_directory(root)
        lock = files.lock(f"{root}/lock")
        directory = cls(files, root, lock)
        try:
            if not directory._load(node_id):
                directory._create(node_id, directory_id)
            directory._reserve_bytes = reserve_bytes
            directory.maybe_restore_reserve()
        except BaseException:
            lock.release()
            raise
        return directory

    def close(self) -> None:
        """Release the lock; does not mark a clean stop."""
        self._lock.release()

    # Identity.

    @property
    def root(self) -> str:
        """Its path."""
        return self._root

    @property
    def directory_id(self) -> str:
        """Chosen when the directory was made: another id means that its replicas are not those of before."""
        return self._directory_id

    @property
    def node_id(self) -> int:
        """The node that it belongs to."""
        return self._node_id

    @property
    def cluster_id(self) -> str | None:
        """The cluster that it belongs to; None until the node has joined one."""
        return self._cluster_id

    @property
    def broker_epoch(self) -> int:
        """The last broker epoch that this directory was registered under, or -1."""
        return self._broker_epoch

    @property
    def is_new(self) -> bool:
        """Whether this process made it."""
        return self._is_new

    def set_cluster_id(self, cluster_id: str) -> None:
        """Belong to this cluster from now on; nothing to do when it already does.

        Raises:
            StartupError: it belongs to another one.
        """
        if self._cluster_id == cluster_id:
            return
        if self._cluster_id is not None:
            raise StartupError(
                f"{self._root}/identity belongs to cluster {self._cluster_id!r}, but this is cluster "
                f"{cluster_id!r}: use another data directory, or the peers of the first cluster"
            )
        self._cluster_id = cluster_id
        self._store_identity()

    def set_broker_epoch(self, broker_epoch: int) -> None:
        """Remember the epoch of a registration; the broker asks to be unfenced only afterwards."""
        assert broker_epoch >= self._broker_epoch, (broker_epoch, self._broker_epoch)
        if broker_epoch != self._broker_epoch:
            self._broker_epoch = broker_epoch
            self._store_identity()

    def mark_clean_stop(self) -> None:
        """Every log is synced, checkpointed and closed: the next start may skip the scans."""
        self._is_clean = True
        self._store_identity()

    def consume_clean_marker(self) -> bool:
        """Whether the last process stopped in order; the marker is durably gone when this returns."""
        was_clean = self._is_clean
        if was_clean:
            self._is_clean = False
            self._store_identity()
        return was_clean

    # Replicas.

    def replicas(self) -> frozenset[ReplicaKey]:
        """The replicas that were created here and not yet removed."""
        return self._replicas

    def is_listed(self, topic_id: str, partition: int) -> bool:
        """Whether the manifest lists this replica: without files it is damaged then, not new."""
        return (topic_id, partition) in self._replicas

    def add_replicas(self, replicas: Collection[ReplicaKey]) -> None:
        """List replicas whose files were just made, in one write; they acknowledge nothing before this returns.

        Raises:
            DiskFullError: none is listed.
        """
        for topic_id, partition in replicas:
            _check_replica(topic_id, partition)
        wanted = self._replicas.union(replicas)
        if wanted != self._replicas:
            self._files.write_atomically(self._manifest_path, _encode_manifest(wanted))
            self._replicas = wanted

    def remove_replicas(self, replicas: Collection[ReplicaKey]) -> None:
        """Forget replicas in one write; on a full disk out of the reserve, since it makes room.

        Their files may be removed once this returned.
        """
        wanted = self._replicas.difference(replicas)
        if wanted != self._replicas:
            content = _encode_manifest(wanted)
            self.write_with_reserve(
                lambda: self._files.write_atomically(self._manifest_path, content)
            )
            self._replicas = wanted

    def partition_directory(self, topic_id: str, partition: int) -> str:
        """Where the log of this replica lies."""
        _check_replica(topic_id, partition)
        return f"{self._root}/topics/{topic_id}/{partition}"

    def unlisted_replicas(self) -> list[ReplicaKey]:
        """Partition folders that the manifest does not list: made or removed when a process died."""
        topics = f"{self._root}/topics"
        found = [
            (topic_id, int(name))
            for topic_id in self._files.list_directory(topics)
            if _TOPIC_ID.fullmatch(topic_id)
            for name in self._files.list_directory(f"{topics}/{topic_id}")
            if name.isdecimal() and str(int(name)) == name
        ]
        return [replica for replica in found if replica not in self._replicas]

    # Room.

    def free_bytes(self) -> int:
        """Space that is left for this process on the file system of the directory."""
        return self._files.free_bytes(self._root)

    def has_room(self, wanted_bytes: int = 0) -> bool:
        """Whether ``wanted_bytes`` can be written and the reserve still be whole."""
        missing = max(self._reserve_bytes - self._reserved_bytes(), 0)
        return self._files.free_bytes(self._root) >= wanted_bytes + missing

    def write_with_reserve(self, write: Callable[[], None]) -> None:
        """Call ``write``; if the disk is full, give the reserve up and call it once more.

        For small writes that must not fail for want of room: checkpoints, manifests, snapshots.

        Raises:
            DiskFullError: there is no room even so.
        """
        try:
            write()
        except DiskFullError:
            if not self.release_reserve():
                raise
            write()

    def release_reserve(self) -> bool:
        """Give the reserved room back to the file system; False when there was none."""
        if not self._reserved_bytes():
            return False
        self._files.remove(self._reserve_path)
        self._files.sync_directory(self._root)
        return True

    def maybe_restore_reserve(self) -> bool:
        """Set the room aside again; False when there is not enough."""
        if self._reserved_bytes() >= self._reserve_bytes:
            return True
        try:
            file = self._files.open(self._reserve_path, create=True)
        except DiskFullError:
            return False
        try:
            file.allocate(self._reserve_bytes)
            file.sync()
        except DiskFullError:
            return False
        finally:
            file.close()
        self._files.sync_directory(self._root)
        return True

    def _reserved_bytes(self) -> int:
        try:
            file = self._files.open(self._reserve_path)
        except FileNotFoundError:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    # Files.

    def _create(self, node_id: int, directory_id: str) -> None:
        """Make a new one; the identity comes last, so that a crash before it leaves an empty directory."""
        self._files.make_directory(f"{self._root}/topics")
        self._files.write_atomically(self._manifest_path, _encode_manifest(frozenset()))
        self._node_id = node_id
        self._directory_id = directory_id
        self._is_new = True
        self._store_identity()

    def _load(self, node_id: int) -> bool:
        """Read identity and manifest; False when there is nothing to read."""
        path = f"{self._root}/identity"
        try:
            found = self._identity.load()
        except CorruptLogError as error:
            raise StartupError(f"{error}: {_RESTORE}") from error
        if found is None:
            self._require_nothing()
            return False
        self._set_identity(path, found.content)
        # The damaged slot may have been the newer one, and have taken the marker back.
        self._is_clean = self._is_clean and found.is_whole
        if self._node_id != node_id:
            raise StartupError(
                f"{path} belongs to node {self._node_id}, but this is node {node_id}: "
                "use the data directory of this node, or the node id of this directory"
            )
        # After a kill the page cache may show a manifest whose name no disk has yet.
        self._files.sync_directory(self._root)
        self._replicas = self._load_manifest()
        return True

    def _require_nothing(self) -> None:
        """A directory without identity must be one that a crash left before it held anything."""
        topics = f"{self._root}/topics"
        if self._files.exists(topics) and self._files.list_directory(topics):
            raise StartupError(
                f"{self._root}/identity is missing, but {topics} holds replicas: {_RESTORE}"
            )

    def _set_identity(self, path: str, content: bytes) -> None:
        try:
            fields: object = msgpack.unpackb(content)
        except (ValueError, msgpack.UnpackException) as error:
            raise StartupError(f"{path} holds no identity: {error}: {_RESTORE}") from error
        match fields:
            case [version, *_] if version != FORMAT_VERSION:
                raise StartupError(
                    f"{path} has format version {version}; this node knows version {FORMAT_VERSION}"
                )
            case [
                _,
                str(directory_id),
                int(node_id),
                str() | None as cluster_id,
                int(broker_epoch),
                bool(is_clean),
            ]:
                self._directory_id, self._node_id = directory_id, node_id
                self._cluster_id = cluster_id
                self._broker_epoch, self._is_clean = broker_epoch, is_clean
            case _:
                raise StartupError(f"{path} holds no identity: {_RESTORE}")

    def _store_identity(self) -> None:
        fields = (
            FORMAT_VERSION,
            self._directory_id,
            self._node_id,
            self._cluster_id,
            self._broker_epoch,
            self._is_clean,
        )
        self._identity.store(msgpack.packb(fields))

    def _load_manifest(self) -> frozenset[ReplicaKey]:
        path = self._manifest_path
        try:
            return _parse_manifest(unseal(_MANIFEST_MAGIC, self._files.read_bytes(path)))
        except FileNotFoundError as error:
            raise StartupError(f"{path} is missing: {_RESTORE}") from error
        except CorruptLogError as error:
            raise StartupError(f"{path}: {error}: {_RESTORE}") from error


_RESTORE = "restore it, or start with an empty data directory and let the other replicas fill it"


def _encode_manifest(replicas: frozenset[ReplicaKey]) -> bytes:
    return seal(_MANIFEST_MAGIC, sorted(replicas))


def _parse_manifest(listed: object) -> frozenset[ReplicaKey]:
    replicas: set[ReplicaKey] = set()
    for item in listed if isinstance(listed, list) else [None]:
        match item:
            case [str(topic_id), int(partition)] if partition >= 0 and _TOPIC_ID.fullmatch(
                topic_id
            ):
                replicas.add((topic_id, partition))
            case _:
                raise CorruptLogError("it is not a list of replicas")
    return frozenset(replicas)


def _check_replica(topic_id: str, partition: int) -> None:
    # Topic ids become folder names; the cluster chooses them, so another form is a fault of ours.
    assert _TOPIC_ID.fullmatch(topic_id), topic_id
    assert partition >= 0, (topic_id, partition)
