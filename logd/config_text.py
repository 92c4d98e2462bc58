"""Settings as text for people: the list that `logd config` prints, and a TOML file to start from.

The TOML file is made from the settings themselves, so it has all of them and their defaults.
"""

from __future__ import annotations

import textwrap
from typing import Any

from logd.config import Config, Settled, fields, flag

_WIDTH = 96
_HEAD = """\
# Settings of logd. All of them, each with its default; take the # away to change one.
# A flag (--fsync always) or a variable (LOGD_FSYNC=always) wins over this file.
# `logd --config FILE config` prints what is in force, and where each value comes from.
#
# Made from the daemon's own table by `logd config --sample`.
"""
_TAIL = """
# Settings of single topics: all sections that fit a topic's name count, the last one wins.
# These can be set there:
{names}
#
# [topics."audit-*"]
# fsync = "always"
# max-age = "90d"
# delete-hook = ["/usr/bin/cp", "-t", "/backup"]
"""


def sample() -> str:
    parts = [_HEAD]
    for field in fields():
        comment = field.metadata["help"]
        if field.metadata["fixed"]:
            comment += " (a change needs a restart)"
        parts.append("\n" + _commented(comment))
        parts.append(f"# {flag(field.name)} = {_toml(field, field.default)}\n")
    names = ", ".join(flag(field.name) for field in fields() if field.metadata["topic"])
    parts.append(_TAIL.format(names=_commented(names).rstrip()))
    return "".join(parts)


def listing(settled: Settled) -> str:
    """A line per setting, as in a TOML file, with its origin behind it."""
    rows = [
        (f"{name} = {_toml(field, getattr(settled.config, field.name))}", settled.origins[name])
        for field in fields()
        for name in (flag(field.name),)
    ]
    width = max(len(text) for text, origin in rows if len(text) < _WIDTH // 2)
    lines = [f"{text:<{width}}  # {origin}" for text, origin in rows]
    return "\n".join(lines + _sections(settled.config)) + "\n"


def default_text(field: Any) -> str:
    """A setting's default as a person would write it behind a flag; "" where there is none."""
    text = _toml(field, field.default).strip('"')
    return "" if text == "[]" else text


def _sections(config: Config) -> list[str]:
    by_name = {field.name: field for field in fields()}
    lines = []
    for glob, values in config.sections:
        lines += ["", f'[topics."{glob}"]']
        lines += [f"{flag(name)} = {_toml(by_name[name], value)}" for name, value in values.items()]
    return lines


def _toml(field: Any, value: Any) -> str:
    text: str = field.metadata["unit"].toml(value)
    return text


def _commented(text: str) -> str:
    filled = textwrap.fill(
        text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )
    return filled + "\n"
