"""The states of a voter's directory, and how a lost directory is distinguished from a new one.

A voter whose directory was lost may have voted or acknowledged entries before, and does not know it. If it voted again
in the same term, two leaders could exist. So an empty directory may take part at once only if it is new. To prove
this, the first start of a cluster goes through states. A voter writes each state before it announces the state:

    EMPTY     the directory holds nothing
    FOUNDING  this voter reached every other voter, and each was EMPTY or FOUNDING; it has not taken part yet
    MEMBER    every other voter was FOUNDING or MEMBER, or one was MEMBER; this voter takes part
    LEARNER   this voter was EMPTY and met a MEMBER or LEARNER: the cluster exists, so this directory was lost.
              A LEARNER neither votes nor counts for a majority until it has proved that it caught up. Then it becomes
              MEMBER.

Why this is safe: a FOUNDING voter has never taken part, so it may start with an empty log. A MEMBER exists only after
every voter was FOUNDING. So if a voter is EMPTY while another voter is MEMBER, it was FOUNDING once and has lost its
directory.

At most a minority of voters may be LEARNER at the same time. If the directories of a majority are lost, acknowledged
commands may be lost with them. The cluster then elects no leader.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import crc32c
import msgspec

from milena.disk.files import Files
from milena.model.errors import CorruptLogError, StartupError
from raft_meta.consensus.frames import BootstrapState

RECORD_NAME: Final = "voter"
_FORMAT_VERSION: Final = 1

_ESTABLISHED: Final = frozenset({BootstrapState.MEMBER, BootstrapState.LEARNER})
_NEW: Final = frozenset({BootstrapState.EMPTY, BootstrapState.FOUNDING})
_FOUNDED: Final = frozenset({BootstrapState.FOUNDING, BootstrapState.MEMBER})


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterRecord:
    """The content of the file ``voter``: the directory's node and state. ``voters``: ids of all voters, sorted."""

    node_id: int
    voters: tuple[int, ...]
    state: BootstrapState


def next_state(own: BootstrapState, others: Mapping[int, BootstrapState | None]) -> BootstrapState:
    """Return the state that follows ``own``; ``own`` itself if the voter must wait.

    ``others``: the state of each other voter, None for a voter that was not reached yet.
    """
    states = set(others.values())
    if own is BootstrapState.EMPTY:
        if states & _ESTABLISHED:
            return BootstrapState.LEARNER
        return BootstrapState.FOUNDING if states <= _NEW else own
    if own is BootstrapState.FOUNDING and (BootstrapState.MEMBER in states or states <= _FOUNDED):
        return BootstrapState.MEMBER
    return own


def load_record(files: Files, directory: str) -> VoterRecord | None:
    """Read the voter record of a directory; return None if there is no record.

    Raises:
        CorruptLogError: the file is damaged.
    """
    path = f"{directory}/{RECORD_NAME}"
    try:
        content = files.read_bytes(path)
    except FileNotFoundError:
        return None
    body, crc = content[:-4], content[-4:]
    if crc32c.crc32c(body).to_bytes(4, "big") != crc:
        raise CorruptLogError(f"{path} fails its checksum")
    try:
        version, *_ = msgspec.msgpack.decode(body, type=list[object])
        if version != _FORMAT_VERSION:
            raise CorruptLogError(f"{path} has format version {version}, not {_FORMAT_VERSION}")
        _, node_id, voters, state = msgspec.msgpack.decode(
            body, type=tuple[int, int, tuple[int, ...], BootstrapState]
        )
    except ValueError as error:
        raise CorruptLogError(f"{path} is not a voter record: {error}") from error
    return VoterRecord(node_id=node_id, voters=voters, state=state)


def store_record(files: Files, directory: str, record: VoterRecord) -> None:
    """Write the record durably. If the record is unchanged, write nothing, so that this works on a full disk."""
    if load_record(files, directory) == record:
        return
    body = msgspec.msgpack.encode((_FORMAT_VERSION, record.node_id, record.voters, record.state))
    crc = crc32c.crc32c(body).to_bytes(4, "big")
    files.write_atomically(f"{directory}/{RECORD_NAME}", body + crc)


def check_directory(
    files: Files, directory: str, *, node_id: int, voters: tuple[int, ...]
) -> BootstrapState:
    """Check that a directory may be used by node ``node_id`` with these voters; return its state.

    Raises:
        StartupError: the directory belongs to another node or other voters, or lost its record.
        CorruptLogError: the record is damaged.
    """
    record = load_record(files, directory)
    is_voter = node_id in voters
    if record is None:
        if any(files.exists(f"{directory}/{name}") for name in ("wal", "snapshot")):
            raise StartupError(
                f"{directory} holds a log but no voter record: remove the folder, and this node "
                "rejoins with the others' copy"
            )
        return BootstrapState.EMPTY if is_voter else BootstrapState.NONE
    if record.node_id != node_id:
        raise StartupError(f"{directory} belongs to node {record.node_id}, not to node {node_id}")
    if record.voters != voters:
        raise StartupError(
            f"{directory} was made with voters {list(record.voters)}, but this node was started with "
            f"{list(voters)}: voter ids never change, addresses may"
        )
    # The process that wrote the record may have been killed before it synced the file's name. This node announces the
    # state next, so a later power cut must not remove the record.
    files.sync_directory(directory)
    return record.state
