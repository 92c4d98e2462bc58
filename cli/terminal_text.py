r"""Text for a terminal: control characters appear as \u001b, bytes that are not UTF-8 as \xff.

Otherwise a message could clear the screen, set the title, or make a line look like another one. TAB
and line ends stay. What is escaped in JSON is still JSON. Output that does not go to a terminal is
never changed.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(rb"[\t\n -~]*")
# C0 without TAB, LF and the CR of a line end; DEL and C1; what changes the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")


def escape(data: bytes) -> bytes:
    if _PLAIN.fullmatch(data):
        return data
    return escape_text(data.decode("utf-8", "backslashreplace")).encode()


def escape_text(text: str) -> str:
    return _CONTROL.sub(lambda control: f"\\u{ord(control[0]):04x}", text)
