"""Known faults that the judge tolerates: a rule, and a part of the finding's line. Empty is the goal."""

KNOWN: tuple[tuple[str, str], ...] = (
    # v2 and v3 write decimals in another form, and v3 writes numbers beyond 64 bits as floats.
    ("J-value", "by v2-json"),
    ("J-value", "by v3-"),
    # v3 ignores `Idempotency-Key`.
    ("J-once", "v3-"),
    ("J-phantom", "by v3-"),
    # `*; q=.2` in `Accept`, as Java sends it.
    ("J-accept", "q=.2"),
    # An `Idempotency-Key` is shared by all users.
    ("J-access", "under a key of another user"),
    # A body under v3 that is compressed and comes in parts.
    ("J-status", "/v3/clusters/"),
    ("J-contained", 'entry="api"'),
)
