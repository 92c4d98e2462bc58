"""The map of the code in docs/design.md: who imports whom. It has every module and every arrow.

Arrows point down only: storage knows nothing of loops, sockets or HTTP, and what is pure does no
I/O. To add a module, add its line there first, and see whether it is in the right place.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAP = re.compile(r"```map\n(.*?)```", re.DOTALL)

PURE = (
    "errors", "batch", "requests", "replies", "protocol", "index", "producers", "durability",
    "commits", "retention", "group", "outbox", "packing", "commands", "epochs", "addresses",
    "forward.forms", "progress", "shipping", "unpacking",
)  # fmt: skip
OF_PURE = {
    "__future__", "base64", "bisect", "collections", "dataclasses", "datetime", "enum",
    "functools", "itertools", "json", "math", "mmap", "re", "secrets", "struct", "typing",
    "xxhash", "zstandard",
}  # fmt: skip
STORAGE = (
    "config", "disk", "partition", "checkpoint", "repair", "files", "recovery", "view", "expiry",
    "topic", "store", "offline", "service",
)  # fmt: skip
OFFLINE = {
    "backup",
    "disk",
    "offline",
    "offline_reader",
    "repair",
    "store",
}  # what of it the tool needs where no daemon runs
OFFLINE_COMMANDS = {"backup", "failures", "check", "repair", "reports", "source", "show"}
ASYNCIO = (
    "aio", "aio_bookmarks", "aio_client", "aio_connection", "aio_delivery", "aio_reader",
    "aio_writer",
)  # fmt: skip
DAEMON = {*STORAGE, "hooks", "bulk", "sending", "tcp", "server"}
CLIENTS = (
    "bookmarks", "client", "link", "attendant", "backlog", "dialing", "delivery", "spool",
    "intake", "gathering", "reader", "writer", "merging", "forks", "lossy", "records", "handler",
    "__init__",
)  # fmt: skip
LOOPS = {
    "aiohttp", "asyncio", "http", "select", "selectors", "signal", "socket", "socketserver", "ssl",
    "urllib", "uvloop",
}  # fmt: skip
TERMINALS = {"click", "rich", "typer"}


def imports(path: Path) -> set[str]:
    """The dotted names a file imports, anywhere in it."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            assert node.module is not None
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def files(package: str) -> dict[str, Path]:
    """By name inside of the package: `forward.chain` is in a package of its own below it."""
    directory = ROOT / package
    return {
        ".".join(path.relative_to(directory).with_suffix("").parts): path
        for path in directory.rglob("*.py")
    }


def modules(package: str) -> dict[str, set[str]]:
    return {name: imports(path) for name, path in files(package).items()}


def inside(package: str, names: set[str]) -> set[str]:
    """The modules of `package` among these names."""
    found = {name.removeprefix(f"{package}.") for name in names if name.startswith(f"{package}.")}
    return found & {*files(package)}


def outside(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names} - {"logd", "cli"}


def the_map() -> dict[str, list[str]]:
    found = MAP.search((ROOT / "docs/design.md").read_text())
    assert found is not None
    lines = (line.partition("→") for line in found[1].splitlines())
    return {name.strip(): to.split() for name, _, to in lines}


def test_the_map_has_every_arrow_and_no_other() -> None:
    arrows = {name: sorted(inside("logd", names)) for name, names in modules("logd").items()}
    arrows = {name: to for name, to in arrows.items() if not name.endswith("__")}
    assert arrows == the_map()


def test_arrows_point_down_only() -> None:
    above = set[str]()
    for name, to in the_map().items():
        assert set(to) <= above, name
        above.add(name)
    tool = {name: inside("cli", names) for name, names in modules("cli").items()}
    list(TopologicalSorter(tool).static_order())


def test_the_tool_uses_the_daemon_through_its_clients() -> None:
    for name, names in modules("cli").items():
        allowed = OFFLINE if name in OFFLINE_COMMANDS else set[str]()
        assert not (inside("logd", names) & DAEMON) - allowed, name
    for name, names in modules("logd").items():
        assert not any(other.split(".")[0] == "cli" for other in names), name


def test_spark_uses_the_clients_and_files_at_rest() -> None:
    for name, names in modules("pyspark_logd").items():
        used = inside("logd", names)
        assert not used & {*DAEMON, *ASYNCIO, "offline"}, name
        assert "offline_reader" not in used or name == "places", name
        assert "client" not in used or name in {"connecting", "sending"}, name


@pytest.mark.parametrize("name", PURE)
def test_what_is_pure_does_no_io(name: str) -> None:
    path = ROOT / "logd" / f"{name.replace('.', '/')}.py"
    assert outside(imports(path)) <= OF_PURE
    nodes = ast.walk(ast.parse(path.read_text()))
    assert not {node.id for node in nodes if isinstance(node, ast.Name)} & {"open", "print"}


@pytest.mark.parametrize("name", STORAGE)
def test_storage_knows_no_loop_and_no_socket(name: str) -> None:
    assert not outside(imports(ROOT / "logd" / f"{name}.py")) & LOOPS


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_are_blocking_and_plain(name: str) -> None:
    used = outside(imports(ROOT / "logd" / f"{name}.py"))
    assert not used & {*TERMINALS, "asyncio", "uvloop", "sortedcontainers"}


@pytest.mark.parametrize("name", ASYNCIO)
def test_asyncio_clients_are_for_any_loop_and_without_threads_of_their_own(name: str) -> None:
    used = outside(imports(ROOT / "logd" / f"{name}.py"))
    assert not used & {*TERMINALS, "sortedcontainers", "threading", "uvloop"}


def test_only_the_commands_know_a_terminal() -> None:
    for name, names in modules("logd").items():
        assert name == "__main__" or not outside(names) & TERMINALS, name


@pytest.mark.parametrize(("home", "also"), [("logd", ["asyncio"]), ("logd.aio", [])])
def test_importing_the_clients_loads_neither_the_daemon_nor_its_loop(
    home: str, also: list[str]
) -> None:
    """They are meant for other people's programs, a Spark worker among them."""
    code = (
        "import sys; from logd import Client, LogdHandler, Reader, Writer\n"
        "print([name for name in sys.modules if name in sys.argv[1:]])"
    )
    unwanted = [*TERMINALS, *also, "uvloop", "sortedcontainers", "logd.topic", "logd.disk"]
    done = subprocess.run(
        [sys.executable, "-c", code, *unwanted], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
