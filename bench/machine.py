"""Describes the machine and the versions that results depend on."""

from __future__ import annotations

import os
import platform
import resource
from importlib import metadata
from pathlib import Path

SPARE_FILES = 256  # descriptors besides those of connections


def describe(data_dir: Path) -> dict[str, str]:
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "cpu": _first_field("/proc/cpuinfo", "model name"),
        "memory": _first_field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "filesystem": filesystem(data_dir),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "uvloop": package_version("uvloop"),
        "redis-py": f"{package_version('redis')}, hiredis {package_version('hiredis')}",
        "nats-py": package_version("nats-py"),
        "rstream": package_version("rstream"),
    }


def package_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def filesystem(path: Path) -> str:
    """The type of the file system of `path`: that of its longest mount point."""
    best, kind = Path("/"), "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, this_kind, *_ = line.split(" ")
        here = Path(mount.encode().decode("unicode_escape"))  # spaces are written as \040
        if path.resolve().is_relative_to(here) and len(here.parts) >= len(best.parts):
            best, kind = here, this_kind
    return kind


def resident_mb(pid: int) -> float:
    return int(_first_field(f"/proc/{pid}/status", "VmRSS").split()[0]) / 1000


def allow_connections(wanted: int) -> None:
    """Raise the limit of descriptors, often 1,024, for this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > wanted + SPARE_FILES:
        enough = max(soft, wanted + SPARE_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


def _first_field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"
