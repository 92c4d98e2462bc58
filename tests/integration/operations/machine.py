"""A clean Debian machine, as far as one goes without a kernel of its own.

An overlay over the root that `make build/debian/ready` makes, in a mount namespace that ends with
the test. Packages are found inside as they are outside: what pip and apt are told here, they are
told there, files and all. Services run in a network of their own, so ports are never taken.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from tests.support.daemon import ROOT

CLEAN = ROOT / "build" / "debian" / "root"
ARCHIVES = ROOT / "build" / "debian" / "archives"  # packages that were fetched before
STEPS_S = 900.0  # only ever reached by something that would wait for ever
NEEDED = ("unshare", "nsenter", "setpriv", "ip", "mount")


def why_not() -> str:
    """Why there can be no clean machine here; "" if there can."""
    if os.geteuid() != 0:
        return "only root can run a clean Debian"
    missing = [tool for tool in NEEDED if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    if not (CLEAN.parent / "ready").exists():
        return "there is no clean Debian in build/; `make build/debian/ready` makes it"
    return ""


def pip_settings() -> dict[str, str]:
    """What pip is told on this machine, as variables."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    settings = {}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        name = name.rpartition(".")[2].replace("-", "_").upper()
        settings[f"PIP_{name}"] = value.strip("'")
    return settings


def moved(settings: dict[str, str]) -> tuple[dict[str, str], dict[Path, str]]:
    """The same settings with every file and directory they name elsewhere, and where each goes.

    Not where they are outside: a package in the machine may want that place. Of an index in files
    the directory above it goes along, which its links lead to.
    """
    words = [word.removeprefix("file://") for value in settings.values() for word in value.split()]
    paths = [Path(word) for word in words if word.startswith("/")]
    named = {path.parent if path.name == "simple" else path for path in paths if path.exists()}
    places = {path: f"/run/outside/{n}" for n, path in enumerate(sorted(named))}
    told = {}
    for name, value in settings.items():
        for path, place in sorted(places.items(), reverse=True):
            value = re.sub(rf"(?<![^\s/]){re.escape(str(path))}(?![^\s/])", place, value)
        told[name] = value
    return told, places


def apt_settings() -> str:
    """How this machine's apt reaches its mirror: proxies, time-outs and the like."""
    dumped = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True)
    kept = ("Acquire::http", "Acquire::https", "Acquire::Retries", "Acquire::Check-Valid-Until")
    lines = [line for line in dumped.stdout.splitlines() if line.startswith(kept)]
    return "\n".join([*lines, 'Acquire::Languages "none";', ""])


class Machine:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.root = directory / "root"
        self._variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/"}
        self._variables |= {
            name: os.environ[name] for name in os.environ if "_proxy" in name.lower()
        }
        self._pip, self._places = moved(pip_settings())
        self._holder: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        for name in ("upper", "work", "root"):
            (self._directory / name).mkdir()
        ARCHIVES.mkdir(exist_ok=True)
        root = shlex.quote(str(self.root))
        mounts = [
            f"mount -t overlay overlay -o lowerdir={shlex.quote(str(CLEAN))},"
            f"upperdir={self._directory}/upper,workdir={self._directory}/work {root}",
            f"mount -t proc proc {root}/proc",
            f"mount --bind /dev {root}/dev",
            f"mount --bind {shlex.quote(str(ARCHIVES))} {root}/var/cache/apt/archives",
        ]
        for path, place in self._places.items():
            make = "mkdir -p" if path.is_dir() else "install -D /dev/null"
            mounts.append(f"{make} {root}{place}; mount --bind -o ro {path} {root}{place}")
        script = "\n".join(["set -e", *mounts, "echo mounted", "exec cat >/dev/null"])
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "mounted\n"
        self._set_up()
        return self

    def _set_up(self) -> None:
        """Names, and the settings of apt and dpkg, as files; written through the overlay.

        As in the image of Debian for containers, dpkg does not sync each file.
        """
        self.write("/etc/apt/apt.conf.d/99outside", apt_settings())
        self.write("/etc/dpkg/dpkg.cfg.d/99outside", "force-unsafe-io\n")
        self.write("/etc/resolv.conf", Path("/etc/resolv.conf").read_text())
        self.write("/etc/hosts", "127.0.0.1 localhost\n")

    def __exit__(self, *_: object) -> None:
        assert self._holder is not None
        self._holder.communicate(timeout=STEPS_S)  # its stdin ends, and so do its mounts
        shutil.rmtree(self._directory / "upper")
        shutil.rmtree(self._directory / "work")

    # -- doing things in it ---------------------------------------------------------------------

    def inside(self) -> list[str]:
        """The words before a command that make it run in the mounts of this machine."""
        assert self._holder is not None
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt"]

    def chroot(self) -> list[str]:
        settings = [f"{name}={value}" for name, value in (self._variables | self._pip).items()]
        return ["env", "-i", *settings, "chroot", str(self.root)]

    def run(self, script: str, directory: str = "/") -> str:
        """Run a script as root in it; it must succeed."""
        words = [*self.inside(), *self.chroot(), "sh", "-euc", f"cd {directory}\n{script}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=STEPS_S, check=False)
        assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        place = f"{self.root}{path}"
        for command in (["mkdir", "-p", str(Path(place).parent)], ["tee", place]):
            subprocess.run(
                [*self.inside(), *command],
                input=text, text=True, stdout=subprocess.DEVNULL, check=True,
            )  # fmt: skip

    def put_sources(self, directory: str) -> None:
        """The repository's own files, as a clone would have them."""
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT, capture_output=True, check=True,
        )  # fmt: skip
        packed = subprocess.run(
            ["tar", "--create", "--null", "--files-from=-"],
            cwd=ROOT, input=listed.stdout, capture_output=True, check=True,
        )  # fmt: skip
        self.run(f"mkdir -p {directory}")
        unpack = ["tar", "--extract", "--no-same-owner", f"--directory={self.root}{directory}"]
        subprocess.run(
            [*self.inside(), *unpack],
            input=packed.stdout, check=True,
        )  # fmt: skip


@contextmanager
def machine(directory: Path) -> Iterator[Machine]:
    reason = why_not()
    if reason:
        print(reason)
        pytest.skip(reason)
    with Machine(directory) as made:
        yield made
