"""Known faults that the judge tolerates: a rule, and a part of the finding's line. Empty is the goal."""

KNOWN: tuple[tuple[str, str], ...] = (
    # `*; q=.2` in `Accept`, as Java sends it.
    ("J-accept", "q=.2"),
    # A leader that has not heard of a transaction's end takes one more write, which no reader sees.
    ("J-tx-fence", " late |"),
)
