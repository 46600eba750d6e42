"""Idempotency keys: each principal's are its own, and what is known of one when a request under it fails."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from http_api.access import on_behalf
from milena.model.errors import (
    DiskFullError,
    FateUnknownError,
    NotEnoughReplicasError,
    NotLeaderError,
    UnavailableError,
)
from milena.model.requests import IdempotencyKey
from raft_meta.machine.image import Topic


def own_key(key: IdempotencyKey | None, topic: Topic) -> IdempotencyKey | None:
    """A request's key as the topic knows it: its principal's own, where the topic tells principals apart.

    Where no caller is asked for credentials it is the same for all.
    """
    principal = on_behalf.principal.get()
    if key is None or not principal or not topic.has_own_keys:
        return key
    own = hashlib.blake2b(principal.encode(), digest_size=16, key=key.key_hash).digest()
    return replace(key, key_hash=own)


@contextmanager
def under_key(key: IdempotencyKey | None) -> Iterator[None]:
    """Make of "nothing was written" what is known under the key of a request, which may be a repeat.

    A try that reached no leader wrote nothing. An earlier try under the key may have, and only a leader could tell. A
    leader that refuses for want of replicas or space has looked: its log holds nothing under the key.

    Raises:
        FateUnknownError: in place of an error that says no more than that this try wrote nothing.
    """
    try:
        yield
    except (NotEnoughReplicasError, DiskFullError):
        raise
    except (UnavailableError, NotLeaderError) as error:
        if key is None:
            raise
        reason = error.message.removesuffix(", try again").removesuffix("; nothing was written")
        raise FateUnknownError(
            f"{reason}; this try wrote nothing, but an earlier one under its idempotency key may have; send it again"
        ) from error
