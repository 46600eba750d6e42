"""Idempotency keys: how keys of different principals are kept apart, and what a failed request with a key may say."""

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
    """Return the key under which the topic stores a request.

    If the topic keeps principals apart, the result depends on the principal and on the key that the client sent. If
    requests have no principal, because the cluster asks for no credentials, all callers share their keys.
    """
    principal = on_behalf.principal.get()
    if key is None or not principal or not topic.has_own_keys:
        return key
    own = hashlib.blake2b(principal.encode(), digest_size=16, key=key.key_hash).digest()
    return replace(key, key_hash=own)


@contextmanager
def under_key(key: IdempotencyKey | None) -> Iterator[None]:
    """Replace "nothing was written" by "fate unknown", if the failed request has an idempotency key.

    An attempt that reached no leader wrote nothing. But an earlier attempt with the same key may have written, and only
    a leader could tell. Two errors are not replaced: a leader that refuses for lack of replicas or of space has looked,
    and its log has no records under the key.

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
