"""A node's data directory: which node owns it, which replicas it holds, and room reserved for a full disk.

    <root>/lock                                held while a process uses the directory
    <root>/identity                            format, directory id, node id, cluster id, broker epoch, clean stop
    <root>/replicas                            the manifest: every replica that was created here
    <root>/reserve                             preallocated room, released when the disk is full
    <root>/topics/<topic-id>/<partition>/      a partition log

The identity is replaced in place (``storage.state.slots``) and needs no room. The manifest is replaced by a rename,
because it grows. A replica is listed after its files were made, and before it acknowledges its first record. It is
removed from the list before its files are removed. So a listed replica without files has lost them: it is *damaged*,
and never taken for a new one. Files that are not listed are leftovers of a crash (``unlisted_replicas``).

The node refuses to start with a directory of another node or cluster, of another format version, or with a failing
checksum. The error names the file and the two values that differ.

Manifest: ``storage.state.sealed`` with magic "MRM1" over [[topic_id, partition], ...], sorted.
"""

import errno
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, NamedTuple

import msgspec

from milena.disk.files import Files, Lock
from milena.model.errors import CorruptLogError, DiskFailedError, DiskFullError, StartupError
from storage.state.sealed import seal, unseal
from storage.state.slots import SlotFile

FORMAT_VERSION = 1

RESERVE_BYTES = 16 << 20
"""Enough to write a manifest, producer snapshots and indexes while an operator makes room."""

ReplicaKey = tuple[str, int]
"""Topic id and partition number."""

NO_BROKER_EPOCH = -1

_NOT_USABLE = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS, errno.ENOENT})
"""Errors that mean that the path cannot hold data; a failed disk does not report them."""

_IDENTITY_MAGIC = b"MLID"
_MANIFEST_MAGIC = b"MRM1"

_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MANIFEST = list[
    tuple[
        Annotated[str, msgspec.Meta(pattern=f"^{_TOPIC_ID.pattern}$")],
        Annotated[int, msgspec.Meta(ge=0)],
    ]
]


class _Identity(NamedTuple):
    """The content of the file of this name."""

    format_version: int
    directory_id: str = ""
    node_id: int = -1
    cluster_id: str | None = None
    broker_epoch: int = NO_BROKER_EPOCH
    is_clean: bool = False


