"""The `logd` command: settle the settings, then hand over to the server; and a few words about it.

`logd` alone serves. `logd config` prints the settings, `logd token` makes a token.
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
    """Keep append-only topics on this machine's disk and serve them over a line protocol.

    Every option can also be set as LOGD_<NAME> in the environment, or by its name in the TOML file
    that --config names. Try it with: log-cli write app hello; log-cli read app
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
    _settle_heap()
    form = daemon_log.set_up(settings.log_format, settings.log_level, os.environ)
    faulthandler.enable()  # a watchdog ends a hung daemon by SIGABRT: the log says where
    try:
        uvloop.run(run())
    except (LogdError, OSError, SyncFailed) as error:
        text = error.text if isinstance(error, LogdError) else str(error)
        if form != "text":
            logging.getLogger("logd").critical("logd: %s", text)
            sys.exit(1)
        sys.exit(f"logd: {text}")
    logging.shutdown()
    os._exit(0)  # all is synced and closed: no thread that a read hangs in keeps the process


def _settle_heap() -> None:
    """Before there are threads: else glibc gives each a heap of its own, and keeps memory that is
    free at the end of each, up to twice the largest block that was ever given back.

    Measured with 150,000 requests of the fuzzer: 2.7 MB for each of six threads, 0.2 of it in use.
    What one group of large pushes takes is kept for the next: the kernel would clear it each time.
    """
    with contextlib.suppress(AttributeError):  # a C library that has no such heaps
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_ARENA_MAX, 1)
        set_option(_M_TRIM_THRESHOLD, 4 << 20)
        set_option(_M_MMAP_THRESHOLD, 1 << 20)


def show_config(ctx: typer.Context, sample: bool, **flags: Any) -> None:
    """Print every setting, its value, and where that comes from."""
    if sample:
        sys.stdout.write(config_text.sample())
        return
    given = {name: flags[name] if flags[name] is not None else ctx.obj[name] for name in flags}
    try:
        sys.stdout.write(config_text.listing(_settled(given)))
    except LogdError as error:
        sys.exit(f"logd: {error.text}")


def make_token() -> None:
    """Print a new token, and the sum of it that goes into the access file."""
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
    """One option per setting, so that no setting is written down twice."""
    option: Any = typer.Option(None, "--config", help="a TOML file with settings", metavar="FILE")
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
    """The command, with these parameters for Typer to see."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def main() -> None:
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    options = _options()
    sample: Any = typer.Option(False, "--sample", help="print a commented TOML file instead")
    version: Any = typer.Option(False, "--version", help="print it, and exit")
    about = _parameter("version", version, bool)
    app.callback(invoke_without_command=True)(_with(serve, _CONTEXT, *options, about))
    shown = _with(show_config, _CONTEXT, _parameter("sample", sample, bool), *options)
    app.command("config")(shown)
    app.command("token")(make_token)
    app(prog_name="logd")


if __name__ == "__main__":
    main()
