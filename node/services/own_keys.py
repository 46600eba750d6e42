"""Idempotency keys: each principal has its own, and a failed request under one may have an earlier attempt."""

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
    """Return a request's key as the topic knows it: the principal's own, if the topic tells principals apart.

    If the cluster asks for no credentials, all callers share their keys.
    """
    principal = on_behalf.principal.get()
    if key is None or not principal or not topic.has_own_keys:
        return key
    own = hashlib.blake2b(principal.encode(), digest_size=16, key=key.key_hash).digest()
    return replace(key, key_hash=own)


@contextmanager
def under_key(key: IdempotencyKey | None) -> Iterator[None]:
    """Turn "nothing was written" into what is known under the key of a request, which may be a repeat.

    An attempt that reached no leader wrote nothing. An earlier attempt under the key may have, and only a leader could
    tell. A leader that refuses for lack of replicas or space has looked: its log has nothing under the key.

    Raises:
        FateUnknownError: replaces an error that says only that this attempt wrote nothing.
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