@contextmanager
def _refused_where_not_usable(root: str) -> Iterator[None]:
    """Turn an error about the path (``_NOT_USABLE``) into a ``StartupError``, because the disk itself works."""
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
        - a change is durable when its method returns;
        - only the last change of a process sets the clean-stop marker; the next process removes it when it reads it.
    """

    def __init__(self, files: Files, root: str, lock: Lock) -> None:
        """Take a locked directory; call ``open`` instead."""
        self._files = files
        self._root = root
        self._lock = lock
        self._identity_file = SlotFile(files, f"{root}/identity", _IDENTITY_MAGIC)
        self._manifest_path = f"{root}/replicas"
        self._reserve_path = f"{root}/reserve"
        self._replicas: frozenset[ReplicaKey] = frozenset()
        self._identity = _Identity(FORMAT_VERSION)
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
        """Open the directory of this node, or create it.

        Args:
            files: the file system.
            root: path of the directory.
            node_id: must be the directory's node id if the directory exists.
            directory_id: a new unique id, used only for a new directory.
            reserve_bytes: room to reserve; less is reserved if the disk is full.

        Raises:
            StartupError: the directory is unusable, in use, of another node or format, or damaged.
            DiskFullError: the directory is new and the disk is full.
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
        """Path of the directory."""
        return self._root

    @property
    def directory_id(self) -> str:
        """Id chosen when the directory was created. If a node comes back with another id, it has lost its replicas."""
        return self._identity.directory_id

    @property
    def node_id(self) -> int:
        """The node that owns the directory."""
        return self._identity.node_id

    @property
    def cluster_id(self) -> str | None:
        """The cluster of the directory; None until the node has joined one."""
        return self._identity.cluster_id

    @property
    def broker_epoch(self) -> int:
        """The last broker epoch under which the directory was registered; -1 without one."""
        return self._identity.broker_epoch

    def set_cluster_id(self, cluster_id: str) -> None:
        """Bind the directory to this cluster; do nothing if the directory already belongs to it.

        Raises:
            StartupError: the directory belongs to another cluster.
        """
        if self.cluster_id == cluster_id:
            return
        if self.cluster_id is not None:
            raise StartupError(
                f"{self._root}/identity belongs to cluster {self.cluster_id!r}, but this is cluster "
                f"{cluster_id!r}: use another data directory, or the peers of the first cluster"
            )
        self._store_identity(self._identity._replace(cluster_id=cluster_id))

    def set_broker_epoch(self, broker_epoch: int) -> None:
        """Store the broker epoch of a registration. The broker asks to be unfenced only after this has returned."""
        assert broker_epoch >= self.broker_epoch, (broker_epoch, self.broker_epoch)
        if broker_epoch != self.broker_epoch:
            self._store_identity(self._identity._replace(broker_epoch=broker_epoch))

    def mark_clean_stop(self) -> None:
        """Record that every log is synced, checkpointed and closed: the next start may skip the scans."""
        self._store_identity(self._identity._replace(is_clean=True))

    def consume_clean_marker(self) -> bool:
        """Return whether the last process stopped in order; the marker is durably removed when this returns."""
        was_clean = self._identity.is_clean
        if was_clean:
            self._store_identity(self._identity._replace(is_clean=False))
        return was_clean

    # Replicas.

    def replicas(self) -> frozenset[ReplicaKey]:
        """Return the replicas that were created here and not removed since."""
        return self._replicas

    def is_listed(self, topic_id: str, partition: int) -> bool:
        """Whether the manifest lists this replica; a listed replica without files is damaged, not new."""
        return (topic_id, partition) in self._replicas

    def add_replicas(self, replicas: Collection[ReplicaKey]) -> None:
        """Add replicas to the manifest in one write. Create their files first; acknowledge no record before it returns.

        Raises:
            DiskFullError: no replica was added.
        """
        for topic_id, partition in replicas:
            _check_replica(topic_id, partition)
        wanted = self._replicas.union(replicas)
        if wanted != self._replicas:
            self._files.write_atomically(self._manifest_path, _encode_manifest(wanted))
            self._replicas = wanted

    def remove_replicas(self, replicas: Collection[ReplicaKey]) -> None:
        """Remove replicas from the manifest in one write. Remove their files only after this has returned.

        If the disk is full, the write uses the reserve: the removal of the files will free room.
        """
        wanted = self._replicas.difference(replicas)
        if wanted != self._replicas:
            content = _encode_manifest(wanted)
            self.write_with_reserve(
                lambda: self._files.write_atomically(self._manifest_path, content)
            )
            self._replicas = wanted

    def partition_directory(self, topic_id: str, partition: int) -> str:
        """Return the folder of this replica's log."""
        _check_replica(topic_id, partition)
        return f"{self._root}/topics/{topic_id}/{partition}"

    def unlisted_replicas(self) -> list[ReplicaKey]:
        """Return partition folders that the manifest does not list, left by a crash during a creation or removal."""
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
        """Return the free space of the file system, as available to this process."""
        return self._files.free_bytes(self._root)

    def total_bytes(self) -> int:
        """Return the size of the file system, as far as this process may use it."""
        return self._files.total_bytes(self._root)

    def has_room(self, wanted_bytes: int = 0) -> bool:
        """Whether ``wanted_bytes`` fit on the disk besides the whole reserve, even if the reserve was released."""
        missing = max(self._reserve_bytes - self._reserved_bytes(), 0)
        return self._files.free_bytes(self._root) >= wanted_bytes + missing

    def write_with_reserve(self, write: Callable[[], None]) -> None:
        """Call ``write``; if the disk is full, release the reserve and call it again.

        Use it for small writes that must not fail for lack of room: checkpoints, manifests, snapshots.

        Raises:
            DiskFullError: there is no room even without the reserve.
        """
        try:
            write()
        except DiskFullError:
            if not self.release_reserve():
                raise
            write()

    def release_reserve(self) -> bool:
        """Release the reserved room; False if there was none."""
        if not self._reserved_bytes():
            return False
        self._files.remove(self._reserve_path)
        self._files.sync_directory(self._root)
        return True

    def maybe_restore_reserve(self) -> bool:
        """Reserve the room again; False if there is not enough."""
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
        """Create the directory; write the identity last, so that a crash before that leaves an empty directory."""
        self._files.make_directory(f"{self._root}/topics")
        self._files.write_atomically(self._manifest_path, _encode_manifest(frozenset()))
        self._store_identity(_Identity(FORMAT_VERSION, directory_id, node_id))

    def _load(self, node_id: int) -> bool:
        """Read identity and manifest; return False if the directory is new."""
        path = f"{self._root}/identity"
        try:
            found = self._identity_file.load()
        except CorruptLogError as error:
            raise StartupError(f"{error}: {_RESTORE}") from error
        if found is None:
            self._require_nothing()
            return False
        self._identity = _decode_identity(path, found.content)
        if not found.is_whole:
            # The damaged slot may have been the newer one, which no longer had the clean-stop marker.
            self._identity = self._identity._replace(is_clean=False)
        if self.node_id != node_id:
            raise StartupError(
                f"{path} belongs to node {self.node_id}, but this is node {node_id}: "
                "use the data directory of this node, or the node id of this directory"
            )
        # After a kill, the manifest that is read here may be only in the page cache. The sync makes its rename durable.
        self._files.sync_directory(self._root)
        self._replicas = self._load_manifest()
        return True

    def _require_nothing(self) -> None:
        """Raise ``StartupError`` if a directory without identity holds replicas, because its identity was lost."""
        topics = f"{self._root}/topics"
        if self._files.exists(topics) and self._files.list_directory(topics):
            raise StartupError(
                f"{self._root}/identity is missing, but {topics} holds replicas: {_RESTORE}"
            )

    def _store_identity(self, identity: _Identity) -> None:
        self._identity = identity
        self._identity_file.store(msgspec.msgpack.encode(identity))

    def _load_manifest(self) -> frozenset[ReplicaKey]:
        path = self._manifest_path
        try:
            return frozenset(unseal(_MANIFEST_MAGIC, self._files.read_bytes(path), _MANIFEST))
        except FileNotFoundError as error:
            raise StartupError(f"{path} is missing: {_RESTORE}") from error
        except CorruptLogError as error:
            raise StartupError(f"{path}: {error}: {_RESTORE}") from error


_RESTORE = (
    "if other nodes hold these replicas, start with an empty data directory, and they fill it; if not, restore the "
    "directories of all nodes from one backup"
)


def _encode_manifest(replicas: frozenset[ReplicaKey]) -> bytes:
    return seal(_MANIFEST_MAGIC, sorted(replicas))


def _decode_identity(path: str, content: bytes) -> _Identity:
    try:
        version, *_ = msgspec.msgpack.decode(content, type=list[object])
        if version != FORMAT_VERSION:
            raise StartupError(
                f"{path} has format version {version}; this node knows version {FORMAT_VERSION}"
            )
        return msgspec.msgpack.decode(content, type=_Identity)
    except ValueError as error:
        raise StartupError(f"{path} holds no identity: {error}: {_RESTORE}") from error


def _check_replica(topic_id: str, partition: int) -> None:
    # Topic ids become folder names. The controller creates them, so an id of another form is a bug of Milena.
    assert _TOPIC_ID.fullmatch(topic_id), topic_id
    assert partition >= 0, (topic_id, partition)
