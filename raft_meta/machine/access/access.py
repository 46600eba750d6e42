"""Access control in the image: users, tokens, access control entries and the mode.

The image holds no secrets but the key of SCRAM's decoys. Users have slow, salted hashes of their passwords, and SCRAM
credentials if an operator asked for them; tokens have the hash of a random secret.
The proposer creates salts, hashes and ids, and this module checks them. What a request may do is decided in
``raft_meta.machine.access.authorization``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from immutables import Map

from milena.model import access as words
from milena.model.errors import (
    AccessLimitError,
    InvalidAccessError,
    LastSuperuserError,
    StaleVersionError,
    UserNotFoundError,
)
from milena.model.types import WallMs
from raft_meta.machine import producers
from raft_meta.machine.access import quotas
from raft_meta.machine.commands import (
    AlterAcls,
    AlterQuota,
    CreateToken,
    DeleteTokens,
    DeleteUser,
    InitAccess,
    PutUser,
    SetAccessMode,
)
from raft_meta.machine.copies import replace
from raft_meta.machine.image import Acl, Grant, Image, ScramCredential, Token, User
from raft_meta.machine.outcome import Outcome

LEVEL = 7
"""The feature level from which on access control exists."""

FAMILIES_LEVEL = 11
"""The feature level from which on a token stores its parent (the token that created it), and the number of each user's
tokens is limited."""

SCRAM_LEVEL = 12
"""The feature level from which on users may have SCRAM credentials."""

USERS_MAX = 10_000
TOKENS_MAX = 100_000
TOKENS_PER_USER_MAX = 1_000
"""Largest number of tokens of one user, so that no user can use up all. Each sign-in to the console is a token."""
ACLS_MAX = 100_000
ACLS_PER_REQUEST_MAX = 1_000
GRANTS_PER_TOKEN_MAX = 100
VERIFIERS_MAX = 2
VERIFIER_LENGTH_MAX = 512
NOTE_LENGTH_MAX = 255
SECRET_HASH_BYTES = 32
SCRAM_ITERATIONS_MIN = 4096
SCRAM_ITERATIONS_MAX = 16_384
"""Bounds of the iterations of SCRAM credentials, as in Kafka."""
SCRAM_SALT_BYTES_MAX = 128
DECOY_KEY_BYTES = 32

_USER_NAME = re.compile(words.USER_NAME)
_PRINCIPAL = re.compile(f"({words.USER_PREFIX}|{words.GROUP_PREFIX}){words.PRINCIPAL_NAME}")
_RESOURCE_NAME = re.compile(r"[\x21-\x7e]{1,255}")
_HOST = re.compile(r"[0-9A-Fa-f:.]{2,45}")
_TOKEN_ID = re.compile(r"[0-9a-z]{8,32}")

AccessCommand = (
    InitAccess
    | SetAccessMode
    | PutUser
    | DeleteUser
    | CreateToken
    | DeleteTokens
    | AlterAcls
    | AlterQuota
)


def apply(image: Image, index: int, now_ms: WallMs, command: AccessCommand) -> Outcome:
    """Apply a command about access.

    Raises:
        InvalidAccessError: the command is invalid for every image.
        UserNotFoundError, StaleVersionError, LastSuperuserError: the present image does not allow it.
        AccessLimitError: there are too many users, tokens or entries.
    """
    match command:
        case InitAccess():
            outcome = _init(image, index, command)
        case SetAccessMode():
            outcome = _set_mode(image, command)
        case PutUser():
            outcome = _put_user(image, index, command)
        case DeleteUser():
            outcome = _delete_user(image, command)
        case CreateToken():
            outcome = _create_token(image, now_ms, command)
        case DeleteTokens():
            outcome = _delete_tokens(image, command)
        case AlterQuota():
            # A quota changes no permission, so permissions that nodes have cached for this access version stay valid.
            return quotas.apply(image, command)
        case _:
            outcome = _alter_acls(image, command)
    if outcome.image is image:
        return outcome
    return Outcome(replace(outcome.image, access_version=index), outcome.response)


def _refuse(problems: Iterator[str]) -> None:
    for problem in problems:
        raise InvalidAccessError(problem)


def _init(image: Image, index: int, command: InitAccess) -> Outcome:
    if image.users:
        return Outcome(image, 0)
    _refuse(mode_problems(command.access_mode))
    user = User(
        name=command.name,
        created_index=index,
        version=index,
        verifiers=(command.verifier,),
        is_superuser=True,
    )
    _refuse(user_problems(user))
    return Outcome(
        replace(image, users=image.users.set(user.name, user), access_mode=command.access_mode), 1
    )


def _set_mode(image: Image, command: SetAccessMode) -> Outcome:
    _refuse(mode_problems(command.access_mode))
    if command.access_mode == image.access_mode:
        return Outcome(image)
    if command.access_mode != words.AccessMode.OFF and not _superusers(image):
        raise LastSuperuserError(
            "There is no superuser with a password: no user could administer the cluster. Create one first."
        )
    return Outcome(replace(image, access_mode=command.access_mode))


def _put_user(image: Image, index: int, command: PutUser) -> Outcome:
    present = image.users.get(command.name)
    version = 0 if present is None else present.version
    if command.version != version:
        if present is None:
            raise UserNotFoundError(f"There is no user {command.name}.")
        raise StaleVersionError(
            f"User {command.name} is there already, at version {version}, not {command.version}."
        )
    user = User(
        name=command.name,
        created_index=index if present is None else present.created_index,
        version=index,
        verifiers=command.verifiers,
        is_superuser=command.is_superuser,
        scram=command.scram,
    )
    _refuse(user_problems(user))
    if command.scram:
        image = _with_decoy_key(image, command.decoy_key)
    if command.revokes_tokens:
        image = _without_tokens(image, image.tokens_of.get(command.name, ()))
    if present is None and len(image.users) >= USERS_MAX:
        raise AccessLimitError(f"There are {USERS_MAX} users already; delete some.")
    after = replace(image, users=image.users.set(user.name, user))
    _check_superuser_left(image, after)
    return Outcome(after, index)


def _with_decoy_key(image: Image, key: bytes) -> Image:
    """Return the image with a key for decoys. The first key stays, so that the decoys stay, too."""
    if image.feature_level < SCRAM_LEVEL:
        raise InvalidAccessError(
            f"SCRAM credentials need feature level {SCRAM_LEVEL}, and the cluster is at {image.feature_level}."
        )
    if image.scram_decoy_key:
        return image
    if len(key) != DECOY_KEY_BYTES:
        raise InvalidAccessError(
            f"The first SCRAM credentials need {DECOY_KEY_BYTES} random bytes."
        )
    return replace(image, scram_decoy_key=key)


def _delete_user(image: Image, command: DeleteUser) -> Outcome:
    if command.name not in image.users:
        raise UserNotFoundError(f"There is no user {command.name}.")
    principal = words.USER_PREFIX + command.name
    image = _without_tokens(image, image.tokens_of.get(command.name, ()))
    acls = image.acls.get(principal, ())
    after = replace(
        image,
        users=image.users.delete(command.name),
        acls=image.acls.delete(principal) if acls else image.acls,
        acl_count=image.acl_count - len(acls),
    )
    _check_superuser_left(image, after)
    return Outcome(producers.without_principal(quotas.without_user(after, command.name), principal))


def _superusers(image: Image) -> bool:
    return any(user.is_superuser and user.verifiers for user in image.users.values())


def _check_superuser_left(before: Image, after: Image) -> None:
    if before.access_mode != words.AccessMode.OFF and not _superusers(after):
        raise LastSuperuserError(
            "This is the last superuser with a password: no user could administer the cluster any more."
            " Create another one first."
        )


def _create_token(image: Image, now_ms: WallMs, command: CreateToken) -> Outcome:
    user = image.users.get(command.user)
    if user is None or user.created_index != command.user_index:
        raise UserNotFoundError(f"There is no user {command.user}, or it is another one by now.")
    if command.token_id in image.tokens:
        raise StaleVersionError(f"Token {command.token_id} is there already.")
    if len(image.tokens) >= TOKENS_MAX:
        # All expired tokens are deleted at once, to make room.
        image = _without_tokens(image, expired_tokens(image.tokens.values(), now_ms))
        if len(image.tokens) >= TOKENS_MAX:
            raise AccessLimitError(f"There are {TOKENS_MAX} tokens already; delete some.")
    parent = ""
    if image.feature_level >= FAMILIES_LEVEL:
        parent = command.parent
        _check_parent(image, command)
        image = _with_room(image, now_ms, command.user)
    token = Token(
        token_id=command.token_id,
        user=command.user,
        user_index=command.user_index,
        secret_hash=command.secret_hash,
        note=command.note,
        grants=command.grants,
        created_ms=now_ms,
        expires_ms=command.expires_ms,
        parent=parent,
    )
    _refuse(token_problems(token))
    children = image.token_children
    return Outcome(
        replace(
            image,
            tokens=image.tokens.set(token.token_id, token),
            tokens_of=_with_id(image.tokens_of, token.user, token.token_id),
            token_children=_with_id(children, parent, token.token_id) if parent else children,
        )
    )


def _check_parent(image: Image, command: CreateToken) -> None:
    if not command.parent:
        return
    parent = image.tokens.get(command.parent)
    if parent is None:
        raise InvalidAccessError(f"Token {command.parent}, which asks for another, was deleted.")
    if parent.expires_ms and not 0 < command.expires_ms <= parent.expires_ms:
        raise InvalidAccessError(
            f"Token {command.parent} makes none that lives longer than itself."
        )


def _with_room(image: Image, now_ms: WallMs, user: str) -> Image:
    """Return the image with room for one more token of a user. At the limit, the user's expired tokens are deleted."""
    own = image.tokens_of.get(user, ())
    if len(own) < TOKENS_PER_USER_MAX:
        return image
    image = _without_tokens(image, expired_tokens((image.tokens[one] for one in own), now_ms))
    check_room(image.tokens_of.get(user, ()), user)
    return image


