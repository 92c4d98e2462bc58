"""The package table in docs/design.md: which package may import which. The code must agree with it.

A package is a directory of `logd/` together with the top-level modules that belong to it. To add a
module, put it into the package it belongs to; to add a dependency, add it to the table first.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"```packages\n(.*?)```", re.DOTALL)
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in ("logd", "cli", "pyspark_logd")
    for path in (ROOT / package).rglob("*.py")
}
LOOPS = {"asyncio", "http", "select", "selectors", "socket", "socketserver", "ssl", "uvloop"}
TERMINALS = {"click", "rich", "typer"}


class Package:
    """One line of the table: `name: modules -> packages that it may import`."""

    def __init__(self, line: str) -> None:
        name, _, rest = line.partition(":")
        modules, _, allowed = rest.partition("->")
        self.name, self.modules, self.allowed = name.strip(), modules.split(), {*allowed.split()}


def table() -> dict[str, Package]:
    found = TABLE.search((ROOT / "docs/design.md").read_text())
    assert found is not None
    return {one.name: one for one in map(Package, found[1].splitlines())}


PACKAGES = table()


def package_of(module: str) -> str:
    """`logd.storage.disk` and `logd.partition` are both of `storage`."""
    for package in PACKAGES.values():
        for prefix in package.modules:
            if module == prefix or module.startswith(f"{prefix}."):
                return package.name
    return "public"  # `from logd import Client`


def imports(path: Path) -> set[str]:
    """The modules that a file imports, anywhere in it."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in SOURCES else str(node.module) for name in inside}
    return names


def ours(names: set[str]) -> set[str]:
    return {name for name in names if name in SOURCES or f"{name}.__init__" in SOURCES}


def used(module: str) -> set[str]:
    """The top-level names of other projects and the standard library that a module imports."""
    return {name.split(".")[0] for name in imports(SOURCES[module])}


def modules_of(*packages: str) -> list[str]:
    return sorted(name for name in SOURCES if package_of(name) in packages)


def violations(module: str, names: set[str]) -> set[str]:
    home = package_of(module)
    if home == "public":
        return set()
    reached = {package_of(name) for name in ours(names)} - {home, "public"}
    return reached - PACKAGES[home].allowed


def test_the_table_points_down_only() -> None:
    above = set[str]()
    for package in PACKAGES.values():
        assert package.allowed <= above, package.name
        above.add(package.name)


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_a_module_imports_what_its_package_may(module: str) -> None:
    assert violations(module, imports(SOURCES[module])) == set()


def test_each_dependency_in_the_table_is_used() -> None:
    for package in PACKAGES.values():
        names = set[str]().union(*(imports(SOURCES[name]) for name in modules_of(package.name)))
        assert package.allowed <= {package_of(name) for name in ours(names)}, package.name


def test_a_forbidden_import_is_found() -> None:
    assert violations("logd.client.writer", {"logd.topic"}) == {"storage"}
    assert violations("logd.storage.disk", {"logd.tcp", "logd.errors"}) == {"net"}
    assert violations("logd.wire.requests", {"logd.batch", "logd.client.client"}) == {"client"}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    names = {module: imports(path) & {*SOURCES} for module, path in SOURCES.items()}
    list(TopologicalSorter(names).static_order())


def test_top_level_modules_are_few() -> None:
    assert len([name for name in SOURCES if re.fullmatch(r"logd\.[a-z]\w*", name)]) <= 15


def test_class_names_are_unique() -> None:
    names = Counter(
        node.name
        for path in SOURCES.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("module", modules_of("wire", "storage", "service", "offline"))
def test_no_sockets_and_no_event_loop(module: str) -> None:
    of_pipes = {"select"} if module == "logd.storage.delete_hooks" else set[str]()
    assert not used(module) & LOOPS - of_pipes


@pytest.mark.parametrize("module", modules_of("client", "logging"))
def test_clients_suit_any_program(module: str) -> None:
    unwanted = {*TERMINALS, "uvloop", "sortedcontainers"}
    is_asyncio = module == "logd.aio" or module.startswith("logd.client.aio.")
    assert not used(module) & {*unwanted, "threading" if is_asyncio else "asyncio"}


def test_only_commands_use_a_terminal() -> None:
    for module in SOURCES:
        if module != "logd.__main__" and not module.startswith("cli."):
            assert not used(module) & TERMINALS, module


@pytest.mark.parametrize(("home", "also"), [("logd", ["asyncio"]), ("logd.aio", [])])
def test_importing_the_clients_loads_neither_the_daemon_nor_its_loop(
    home: str, also: list[str]
) -> None:
    """They are meant for other people's programs, a Spark worker among them."""
    names = "Client, Reader, Writer" + (", LogdHandler" if home == "logd" else "")
    code = (
        f"import sys; from {home} import {names}\n"
        "print([name for name in sys.modules if name in sys.argv[1:]])"
    )
    unwanted = [*TERMINALS, *also, "uvloop", "sortedcontainers", "logd.topic", "logd.storage.disk"]
    done = subprocess.run(
        [sys.executable, "-c", code, *unwanted], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
