"""An archive on a file system: its lock, its manifest, and the steps of a commit.

    archive.lock          held by the run; the kernel releases it with the process
    manifest.json         what is archived; replaced as a whole
    data/topic-T/ID/partition-P/FIRST-LAST.parquet
    staging/RUN-COMMIT/   files of a commit that is not done; no reader looks here

A commit, in this order:

    1. the writer puts Parquet files below ``staging/RUN-COMMIT/``
    2. each file is read back, for its offsets and its checksum, and synced
    3. each file is renamed into ``data/``; both folders are synced
    4. a manifest that lists the files replaces the old manifest        <- only this step makes the records archived
    5. ``staging/RUN-COMMIT/`` is removed

If a run stops before step 4, the old manifest remains, and some files are not listed in it. The next run removes those
files and archives the same offsets again. So no record is duplicated or missing. Files that a manifest lists never
change. Each commit has its own staging folder, because tasks of an earlier commit or of a killed run may continue to
write into theirs for a while.

NB: step 4 needs a rename that is atomic and durable. Step 3 needs a rename that does not copy the file. POSIX file
systems and HDFS have both. Object stores have neither: they need another implementation of ``milena.disk.files``, which
replaces the manifest by a conditional put.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from milena.disk.files import Files, Lock
from milena.model.errors import StartupError
from spark_ext.jobs.archiving.manifest import (
    DATA_FOLDER,
    MANIFEST_NAME,
    ArchivedFile,
    Manifest,
    PartitionArchive,
    PartitionKey,
    decode_manifest,
    encode_manifest,
    file_path,
)
from spark_ext.jobs.archiving.parquet_check import checksum, offset_runs
from spark_ext.jobs.archiving.plan import (
    ArchivePlan,
    ReadRange,
    Runs,
    WrittenFile,
    make_addition,
    unexplained,
)
from spark_ext.jobs.running.errors import ArchiveBusyError, JobInputError

LOCK_NAME = "archive.lock"
STAGING_FOLDER = "staging"
STAGED_TOPIC, STAGED_PARTITION = "archive_topic", "archive_partition"
"""The columns by which Spark partitions the staged files. They are also the names of the files' folders."""