def check_room(own: Sequence[str], user: str) -> None:
    """Refuse another token if the user has as many as allowed. ``own``: ids of the user's tokens.

    Raises:
        AccessLimitError: the message says how to delete some.
    """
    if len(own) >= TOKENS_PER_USER_MAX:
        raise AccessLimitError(
            f"User {user} has {len(own)} tokens, and may have {TOKENS_PER_USER_MAX}. Delete tokens that are not used "
            f"any more: GET /users/{user}/tokens lists them, DELETE /users/{user}/tokens/ID deletes one."
        )


def expired_tokens(tokens: Iterable[Token], now_ms: WallMs) -> list[str]:
    """Return the ids of the expired tokens."""
    return [token.token_id for token in tokens if 0 < token.expires_ms <= now_ms]


def tokens_by_user(tokens: Iterable[Token]) -> Map[str, tuple[str, ...]]:
    """Return the ids of each user's tokens, ascending."""
    return _ids_by(tokens, lambda token: token.user)


def tokens_by_parent(tokens: Iterable[Token]) -> Map[str, tuple[str, ...]]:
    """Return the ids of the tokens that each token created, ascending."""
    return _ids_by((token for token in tokens if token.parent), lambda token: token.parent)


def _ids_by(tokens: Iterable[Token], key: Callable[[Token], str]) -> Map[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for token in tokens:
        found.setdefault(key(token), []).append(token.token_id)
    return Map({name: tuple(sorted(ids)) for name, ids in found.items()})


def _with_id(ids: Map[str, tuple[str, ...]], name: str, token_id: str) -> Map[str, tuple[str, ...]]:
    return ids.set(name, tuple(sorted((*ids.get(name, ()), token_id))))


def _without_tokens(image: Image, token_ids: Iterable[str]) -> Image:
    """Return the image without these tokens, and without the tokens that they created."""
    tokens, children = image.tokens.mutate(), image.token_children.mutate()
    gone: dict[str, set[str]] = {}
    """The ids of the deleted tokens, by user."""
    left = list(token_ids)
    while left:
        token = tokens.pop(left.pop(), None)
        if token is None:
            continue
        gone.setdefault(token.user, set()).add(token.token_id)
        left += children.pop(token.token_id, ())
        siblings = children.get(token.parent, ())
        if siblings:
            others = tuple(one for one in siblings if one != token.token_id)
            if others:
                children[token.parent] = others
            else:
                del children[token.parent]
    if not gone:
        return image
    tokens_of = image.tokens_of.mutate()
    for user, ids in gone.items():
        kept = tuple(one for one in tokens_of[user] if one not in ids)
        if kept:
            tokens_of[user] = kept
        else:
            del tokens_of[user]
    return replace(
        image,
        tokens=tokens.finish(),
        tokens_of=tokens_of.finish(),
        token_children=children.finish(),
    )


def _delete_tokens(image: Image, command: DeleteTokens) -> Outcome:
    after = _without_tokens(image, command.token_ids)
    return Outcome(after, len(image.tokens) - len(after.tokens))


def _alter_acls(image: Image, command: AlterAcls) -> Outcome:
    if len(command.added) + len(command.removed) > ACLS_PER_REQUEST_MAX:
        raise AccessLimitError(f"One request changes at most {ACLS_PER_REQUEST_MAX} entries.")
    for acl in command.added:
        _refuse(acl_problems(acl))
    acls, came, went = image.acls, 0, 0
    for principal in sorted({acl.principal for acl in (*command.added, *command.removed)}):
        before = frozenset(image.acls.get(principal, ()))
        gone = before.intersection(command.removed)
        new = {acl for acl in command.added if acl.principal == principal} - (before - gone)
        after = (before - gone) | new
        came, went = came + len(new), went + len(gone)
        if after:
            acls = acls.set(principal, tuple(sorted(after)))
        elif before:
            acls = acls.delete(principal)
    count = image.acl_count + came - went
    if came and count > ACLS_MAX:
        raise AccessLimitError(f"There would be more than {ACLS_MAX} entries; delete some.")
    if not came and not went:
        return Outcome(image, (0, 0))
    return Outcome(replace(image, acls=acls, acl_count=count), (came, went))


# -- problems --------------------------------------------------------------------------------------


def mode_problems(mode: str) -> Iterator[str]:
    """Yield a sentence for each reason why this mode is invalid."""
    if mode not in set(words.AccessMode):
        yield f"{mode!r} is not a mode: {', '.join(words.AccessMode)}."


def user_problems(user: User) -> Iterator[str]:
    """Yield a sentence for each reason why this user is invalid."""
    if not _USER_NAME.fullmatch(user.name):
        yield "A user's name has 1..255 letters, digits or . _ @ / + = -"
    if words.USER_PREFIX + user.name == words.ANONYMOUS:
        yield f"{user.name} is who comes without credentials, and no user."
    if len(user.verifiers) > VERIFIERS_MAX:
        yield f"A user has at most {VERIFIERS_MAX} passwords."
    if any(not 1 <= len(verifier) <= VERIFIER_LENGTH_MAX for verifier in user.verifiers):
        yield "A password's hash is empty, or too long."
    mechanisms = [credential.mechanism for credential in user.scram]
    if mechanisms != sorted(set(mechanisms)):
        yield "A user has at most one SCRAM credential for each mechanism, in ascending order."
    for credential in user.scram:
        yield from scram_problems(credential)


def scram_problems(credential: ScramCredential) -> Iterator[str]:
    """Yield a sentence for each reason why this SCRAM credential is invalid."""
    if credential.mechanism not in set(words.ScramMechanism):
        yield f"{credential.mechanism!r} is no mechanism of SCRAM: {', '.join(words.ScramMechanism)}."
        return
    if not SCRAM_ITERATIONS_MIN <= credential.iterations <= SCRAM_ITERATIONS_MAX:
        yield (
            f"SCRAM credentials have {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX} iterations, "
            f"not {credential.iterations}."
        )
    if not 1 <= len(credential.salt) <= SCRAM_SALT_BYTES_MAX:
        yield f"A salt has 1 to {SCRAM_SALT_BYTES_MAX} bytes, not {len(credential.salt)}."
    size = words.ScramMechanism(credential.mechanism).key_bytes
    if {len(credential.stored_key), len(credential.server_key)} != {size}:
        yield f"The keys of {credential.mechanism} have {size} bytes each."


def token_problems(token: Token) -> Iterator[str]:
    """Yield a sentence for each reason why this token is invalid."""
    if not _TOKEN_ID.fullmatch(token.token_id) or len(token.secret_hash) != SECRET_HASH_BYTES:
        yield "A token has an id of 8..32 digits and small letters, and a hash of 32 bytes."
    if len(token.note) > NOTE_LENGTH_MAX:
        yield f"A token's note has at most {NOTE_LENGTH_MAX} characters."
    if token.expires_ms < 0:
        yield "A token's end lies before all time."
    if len(token.grants) > GRANTS_PER_TOKEN_MAX:
        yield f"A token has at most {GRANTS_PER_TOKEN_MAX} grants."
    for grant in token.grants:
        yield from grant_problems(grant)


def grant_problems(grant: Grant) -> Iterator[str]:
    """Yield a sentence for each reason why this grant of a token is invalid."""
    if not grant.operations:
        yield "A grant names at least one operation."
    for operation in grant.operations:
        yield from _resource_problems(
            grant.resource_type, grant.pattern_type, grant.name, operation
        )


def acl_problems(acl: Acl) -> Iterator[str]:
    """Yield a sentence for each reason why this access control entry is invalid."""
    if not _PRINCIPAL.fullmatch(acl.principal) and acl.principal != words.ANY_PRINCIPAL:
        yield (
            f"{acl.principal!r} is not a principal: User:NAME, where NAME has 1..255 letters, digits or . _ @ : / + = "
            f"-, or {words.ANY_PRINCIPAL}"
        )
    if acl.host != words.ANY_HOST and not _HOST.fullmatch(acl.host):
        yield f"{acl.host!r} is not a host: an IP address, or {words.ANY_HOST}"
    if acl.permission not in set(words.Permission):
        yield f"{acl.permission!r} is not a permission: {', '.join(words.Permission)}."
    yield from _resource_problems(acl.resource_type, acl.pattern_type, acl.name, acl.operation)


def _resource_problems(kind: str, pattern: str, name: str, operation: str) -> Iterator[str]:
    if kind not in set(words.ResourceType):
        yield f"{kind!r} is not a type of a resource: {', '.join(words.ResourceType)}."
        return
    if pattern not in set(words.PatternType):
        yield f"{pattern!r} is not a type of a pattern: {', '.join(words.PatternType)}."
    if not _RESOURCE_NAME.fullmatch(name):
        yield "A resource's name has 1..255 visible ASCII characters."
    if kind == words.ResourceType.CLUSTER and name != words.CLUSTER_NAME:
        yield f"The only resource of type CLUSTER is {words.CLUSTER_NAME}."
    allowed = words.OPERATIONS_OF[words.ResourceType(kind)]
    if operation not in allowed:
        yield f"{operation!r} is not an operation on a {kind}: {', '.join(sorted(allowed))}."


def problems(image: Image) -> Iterator[str]:
    """Yield a sentence for each violation of the invariants in this part of an image."""
    parts: Sequence[object] = (image.users, image.tokens, image.acls, image.access_version)
    is_used = any(parts) or image.access_mode != words.AccessMode.OFF
    if is_used and image.feature_level < LEVEL:
        yield "access is asked for below the feature level that knows it"
    if not 0 <= image.access_version <= image.index:
        yield "access was changed in the future"
    yield from mode_problems(image.access_mode)
    if image.access_mode != words.AccessMode.OFF and not _superusers(image):
        yield "access is asked for, and no user may administer it"
    yield from _of_users(image)
    yield from _of_tokens(image)
    yield from _of_token_lists(image)
    yield from _of_acls(image)


def _of_users(image: Image) -> Iterator[str]:
    if len(image.scram_decoy_key) not in {0, DECOY_KEY_BYTES}:
        yield "the key of SCRAM's decoys has another length"
    if image.scram_decoy_key and image.feature_level < SCRAM_LEVEL:
        yield "SCRAM below the feature level that knows it"
    for user in image.users.values():
        if user.scram and not image.scram_decoy_key:
            yield f"user {user.name} has SCRAM credentials, and there is no key for decoys"
        if not 0 < user.created_index <= user.version <= image.access_version:
            yield f"user {user.name} comes from the future"
        yield from user_problems(user)


def _of_tokens(image: Image) -> Iterator[str]:
    for token in image.tokens.values():
        owner = image.users.get(token.user)
        if owner is None or owner.created_index != token.user_index:
            yield f"token {token.token_id} belongs to no user"
        if token.parent and (
            image.feature_level < FAMILIES_LEVEL or token.parent not in image.tokens
        ):
            yield f"token {token.token_id} outlives the one that made it, or knows it too early"
        yield from token_problems(token)


def _of_token_lists(image: Image) -> Iterator[str]:
    if image.tokens_of != tokens_by_user(image.tokens.values()):
        yield "tokens and their users do not match"
    if image.token_children != tokens_by_parent(image.tokens.values()):
        yield "tokens and those that made them do not match"


def _of_acls(image: Image) -> Iterator[str]:
    if image.acl_count != sum(len(found) for found in image.acls.values()):
        yield "the count of access control entries is wrong"
    for principal, acls in image.acls.items():
        if not acls or any(acl.principal != principal for acl in acls):
            yield f"entries of {principal} are another's, or none"
        for acl in acls:
            yield from acl_problems(acl)
