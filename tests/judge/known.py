"""Known faults that the judge tolerates: a rule, and a part of the finding's line. The list should be empty."""

KNOWN: tuple[tuple[str, str], ...] = ()
