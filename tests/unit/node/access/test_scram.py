"""SCRAM credentials and proofs: the example of RFC 7677, a second implementation, and what does not fit."""

import base64
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.net.sasl.scram import ScramClient

from milena.model.access import ScramMechanism
from node.access.scram import (
    ITERATIONS,
    credential_of,
    credential_of_salted,
    proof_fits,
    server_signature,
)
from raft_meta.machine.access.access import scram_problems

# The example of RFC 7677, section 3: user "user", password "pencil".
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
AUTH_MESSAGE = (
    b"n=user,r=rOprNGfwEbeRWgbNEkqO,"
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
)
PROOF = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
SIGNATURE = base64.b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_the_example_of_rfc_7677() -> None:
    credential = credential_of(ScramMechanism.SHA_256, "pencil", salt=SALT, iterations=4096)
    assert proof_fits(credential, AUTH_MESSAGE, PROOF)
    assert server_signature(credential, AUTH_MESSAGE) == SIGNATURE
    other = credential_of(ScramMechanism.SHA_256, "pencils", salt=SALT, iterations=4096)
    assert not proof_fits(other, AUTH_MESSAGE, PROOF)
    assert not proof_fits(credential, AUTH_MESSAGE + b"x", PROOF)


@pytest.mark.parametrize("place", range(32))
def test_a_proof_with_one_other_bit_does_not_fit(place: int) -> None:
    credential = credential_of(ScramMechanism.SHA_256, "pencil", salt=SALT, iterations=4096)
    proof = bytearray(PROOF)
    proof[place] ^= 1
    assert not proof_fits(credential, AUTH_MESSAGE, bytes(proof))


@given(
    mechanism=st.sampled_from(ScramMechanism),
    password=st.text(min_size=1, max_size=20),
    salt=st.binary(min_size=1, max_size=40),
)
@settings(max_examples=25, deadline=None)
def test_a_second_implementation_agrees(
    mechanism: ScramMechanism, password: str, salt: bytes
) -> None:
    try:
        password.encode()
    except UnicodeEncodeError:
        return
    credential = credential_of(mechanism, password, salt=salt, iterations=4096)
    client = ScramClient("ann", password, mechanism)
    client.first_message()
    nonce = client.nonce.decode()
    encoded = base64.b64encode(salt).decode()
    client.process_server_first_message(f"r={nonce}x,s={encoded},i=4096".encode())
    assert proof_fits(credential, client.auth_message, client.client_proof)
    assert server_signature(credential, client.auth_message) == client.server_signature


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_credential_is_valid_and_holds_neither_password_nor_what_signs_in(
    mechanism: ScramMechanism,
) -> None:
    credential = credential_of(mechanism, "a good password", salt=SALT)
    assert (list(scram_problems(credential)), credential.iterations) == ([], ITERATIONS)
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, b"a good password", SALT, ITERATIONS)
    assert credential == credential_of_salted(mechanism, salted, salt=SALT, iterations=ITERATIONS)
    assert salted not in (credential.stored_key, credential.server_key)
    shown = repr(credential)
    assert "stored_key" not in shown
    assert "server_key" not in shown
