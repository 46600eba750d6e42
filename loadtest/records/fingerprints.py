"""Fingerprint of a record: eight bytes of a hash of its key and value (pure).

Two different records have the same fingerprint once in 10^19. So a record with an equal fingerprint is taken for the
same record.
"""

from hashlib import blake2b

FINGERPRINT_BYTES = 8


def fingerprint(key: bytes | None, value: bytes) -> bytes:
    """Return the fingerprint of a stored record. The key is framed, so that no value can pass for a key and value."""
    framed = b"-:" + value if key is None else b"%d:%b%b" % (len(key), key, value)
    return blake2b(framed, digest_size=FINGERPRINT_BYTES).digest()
