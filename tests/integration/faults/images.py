"""Small file systems of their own: one that can lose power, one that is soon full.

Each is a context manager; whatever happens in it, it is unmounted at the end, and the loop device
goes with the mount.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tests.integration.faults.traced_daemon import TracedDaemon

_EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
_BALLAST = "ballast"
_WITHOUT_LOG_FLUSH = struct.pack("I", 2)


class Mounted:
    """A file system mounted on `place`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True)

    def mount(self) -> None:
        raise NotImplementedError

    def reserve(self, size: int) -> None:
        """Let the ballast have this much: however fast others write, `make_room` frees it."""
        (self.place / _BALLAST).write_bytes(b"x" * size)

    def fill(self) -> None:
        """Leave no room: a ballast file takes all of it."""
        with (self.place / _BALLAST).open("ab", buffering=0) as ballast:
            for chunk in (1 << 16, 1 << 12, 1 << 9, 1):
                with contextlib.suppress(OSError):
                    while ballast.write(b"x" * chunk):
                        pass

    def make_room(self) -> None:
        (self.place / _BALLAST).unlink()

    def unmount(self) -> None:
        """At once; with something still open in it, out of sight now and gone with the last use."""
        if os.path.ismount(self.place):
            done = subprocess.run(["umount", self.place], capture_output=True)
            if done.returncode:
                _run("umount", "--lazy", str(self.place))

    def __enter__(self) -> Self:
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()


class Ext4(Mounted):
    """ext4 in a file, over a loop device: `crash` is what a power cut does to it."""

    def __init__(self, directory: Path, options: str = "", size_kib: int = 128 * 1024) -> None:
        super().__init__(directory / "mounted")
        self._image = directory / "image"
        self._options = f"loop,{options}".rstrip(",")
        with self._image.open("wb") as image:
            image.truncate(size_kib * 1024)
        journal = ["-J", "size=4"] if size_kib > 8 * 1024 else ["-O", "^has_journal"]
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", *journal, str(self._image))

    def mount(self) -> None:
        self._leave_devices_in_use()
        _run("mount", "-t", "ext4", "-o", self._options, str(self._image), str(self.place))

    def _leave_devices_in_use(self) -> None:
        """Go on with a copy while a mount namespace of another test still has the file system.

        A namespace begins with a copy of all mounts. Until it ends the image is mounted there, and
        another mount of the image would be of the same file system, with the power still cut.
        """
        for device in _loop_devices(self._image):
            fd = os.open(device, os.O_RDONLY)
            try:
                os.fsync(fd)  # as the last unmount does
            finally:
                os.close(fd)
            copy = self._image.with_suffix(".copy")
            _run("cp", "--sparse=always", str(self._image), str(copy))
            copy.replace(self._image)

    def crash(self, daemon: TracedDaemon) -> None:
        """Cut the power under the daemon, and give what is left of the files back to it.

        A machine without power says nothing more. The daemon would: while ext4 shuts down a sync
        can return 0 although its data is lost (583 of them in 1,023 crashes of a program that does
        nothing but append and fdatasync, all of them after this call had begun).
        """
        daemon.freeze()
        self.shut_down()
        if daemon.is_running:
            daemon.kill()
        self.unmount()
        self.mount()

    def shut_down(self) -> None:
        """From now on nothing reaches the disk any more, the journal in memory included."""
        fd = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _EXT4_IOC_SHUTDOWN, _WITHOUT_LOG_FLUSH)
        finally:
            os.close(fd)


class Tmpfs(Mounted):
    def __init__(self, place: Path, size_kib: int) -> None:
        super().__init__(place)
        self._size_kib = size_kib

    def mount(self) -> None:
        _run("mount", "-t", "tmpfs", "-o", f"size={self._size_kib}k", "tmpfs", str(self.place))


def _loop_devices(image: Path) -> list[Path]:
    """The devices whose file is the image."""
    found = []
    for backing_file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # a device without a file now
            if backing_file.read_text().rstrip("\n") == str(image):
                found.append(Path("/dev", backing_file.parts[3]))
    return found


def why_no_loop_mount(directory: Path) -> str:
    """Why no image can be mounted here; empty if it can."""
    if shutil.which("mkfs.ext4") is None:
        return "mkfs.ext4 is not installed (Debian package e2fsprogs)"
    if shutil.which("mount") is None:
        return "mount is not installed (Debian package mount)"
    try:
        with Ext4(directory / "try") as image:
            image.shut_down()
    except (subprocess.CalledProcessError, OSError) as error:
        said = getattr(error, "stderr", "") or error
        return f"no ext4 image can be mounted and shut down here: {said}".strip()
    return ""


def why_no_tmpfs(directory: Path) -> str:
    try:
        with Tmpfs(directory / "try-tmpfs", 64):
            return ""
    except (subprocess.CalledProcessError, OSError) as error:
        return f"no tmpfs can be mounted here: {getattr(error, 'stderr', '') or error}".strip()


def _run(*command: str) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"PATH": path}
    )
