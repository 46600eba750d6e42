"""Sign-ins by SCRAM: the challenge of a client, and the check of its proof.

A client that names a user without a credential gets a decoy: a salt and a number of iterations that stay the same for
this name, on every node. Its proof is then checked like any other, so neither the messages nor the time tell whether
the user exists.
"""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from http_api.access.callers import ScramLogin
from http_api.access.hosts import plain_host
from milena.model.access import ScramMechanism
from milena.model.clock import Clock
from milena.model.errors import UnauthenticatedError
from node.access.callers import Callers
from node.access.passwords import WrongPasswords
from node.access.scram import ITERATIONS, SALT_BYTES, proof_fits, server_signature
from node.metadata.store import MetadataStore
from raft_meta.machine.access.access import DECOY_KEY_BYTES
from raft_meta.machine.image import Image, ScramCredential

NONCE_BYTES = 24

Shape = tuple[int, int]
"""Properties of a credential that a client is shown: iterations, and the bytes of the salt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramChallenge:
    """The credential that a client must prove. ``login`` is None if it is a decoy."""

    credential: ScramCredential
    login: ScramLogin | None
    nonce: str
    """The server's part of the nonce."""


@dataclass(eq=False, kw_only=True)
class ScramLogins:
    """Checks the proofs of clients. Owned by the event loop; no method waits."""

    metadata: MetadataStore
    callers: Callers
    wrong: WrongPasswords
    """Wrong passwords of each address. All interfaces and mechanisms count into the same."""
    clock: Clock
    random_bytes: Callable[[int], bytes]

    def __post_init__(self) -> None:
        self._spare_key = self.random_bytes(DECOY_KEY_BYTES)
        """The key of decoys while no user of the cluster has a credential, so that nothing is there to hide."""
        self._shapes: tuple[int, dict[str, list[Shape]]] = (-1, {})
        """Access version, and the shapes of each mechanism's credentials, ascending."""

    def begin(self, user: str, mechanism: ScramMechanism, host: str) -> ScramChallenge:
        """Return what a client at this address has to prove.

        Raises:
            NotReadyError: this node's access data is too old to rely on.
            TooManyRequestsError: the address sent too many wrong passwords.
        """
        self.callers.check_certain()
        self.wrong.check(plain_host(host), self.clock.now_ms())
        image = self.metadata.image
        # The decoy is made in any case, so that both cases take the same time.
        credential, login = self._decoy(image, user, mechanism), None
        found = image.users.get(user)
        if found is not None:
            for present in found.scram:
                if present.mechanism == mechanism:
                    credential = present
                    login = ScramLogin(user, found.created_index, present)
        nonce = self.random_bytes(NONCE_BYTES).hex()
        return ScramChallenge(credential=credential, login=login, nonce=nonce)

    def finish(
        self, challenge: ScramChallenge, auth_message: bytes, proof: bytes, host: str
    ) -> tuple[ScramLogin, bytes]:
        """Return the login of a client that has proved its password, and the server's signature.

        Raises:
            UnauthenticatedError: the proof is wrong. It counts as a wrong password.
            TooManyRequestsError: the address sent too many wrong passwords.
        """
        address, now_ms = plain_host(host), self.clock.now_ms()
        # Checked again here: an address may have many exchanges under way.
        self.wrong.check(address, now_ms)
        is_good = proof_fits(challenge.credential, auth_message, proof)
        signature = server_signature(challenge.credential, auth_message)
        if challenge.login is None or not is_good:
            self.wrong.add(address, now_ms)
            raise UnauthenticatedError("there is no user of this name and password")
        return challenge.login, signature

    def _decoy(self, image: Image, user: str, mechanism: ScramMechanism) -> ScramCredential:
        key = image.scram_decoy_key or self._spare_key
        seed = hmac.digest(key, f"{mechanism}\0{user}".encode(), "sha256")
        stream = hashlib.shake_256(seed)
        shapes = self._shapes_of(image, mechanism)
        iterations, salt_bytes = shapes[int.from_bytes(stream.digest(8)) % len(shapes)]
        drawn = stream.digest(8 + salt_bytes + 2 * mechanism.key_bytes)[8:]
        keys = drawn[salt_bytes:]
        return ScramCredential(
            mechanism=mechanism,
            iterations=iterations,
            salt=drawn[:salt_bytes],
            stored_key=keys[: mechanism.key_bytes],
            server_key=keys[mechanism.key_bytes :],
        )

    def _shapes_of(self, image: Image, mechanism: ScramMechanism) -> list[Shape]:
        """Return the shapes that decoys may have: those of real credentials, so that a shape tells nothing."""
        version, shapes = self._shapes
        if version != image.access_version:
            found: dict[str, set[Shape]] = {}
            for user in image.users.values():
                for one in user.scram:
                    found.setdefault(one.mechanism, set()).add((one.iterations, len(one.salt)))
            shapes = {name: sorted(those) for name, those in found.items()}
            self._shapes = image.access_version, shapes
        return shapes.get(mechanism) or [(ITERATIONS, SALT_BYTES)]
