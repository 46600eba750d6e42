"""SCRAM credentials: how they are made from passwords, and how a proof is checked with them. Pure.

A credential is weaker than the usual hash of a password: a person who steals it can try many more passwords per second.
So a user has one only if an operator asked for it. It does not hold the password, and a thief cannot sign in with it.

Source: RFC 5802, section 3 (keys, proof, signature), RFC 7677 (SHA-256), KIP-84 (Kafka).
"""

import hashlib
import hmac

from milena.model.access import ScramMechanism
from raft_meta.machine.access.access import SCRAM_ITERATIONS_MAX
from raft_meta.machine.image import ScramCredential

SALT_BYTES = 16
ITERATIONS = SCRAM_ITERATIONS_MAX
"""Iterations of the credentials that nodes make: as many as Kafka allows, because each makes a stolen one safer."""


def credential_of(
    mechanism: ScramMechanism, password: str, *, salt: bytes, iterations: int = ITERATIONS
) -> ScramCredential:
    """Return the credential of a password. This takes about 10 ms, on purpose.

    The password is used as UTF-8, without SASLprep, as Kafka and its clients do.
    """
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)
    return credential_of_salted(mechanism, salted, salt=salt, iterations=iterations)


def credential_of_salted(
    mechanism: ScramMechanism, salted_password: bytes, *, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential of a password that the client has salted. Who knows ``salted_password`` can sign in."""
    client_key = _hmac(mechanism, salted_password, b"Client Key")
    return ScramCredential(
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        stored_key=hashlib.new(mechanism.hash_name, client_key).digest(),
        server_key=_hmac(mechanism, salted_password, b"Server Key"),
    )


def proof_fits(credential: ScramCredential, auth_message: bytes, proof: bytes) -> bool:
    """Return whether a proof was made with the password. The time does not depend on the bytes of the proof."""
    mechanism = ScramMechanism(credential.mechanism)
    signature = _hmac(mechanism, credential.stored_key, auth_message)
    client_key = bytes(one ^ other for one, other in zip(signature, proof, strict=True))
    found = hashlib.new(mechanism.hash_name, client_key).digest()
    return hmac.compare_digest(found, credential.stored_key)


def server_signature(credential: ScramCredential, auth_message: bytes) -> bytes:
    """Return the signature that shows the client that the server has the credential."""
    return _hmac(ScramMechanism(credential.mechanism), credential.server_key, auth_message)


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)
