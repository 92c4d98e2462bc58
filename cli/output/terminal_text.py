r"""Text for a terminal: control characters appear as \u001b, bytes that are not UTF-8 as \xff.

Otherwise a message could clear the screen, set the title, or disguise a line. TAB and line ends are
not escaped. Escaped JSON is still valid JSON. Output to anything but a terminal is never changed.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(rb"[\t\n -~]*")
# C0 without TAB, LF and the CR of a line end; DEL and C1; changes of the text direction.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")


def escape(data: bytes) -> bytes:
    if _PLAIN.fullmatch(data):
        return data
    return escape_text(data.decode("utf-8", "backslashreplace")).encode()


def escape_text(text: str) -> str:
    return _CONTROL.sub(lambda control: f"\\u{ord(control[0]):04x}", text)
