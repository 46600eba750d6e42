"""Control characters: characters that a terminal does not show but acts on. Find them, and escape them."""

import re

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters (including ESC), line separators, and characters that change the direction of text."""
_CONTROL_IN_TEXT = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def has_control(text: str) -> bool:
    """Whether a text has a control character. Names must not have any."""
    return _CONTROL.search(text) is not None


def escaped(text: str, *, keeps_lines: bool = False) -> str:
    """Return a text with its control characters escaped; ``keeps_lines`` keeps tabs and line ends."""
    pattern = _CONTROL_IN_TEXT if keeps_lines else _CONTROL
    return pattern.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
