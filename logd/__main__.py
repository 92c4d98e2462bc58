"""The `logd` command: read the settings, then run the server.

`logd config` prints the settings, `logd token` creates a token.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import inspect
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from logd import __version__, config, config_text
from logd.errors import LogdError
from logd.net import daemon_log
from logd.storage.disk import SyncFailed

_M_ARENA_MAX, _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -8, -1, -3  # of malloc.h


def serve(ctx: typer.Context, version: bool, **flags: Any) -> None:
    """Run the log daemon: store append-only topics on disk, and serve them over TCP and HTTP.

    Every option can also be set with an environment variable (LOGD_<NAME>) or in the TOML file
    given with --config. To try it: log-cli write app hello; log-cli read app
    """
    if version:
        print(f"logd {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is not None:
        ctx.obj = flags
        return

    import uvloop

    from logd.server import Server

    def settle() -> config.Config:
        return _settled(flags).config

    async def run() -> None:
        await Server(settings, settle).run()

    try:
        settings = settle()
    except LogdError as error:
        sys.exit(f"logd: {error.text}")
    _configure_malloc()
    form = daemon_log.set_up(settings.log_format, settings.log_level, os.environ)
    faulthandler.enable()  # if a watchdog kills a hung daemon with SIGABRT, the log has a traceback
    try:
        uvloop.run(run())
    except (LogdError, OSError, SyncFailed) as error:
        text = error.text if isinstance(error, LogdError) else str(error)
        if form != "text":
            logging.getLogger("logd").critical("logd: %s", text)
            sys.exit(1)
        sys.exit(f"logd: {text}")
    logging.shutdown()
    os._exit(
        0
    )  # everything is synced and closed; a thread blocked in a read must not delay the exit


def _configure_malloc() -> None:
    """Use one heap for all threads. Must be called before threads start.

    By default, glibc uses a heap per thread and keeps free memory at its end, up to twice the size
    of the largest block that was freed. Measured with 150,000 requests of the fuzzer: 2.7 MB for
    each of six threads, 0.2 MB of it in use. The memory of a group of large pushes is kept for the
    next group, because the kernel would have to clear new pages.
    """
    with contextlib.suppress(AttributeError):  # a C library without mallopt
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_ARENA_MAX, 1)
        set_option(_M_TRIM_THRESHOLD, 4 << 20)
        set_option(_M_MMAP_THRESHOLD, 1 << 20)


def show_config(ctx: typer.Context, sample: bool, **flags: Any) -> None:
    """Print all settings with their values and origins."""
    if sample:
        sys.stdout.write(config_text.sample())
        return
    given = {name: flags[name] if flags[name] is not None else ctx.obj[name] for name in flags}
    try:
        sys.stdout.write(config_text.listing(_settled(given)))
    except LogdError as error:
        sys.exit(f"logd: {error.text}")


def make_token() -> None:
    """Print a new token and its SHA-256 sum for the access file."""
    from logd.access.access_file import new_token, token_sum

    token = new_token()
    print(f"token   {token}")
    print(f"sha256  {token_sum(token.encode()).hex()}")


def _settled(flags: dict[str, Any]) -> config.Settled:
    file = flags["config"] or os.environ.get("LOGD_CONFIG")
    values = {name.replace("_", "-"): value for name, value in flags.items() if name != "config"}
    return config.settle(values, os.environ, Path(file) if file else None)


_Kind = inspect.Parameter.KEYWORD_ONLY
_CONTEXT = inspect.Parameter("ctx", _Kind, annotation=typer.Context)


def _options() -> list[inspect.Parameter]:
    """One option per setting, generated from the settings."""
    option: Any = typer.Option(None, "--config", help="TOML file with settings.", metavar="FILE")
    parameters = [_parameter("config", option, str | None)]
    for field in config.fields():
        flag = config.flag(field.name)
        option = typer.Option(
            None, f"--{flag}", help=field.metadata["help"], metavar="VALUE",
            show_default=config_text.default_text(field) or False,
        )  # fmt: skip
        parameters.append(_parameter(flag.replace("-", "_"), option, str | None))
    return parameters


def _parameter(name: str, option: Any, kind: Any) -> inspect.Parameter:
    return inspect.Parameter(name, _Kind, default=option, annotation=kind)


def _with(command: Callable[..., None], *parameters: inspect.Parameter) -> Callable[..., None]:
    """The command with these parameters, which Typer reads from its signature."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def main() -> None:
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    options = _options()
    sample: Any = typer.Option(
        False, "--sample", help="Print a commented TOML file with all defaults instead."
    )
    version: Any = typer.Option(False, "--version", help="Print the version and exit.")
    about = _parameter("version", version, bool)
    app.callback(invoke_without_command=True)(_with(serve, _CONTEXT, *options, about))
    shown = _with(show_config, _CONTEXT, _parameter("sample", sample, bool), *options)
    app.command("config")(shown)
    app.command("token")(make_token)
    app(prog_name="logd")


if __name__ == "__main__":
    main()
