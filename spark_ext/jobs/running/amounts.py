"""Format counts in the sentences that jobs print."""


def counted(count: int, thing: str) -> str:
    """Return ``1 file``, ``1,000 files``, ``1 batch``, ``2 batches``."""
    if count == 1:
        return f"1 {thing}"
    return f"{count:,} {thing}{'es' if thing.endswith('ch') else 's'}"
