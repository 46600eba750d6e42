"""Idempotency keys by principal: a key that one principal has used does not stand in the way of another one."""

import hashlib
from dataclasses import replace

from http_api.access import on_behalf
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