_DATA_FILE = re.compile(r"\d{20}-\d{20}\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A checked file that is not committed yet; ``path`` is relative to the archive."""

    path: str
    written: WrittenFile


class ArchiveWriter:
    """A context manager that holds the lock of an archive, so that only one run at a time changes the archive.

    Entering creates the archive if it does not exist, and removes the files that an interrupted run left. ``leftovers``
    has their names. ``run_id`` must be new for each run. A run may commit more than once.
    """

    def __init__(self, files: Files, root: str, *, run_id: str) -> None:
        self._files = files
        self.root = root
        self._run_id = run_id
        self._lock: Lock | None = None
        self.manifest = Manifest()
        self.leftovers: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        self._files.make_directory(self.root)
        try:
            self._lock = self._files.lock(self._path(LOCK_NAME))
        except StartupError as error:
            raise ArchiveBusyError(
                f"another run is archiving to {self.root}: wait for it, or end it"
            ) from error
        try:
            self.manifest = self._load_or_create()
            self.leftovers = tuple(self._remove_leftovers())
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    @property
    def staging(self) -> str:
        """Return the folder for the files of the next commit; it does not exist yet."""
        return self._path(self._staging)

    @property
    def _staging(self) -> str:
        return f"{STAGING_FOLDER}/{self._run_id}-{self.manifest.commits}"

    def commit(
        self, cluster_id: str, plan: ArchivePlan, empty_in: Callable[[PartitionKey, int, int], Runs]
    ) -> Manifest:
        """Make the staged files part of the archive; return the new manifest.

        ``empty_in`` returns the offsets in [start, end) of a partition that have no record in its log.

        Raises:
            LostRecordsError: the files do not have exactly the planned records.
            DamagedArchiveError: a file cannot be read back.
        """
        staged = {r.key: tuple(self._check_staged(r)) for r in plan.to_read}
        additions = tuple(
            _addition(r, [s.written for s in staged.get(r.key, ())], empty_in)
            for r in plan.ranges
            if r.start < r.end or r.lost or self.manifest.partition(r.key) is None
        )
        if not additions:
            return self.manifest
        manifest = self.manifest.with_additions(cluster_id, additions)
        staging = self.staging
        self._adopt([file for files in staged.values() for file in files])
        self._files.write_atomically(self._path(MANIFEST_NAME), encode_manifest(manifest))
        self.manifest = manifest
        self._files.remove_tree(staging)
        return manifest

    def _check_staged(self, planned: ReadRange) -> Iterator[StagedFile]:
        key = planned.key
        folder = f"{self._staging}/{STAGED_TOPIC}={key.topic}/{STAGED_PARTITION}={key.partition}"
        if not self._files.exists(self._path(folder)):
            return
        for name in self._files.list_directory(self._path(folder)):
            if name.endswith(".parquet") and not name.startswith((".", "_")):
                path = f"{folder}/{name}"
                written = self._check(path, key)
                if written is not None:
                    yield StagedFile(path=path, written=written)

    def _check(self, path: str, key: PartitionKey) -> WrittenFile | None:
        """Read the file back and sync it; return None if it holds no record."""
        file = self._files.open(self._path(path))
        try:
            runs = offset_runs(file, topic=key.topic, partition=key.partition)
            if not runs:
                return None
            file.sync()
            first, last = runs[0][0], runs[-1][1] - 1
            entry = ArchivedFile(
                path=file_path(key, first, last),
                first_offset=first,
                last_offset=last,
                records=sum(end - start for start, end in runs),
                size_bytes=file.size(),
                crc32c=checksum(file),
            )
        finally:
            file.close()
        return WrittenFile(entry=entry, runs=runs)

    def _adopt(self, staged: Sequence[StagedFile]) -> None:
        archived = self.manifest.paths()
        for file in staged:
            target = file.written.entry.path
            assert target not in archived, f"{target} is archived already"
            self._files.make_directory(self._path(posixpath.dirname(target)))
            self._files.rename_durably(self._path(file.path), self._path(target))

    def _load_or_create(self) -> Manifest:
        if self._files.exists(self._path(MANIFEST_NAME)):
            return read_manifest(self._files, self.root)
        strangers = set(self._files.list_directory(self.root)) - {
            LOCK_NAME,
            MANIFEST_NAME + ".tmp",
        }
        if strangers:
            raise JobInputError(
                f"{self.root} is not an archive: it has no {MANIFEST_NAME}, but {min(strangers)}; "
                "name an empty or new directory"
            )
        self._files.write_atomically(self._path(MANIFEST_NAME), encode_manifest(Manifest()))
        return Manifest()

    def _remove_leftovers(self) -> Iterator[str]:
        staged = self._path(STAGING_FOLDER)
        self._files.make_directory(staged)
        for name in self._files.list_directory(staged):
            self._files.remove_tree(posixpath.join(staged, name))
            yield f"{STAGING_FOLDER}/{name}"
        for path in unlisted_files(self._files, self.root, self.manifest):
            self._files.remove(self._path(path))
            yield path

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _path(self, name: str) -> str:
        return posixpath.join(self.root, name)


def _addition(
    planned: ReadRange,
    written: Sequence[WrittenFile],
    empty_in: Callable[[PartitionKey, int, int], Runs],
) -> PartitionArchive:
    gaps = unexplained(planned, written)
    return make_addition(planned, written, () if gaps is None else empty_in(planned.key, *gaps))


def read_manifest(files: Files, root: str) -> Manifest:
    """Return the current manifest. This needs no lock, because the manifest is replaced as a whole.

    Raises:
        JobInputError: there is no manifest, so this is not an archive.
        DamagedArchiveError: the manifest is damaged.
    """
    try:
        raw = files.read_bytes(posixpath.join(root, MANIFEST_NAME))
    except FileNotFoundError:
        raise JobInputError(f"{root} is not an archive: it has no {MANIFEST_NAME}") from None
    return decode_manifest(raw)


def unlisted_files(files: Files, root: str, manifest: Manifest) -> tuple[str, ...]:
    """Return the data files that the manifest does not list, from a run in progress or an interrupted one."""
    return tuple(sorted(set(_data_files(files, root)) - manifest.paths()))


def _data_files(files: Files, root: str) -> Iterator[str]:
    folders = [DATA_FOLDER] if files.exists(posixpath.join(root, DATA_FOLDER)) else []
    for prefix in ("topic-", "", "partition-"):
        folders = [
            f"{folder}/{name}"
            for folder in folders
            for name in files.list_directory(posixpath.join(root, folder))
            if name.startswith(prefix)
        ]
    for folder in folders:
        for name in files.list_directory(posixpath.join(root, folder)):
            if _DATA_FILE.fullmatch(name):
                yield f"{folder}/{name}"
