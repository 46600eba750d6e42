"""Quotas in the image: the limits of users and client ids. Each node measures by itself how much of them is used.

Entities are those of KIP-546: a user, a client id, or both. Each of the two is a name, or the default for all names.
"""

import re
from collections.abc import Iterator

from milena.model.access import PRINCIPAL_NAME
from milena.model.errors import AccessLimitError, InvalidAccessError
from milena.model.quotas import ANONYMOUS_USER, CLIENT_ID, EVERY, QuotaKey
from raft_meta.machine.commands import AlterQuota
from raft_meta.machine.copies import replace
from raft_meta.machine.image import Image, Quota
from raft_meta.machine.outcome import Outcome

LEVEL = 8
"""The feature level from which on quotas exist."""

QUOTAS_MAX = 10_000
AMOUNT_MAX = 1 << 53
"""Largest amount. Larger integers lose digits in JSON readers that use floating point."""

_USER = re.compile(PRINCIPAL_NAME)
_CLIENT_ID = re.compile(CLIENT_ID)


def apply(image: Image, command: AlterQuota) -> Outcome:
    """Change the quota of an entity.

    Raises:
        InvalidAccessError: the quota is invalid.
        AccessLimitError: there are too many quotas already.
    """
    entity = (command.user, command.client_id)
    present = image.quotas.get(entity)
    limits = {} if present is None else dict(present.limits)
    for key, amount in command.changes:
        if amount is None:
            limits.pop(key, None)
        else:
            limits[key] = amount
    quota = Quota(
        user=command.user, client_id=command.client_id, limits=tuple(sorted(limits.items()))
    )
    for problem in problems_of(quota):
        raise InvalidAccessError(problem)
    if quota == present or (present is None and not limits):
        return Outcome(image, len(limits))
    if not limits:
        return Outcome(replace(image, quotas=image.quotas.delete(entity)), 0)
    if present is None and len(image.quotas) >= QUOTAS_MAX:
        raise AccessLimitError(f"There are {QUOTAS_MAX} quotas already; delete some.")
    return Outcome(replace(image, quotas=image.quotas.set(entity, quota)), len(limits))


def without_user(image: Image, name: str) -> Image:
    """Return the image without the quotas of a user."""
    entities = [entity for entity in image.quotas if entity[0] == name]
    if not entities:
        return image
    quotas = image.quotas.mutate()
    for entity in entities:
        del quotas[entity]
    return replace(image, quotas=quotas.finish())


def problems_of(quota: Quota) -> Iterator[str]:
    """Yield a sentence for each reason why this quota is invalid."""
    if not quota.user and not quota.client_id:
        yield f"A quota binds a user, a client id, or both; {EVERY} is each that has none of its own."
    if quota.user not in {"", EVERY, ANONYMOUS_USER} and not _USER.fullmatch(quota.user):
        yield "A user's name has 1..255 letters, digits or . _ @ : / + = -"
    if quota.client_id not in {"", EVERY} and not _CLIENT_ID.fullmatch(quota.client_id):
        yield "A client id has 1..255 letters, digits or . _ @ : / + = -"
    for key, amount in quota.limits:
        if key not in set(QuotaKey):
            yield f"{key!r} is nothing that a quota bounds: {', '.join(QuotaKey)}."
        if not 1 <= amount <= AMOUNT_MAX:
            yield f"{key} is {amount}, and must be in 1..{AMOUNT_MAX}."


def problems(image: Image) -> Iterator[str]:
    """Yield a sentence for each violation of the invariants in this part of an image."""
    if image.quotas and image.feature_level < LEVEL:
        yield "quotas below the feature level that knows them"
    for entity, quota in image.quotas.items():
        keys = [key for key, _ in quota.limits]
        if entity != (quota.user, quota.client_id) or not keys or keys != sorted(set(keys)):
            yield f"the quota of {entity} is another's, or bounds nothing in order"
        yield from problems_of(quota)
