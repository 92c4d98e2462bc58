"""The `log-cli` command: its subcommands and their exit codes.

At start only Typer is imported; a command imports the client when it runs, so that `--help` and
completion are fast. An error is printed as one line on stderr that states what to do.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Annotated

import typer

from cli import exit_codes
from cli.archive import archive
from cli.archive_partition import archive_partition
from cli.arguments import connection
from cli.backup import backup
from cli.bench import bench
from cli.check import check
from cli.forward import forward
from cli.history import history
from cli.import_ import import_
from cli.output.stdout import notice
from cli.ping import ping
from cli.read import read
from cli.repair import repair
from cli.restore import restore
from cli.stats import WatchCommand, stats
from cli.tail import tail
from cli.topics import topics
from cli.write import write

HELP = """Write, read and follow the topics of a logd daemon.

\b
log-cli write app 'hello, log'
log-cli read app --forever

\b
Exit codes:
  0    success
  1    usage error, or no connection to the daemon
  2    the daemon refused the request
  3    offset out of range, or data was lost
  130  interrupted (Ctrl-C)
  143  terminated (SIGTERM)
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,  # rich adds 60 ms to every --help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: tuple[Callable[..., None], ...] = (
    write, read, tail, stats, topics, ping, forward, bench, check, repair, backup, restore,
    archive, archive_partition, history, import_,
)  # fmt: skip
for command in COMMANDS:
    name = command.__name__.strip("_").replace("_", "-")
    app.command(name, cls=WatchCommand if command is stats else None)(command)


def _print_version(is_given: bool) -> None:
    if is_given:
        from logd import __version__

        print(f"log-cli {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
]


@app.callback()
def set_connection(
    ctx: typer.Context,
    host: connection.GlobalHost = connection.DEFAULT_HOST,
    token_file: connection.TokenFile = None,
    ca: connection.Ca = None,
    cert: connection.Cert = None,
    key: connection.Key = None,
    version: Version = False,
) -> None:
    ctx.obj = connection.ConnectionOptions(host, token_file, ca, cert, key)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise exit_codes.Terminated


def main() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(prog_name="log-cli")
    except SystemExit as end:
        # Raised by Typer only, which has printed the error.
        if end.code == exit_codes.INTERRUPTED:
            _end_line()
        sys.exit(exit_codes.USAGE if end.code == exit_codes.TYPER_USAGE else end.code)
    except KeyboardInterrupt:
        _end_line()
        sys.exit(exit_codes.INTERRUPTED)
    except exit_codes.Terminated:
        sys.exit(exit_codes.TERMINATED)
    except Exception as error:
        explained = exit_codes.explain(error)
        if explained is None:
            raise
        code, message = explained
        notice(message)
        sys.exit(code)


def _end_line() -> None:
    """The terminal shows ^C on the line of the shell's next prompt."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(file=sys.stderr)


if __name__ == "__main__":
    main()
