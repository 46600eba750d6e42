"""What a power cut may leave of a file system: the states that a disk can be in, given what was not synced.

What is allowed, after the lists of ALICE (Pillai et al., OSDI '14) and what ext4 and xfs are known to do:

    names       any prefix of the unsynced creates, renames and removals, as one journal keeps them; also one of them
                alone, or all but one: no order is promised between folders. A rename may have made the new name and
                not yet taken the old one away
    contents    each file by itself: any prefix of its unsynced writes, all but one of them (reordered), none
    torn        a write of which some 512-byte sectors are there: its head, its tail, all but one
    size first  the file has its new size, and zeros where the bytes should be (delayed allocation, unwritten extents),
                or what the disk held there before (data=writeback)

Which of these come together is a product too large to list: every one of them is tried with everything else kept and
with everything else lost, and then some mixtures at random.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from random import Random
from typing import NamedTuple

from tests.support.disk.memory_files import (
    SECTOR_BYTES,
    FileChange,
    FilePhoto,
    MemoryFiles,
    Photograph,
)

SECTORS_TRIED_MAX = 6
"""Of a torn write longer than this some sectors are chosen at random."""

_FOLDER = b"\0folder"


class Outcome(NamedTuple):
    """One state after a power cut: what is on the disk, and in words how it came to be."""

    label: str
    contents: tuple[tuple[str, bytes | None], ...]
    """Name and bytes of each file, None for a folder; sorted."""

    @property
    def digest(self) -> bytes:
        """The same for equal disks."""
        state = blake2b(digest_size=16)
        for name, found in self.contents:
            content = _FOLDER if found is None else found
            state.update(b"%d %d " % (len(name), len(content)))
            state.update(name.encode())
            state.update(content)
        return state.digest()

    def photograph(self) -> Photograph:
        """The file system that boots from it: everything there is durable."""
        return Photograph(
            tuple(
                None if content is None else FilePhoto(content, ()) for _, content in self.contents
            ),
            {name: number for number, (name, _) in enumerate(self.contents)},
            (),
        )

    def files(self) -> MemoryFiles:
        """The same, to be used."""
        return MemoryFiles.developed(self.photograph())


Names = dict[str, int]
Choice = tuple[str, bytes]


def outcomes(photograph: Photograph, rng: Random, *, mixtures: int) -> Iterator[Outcome]:
    """States that a power cut may leave; equal ones may come twice.

    Args:
        photograph: of the moment.
        rng: chooses sectors and mixtures.
        mixtures: how many of names and contents chosen independently.
    """
    namings = list(_namings(photograph))
    choices = [_contents(photo, rng) for photo in photograph.inodes]
    none = [options[0] for options in choices]
    everything = [options[-1] for options in choices]
    for words, names in namings:
        yield _outcome(photograph, f"names {words}, no bytes", names, none)
        yield _outcome(photograph, f"names {words}, all bytes", names, everything)
    for number, options in enumerate(choices):
        for words, content in options[1:-1]:
            for base_words, base in (("no", none), ("all", everything)):
                chosen = [*base[:number], (words, content), *base[number + 1 :]]
                for naming, names in (namings[0], namings[-1]):
                    label = f"names {naming}, file {number}: {words}, {base_words} other bytes"
                    yield _outcome(photograph, label, names, chosen)
    for number in range(mixtures if _is_open(photograph) else 0):
        naming, names = rng.choice(namings)
        chosen = [rng.choice(options) for options in choices]
        yield _outcome(photograph, f"mixture {number} of names {naming}", names, chosen)


def _is_open(photograph: Photograph) -> bool:
    """Whether more than nothing and everything can happen."""
    dirty = sum(photo is not None and bool(photo.changes) for photo in photograph.inodes)
    return dirty + len(photograph.pending) > 1


def _outcome(photograph: Photograph, label: str, names: Names, chosen: Sequence[Choice]) -> Outcome:
    contents = {
        name: None if photograph.inodes[number] is None else chosen[number][1]
        for name, number in names.items()
    }
    # A name in a folder that is not there cannot be reached.
    reached = {
        name: content
        for name, content in contents.items()
        if all(above in contents for above in _folders_of(name))
    }
    return Outcome(label, tuple(sorted(reached.items())))


def _folders_of(name: str) -> Iterator[str]:
    """The folders above a name, the root left out."""
    while (name := name.rpartition("/")[0]) not in ("", "."):
        yield name


# Names.


def _namings(photograph: Photograph) -> Iterator[tuple[str, Names]]:
    """None of the pending changes first, all of them last."""
    pending = photograph.pending
    count = len(pending)
    yield "none", _named(photograph, [])
    for number in range(1, count):
        yield f"first {number}", _named(photograph, pending[:number])
    for number, change in enumerate(pending):
        half = tuple((name, inode) for name, inode in change if inode is not None)
        if 0 < len(half) < len(change):
            yield f"half of {number}", _named(photograph, [*pending[:number], half])
    if count > 1:
        for number in range(count):
            rest = [*pending[:number], *pending[number + 1 :]]
            yield f"but {number}", _named(photograph, rest)
            yield f"only {number}", _named(photograph, [pending[number]])
    if count:
        yield "all", _named(photograph, pending)


def _named(photograph: Photograph, changes: Sequence[tuple[tuple[str, int | None], ...]]) -> Names:
    names = dict(photograph.names)
    for change in changes:
        for name, number in change:
            if number is not None:
                names[name] = number
            else:
                gone = names.pop(name, None)
                if gone is not None and photograph.inodes[gone] is None:
                    below = [other for other in names if other.startswith(name + "/")]
                    for other in below:
                        del names[other]
    return names


# Contents.


def _contents(photo: FilePhoto | None, rng: Random) -> list[Choice]:
    """What the file may hold: nothing unsynced first, everything last."""
    if photo is None:
        return [("", b"")]
    durable, changes = photo
    if not changes:
        return [("", durable)]
    choices = [("none", durable)]
    choices += [
        (f"first {number}", _applied(durable, changes[:number]))
        for number in range(1, len(changes))
    ]
    if len(changes) > 1:
        choices += [
            (f"but {number}", _applied(durable, [*changes[:number], *changes[number + 1 :]]))
            for number in range(len(changes))
        ]
    choices += _torn(durable, changes, rng)
    choices += _sized(durable, changes, rng)
    choices.append(("all", _applied(durable, changes)))
    return choices


def _applied(durable: bytes, changes: Sequence[FileChange]) -> bytes:
    content = bytearray(durable)
    for change in changes:
        change.apply(content)
    return bytes(content)


def _sized(durable: bytes, changes: Sequence[FileChange], rng: Random) -> Iterator[Choice]:
    """The new size, with something else where unsynced bytes were to come behind the old one."""
    size = changes[-1].size
    growth = size - len(durable)
    yield "size first", durable[:size].ljust(size, b"\0")
    if growth > 0:
        yield "size first, over old bytes", durable + rng.randbytes(growth)


def _torn(durable: bytes, changes: Sequence[FileChange], rng: Random) -> Iterator[Choice]:
    """The last write in pieces; those before it are there."""
    last = changes[-1]
    if last.content is None:
        return
    first = last.start // SECTOR_BYTES
    count = -(-last.end // SECTOR_BYTES) - first
    if count < 2:
        return
    before = _applied(durable, changes[:-1])
    after = _applied(durable, changes)
    cuts = list(range(1, count))
    if len(cuts) > SECTORS_TRIED_MAX:
        cuts = sorted({1, count - 1, *rng.sample(cuts, SECTORS_TRIED_MAX - 2)})
    for cut in cuts:
        edge = (first + cut) * SECTOR_BYTES
        yield f"torn, head of {cut} sectors", after[:edge] + before[edge:]
        sized = before.ljust(len(after), b"\0")
        yield f"torn, sized head of {cut} sectors", after[:edge] + sized[edge:]
        yield f"torn, tail behind {cut} sectors", sized[:edge] + after[edge:]
        hole = edge - SECTOR_BYTES
        yield f"torn, hole at sector {cut - 1}", after[:hole] + sized[hole:edge] + after[edge:]
