"""The `logd` command: settle the settings, then hand over to the server."""

from __future__ import annotations

import faulthandler
import inspect
import logging
import os
import sys
from pathlib import Path
from typing import Any

import typer

from logd import config, logs
from logd.disk import SyncFailed
from logd.errors import LogdError


def serve(**flags: Any) -> None:
    """Keep append-only topics on this machine's disk and serve them over a line protocol.

    Every option can also be set as LOGD_<NAME> in the environment, or by its name in the TOML file
    that --config names. Try it with: log-cli write app hello; log-cli read app
    """
    import uvloop

    from logd.server import Server

    file = flags.pop("config") or os.environ.get("LOGD_CONFIG")
    values = {name.replace("_", "-"): value for name, value in flags.items()}

    async def run() -> None:
        await Server(settings).run()

    try:
        settings = config.load(values, os.environ, Path(file) if file else None)
    except LogdError as error:
        sys.exit(f"logd: {error.text}")
    form = logs.set_up(settings.log_format, os.environ)
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


def _signature() -> inspect.Signature:
    """One option per setting, so that no setting is written down twice."""
    option: Any = typer.Option(None, "--config", help="a TOML file with settings", metavar="FILE")
    parameters = [_parameter("config", option)]
    for field in config.fields():
        flag = config.flag(field.name)
        option = typer.Option(
            None, f"--{flag}", help=field.metadata["help"], metavar="VALUE",
            show_default=str(field.default),
        )  # fmt: skip
        parameters.append(_parameter(flag.replace("-", "_"), option))
    return inspect.Signature(parameters)


def _parameter(name: str, option: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=option, annotation=str | None)


def main() -> None:
    serve.__signature__ = _signature()  # type: ignore[attr-defined]
    serve.__annotations__ = dict.fromkeys(_signature().parameters, str | None)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(serve)
    app(prog_name="logd")


if __name__ == "__main__":
    main()
