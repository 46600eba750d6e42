"""Known faults that the judge tolerates: a rule, and a part of the finding's line. Empty is the goal."""

KNOWN: tuple[tuple[str, str], ...] = (
    # v3 ignores `Idempotency-Key`.
    ("J-once", "v3-"),
    ("J-phantom", "by v3-"),
    # `*; q=.2` in `Accept`, as Java sends it.
    ("J-accept", "q=.2"),
    # A compressed body under v3 that comes in parts.
    ("J-status", "/v3/clusters/"),
    ("J-contained", 'entry="api"'),
    # A leader that has not heard of a transaction's end takes one more write, which no reader sees.
    ("J-tx-fence", " late |"),
)
