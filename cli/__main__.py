"""The `log-cli` command: its subcommands, and what its exit codes mean.

    0 done   1 usage or no connection   2 refused by the server   3 out of range or data loss
    130 interrupted (Ctrl-C)   143 terminated (SIGTERM)

Typer alone is imported at start; a command imports the client when it runs, so that `--help` and
completion stay quick. An error ends in one sentence on stderr that says what to do.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from cli import connection_options, exit_codes
from cli.archive import archive
from cli.archive_partition import archive_partition
from cli.backup import backup, restore
from cli.bench import bench
from cli.check import check
from cli.forward import forward
from cli.history import history
from cli.import_ import import_
from cli.message_formats import notice
from cli.ping import ping
from cli.read import read
from cli.repair import repair
from cli.stats import WatchCommand, stats
from cli.tail import tail
from cli.topics import topics
from cli.write import write

HELP = """Write to a logd, read from it, follow it.

\b
log-cli write app 'hello, log'
log-cli read app --forever

Exits 0 when done, 1 on misuse or without a connection, 2 when refused by the server, 3 when out of
range or data is lost, 130 when interrupted, 143 when terminated.
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,  # rich would cost 60 ms of every --help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    write,
    read,
    tail,
    stats,
    topics,
    ping,
    forward,
    bench,
    check,
    repair,
    backup,
    restore,
):
    app.command(cls=WatchCommand if command is stats else None)(command)
app.command("archive")(archive)
app.command("archive-partition")(archive_partition)
app.command("history")(history)
app.command("import")(import_)


def _print_version(wanted: bool) -> None:
    if wanted:
        from logd import __version__

        print(f"log-cli {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", is_eager=True, callback=_print_version, help="Print it, and exit."),
]


@app.callback()
def everywhere(
    ctx: typer.Context,
    host: connection_options.GlobalHost = connection_options.DEFAULT_HOST,
    token_file: connection_options.TokenFile = None,
    ca: connection_options.Ca = None,
    cert: connection_options.Cert = None,
    key: connection_options.Key = None,
    version: Version = False,
) -> None:
    ctx.obj = connection_options.Everywhere(host, token_file, ca, cert, key)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise exit_codes.Terminated


def main() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(prog_name="log-cli")
    except SystemExit as end:
        # Only Typer itself ends this way: it has said what is wrong, with its own code for it.
        if end.code == exit_codes.INTERRUPTED:
            end_line()
        sys.exit(exit_codes.USAGE if end.code == exit_codes.TYPER_USAGE else end.code)
    except KeyboardInterrupt:
        end_line()
        sys.exit(exit_codes.INTERRUPTED)
    except exit_codes.Terminated:
        sys.exit(exit_codes.TERMINATED)
    except Exception as error:
        explained = exit_codes.explain(error)
        if explained is None:
            raise
        code, sentence = explained
        notice(sentence)
        sys.exit(code)


def end_line() -> None:
    """The terminal has written ^C where the shell's prompt goes."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(file=sys.stderr)


if __name__ == "__main__":
    main()
