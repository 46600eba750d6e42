"""Every decoder that takes bytes from outside, as a target: feed it anything, and see whether it keeps its word.

A decoder's word is always the same: a correct value, or one of its typed errors. Anything else (another exception, a
hang, memory without bound) is a finding. ``tests.fuzz.test_decoders`` mutates sound inputs with Hypothesis,
``tests.fuzz.coverage`` lets atheris look for new paths. What was interesting is kept in ``corpus/<target>.txt``: an
input a line, in hex; a line that begins with ``#`` says why the next one is there.

A target that accepts an input goes on to use the value, as the node would.
"""

from collections.abc import Iterable
from pathlib import Path

from tests.fuzz.targets.access import ACCESS
from tests.fuzz.targets.batches import BATCHES
from tests.fuzz.targets.files import FILES
from tests.fuzz.targets.groups import GROUPS
from tests.fuzz.targets.http import HTTP
from tests.fuzz.targets.kafka import KAFKA
from tests.fuzz.targets.metadata import METADATA
from tests.fuzz.targets.peers import PEERS
from tests.fuzz.targets.raft_directory import RAFT_DIRECTORY
from tests.fuzz.targets.target import Target

CORPUS = Path(__file__).parents[1] / "corpus"

TARGETS: tuple[Target, ...] = (
    *BATCHES,
    *FILES,
    *RAFT_DIRECTORY,
    *PEERS,
    *METADATA,
    *HTTP,
    *KAFKA,
    *GROUPS,
    *ACCESS,
)


def target_of(name: str) -> Target:
    """The target of this name."""
    return next(target for target in TARGETS if target.name == name)


def run(target: Target, data: bytes) -> bool:
    """Feed it; True when it was taken. A finding raises what no decoder may."""
    try:
        target.decode(data)
    except target.errors:
        return False
    return True


def all_seeds() -> Iterable[tuple[Target, bytes]]:
    """Every sound input of every target."""
    return ((target, seed) for target in TARGETS for seed in target.seeds())


def corpus_of(name: str) -> list[bytes]:
    """The inputs that are kept for a target."""
    path = CORPUS / f"{name}.txt"
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return [bytes.fromhex(line) for line in lines if not line.startswith("#")]
