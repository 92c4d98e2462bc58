"""All system calls that read or change files.

Tests replace functions of this module to simulate a full disk, a failed sync or a kill. Files have
mode 0600, directories 0700, symbolic links are not followed, and what has to survive a power
failure is synced together with the directory that names it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from logd.batch import Buffer
from logd.errors import DataDirError, IoError, LogdError, NoSpace

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAX_BUFFERS = os.sysconf("SC_IOV_MAX")
# With O_NONBLOCK, opening a pipe does not block.
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class SyncFailed(Exception):
    """A sync failed: the kernel may have dropped the data. It must not be retried."""


def refusal(error: BaseException) -> LogdError:
    """The error that a client gets for this exception."""
    if isinstance(error, DataDirError):
        text = "the files of this topic cannot be used; see the daemon's log"
        return IoError(text, log_text=error.text)
    if isinstance(error, LogdError):
        return error
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return NoSpace("the disk is full; nothing was stored, retry when there is space")
    reason = error.strerror if isinstance(error, OSError) else type(error).__name__
    text = f"disk error: {reason}; see the daemon's log"
    return IoError(text, log_text=f"disk error: {error}")  # this may contain a path


class NotCached(Exception):
    """A read would have to wait for the disk. Call `warm` on another thread, then retry."""

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file, self.position, self.size = file, position, size

    def warm(self) -> None:
        self.file.read_waiting(self.position, self.size)


class File:
    """An open descriptor that is closed when it is no longer referenced.

    A reply that is being sent keeps its file readable even if the partition is deleted.
    """

    __slots__ = ("fd", "identity")
    _nowait = os.RWF_NOWAIT

    def __init__(self, path: Path, flags: int = os.O_RDONLY) -> None:
        self.fd = -1
        self.fd = os.open(path, flags | _FLAGS, 0o600)
        status = os.fstat(self.fd)
        self.identity = status.st_dev, status.st_ino
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def read(self, position: int, size: int) -> bytearray:
        """Read without waiting for the disk: raises NotCached instead."""
        buffer = bytearray(size)
        try:
            got = os.preadv(self.fd, [buffer], position, File._nowait)
        except BlockingIOError:
            raise NotCached(self, position, size) from None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or not File._nowait:
                raise
            File._nowait = 0  # not supported by the file system: every read may wait
            return self.read(position, size)
        if got < size and got < self.size() - position:  # the rest is not cached
            raise NotCached(self, position, size)
        del buffer[got:]
        return buffer

    def read_waiting(self, position: int, size: int) -> bytes:
        return os.pread(self.fd, size, position)


def is_in_place(path: Path, file: File | None, size: int) -> bool:
    """Does `path` have at least this size, and is it `file`, if that is open?"""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    is_same = file is None or file.identity == (status.st_dev, status.st_ino)
    return is_same and status.st_size >= size


class BlockingFile(File):
    """Its reads wait for the disk: for programs without an event loop."""

    __slots__ = ()

    def read(self, position: int, size: int) -> bytearray:
        return bytearray(self.read_waiting(position, size))


def write_at(file: File, buffers: Sequence[Buffer], position: int) -> None:
    """Write all of `buffers` at `position`, in one call unless the kernel accepts less."""
    if len(buffers) == 1 and os.pwrite(file.fd, buffers[0], position) == len(buffers[0]):
        return  # the same as below, in half the time
    few = buffers if len(buffers) <= _MAX_BUFFERS else buffers[:_MAX_BUFFERS]
    done = os.pwritev(file.fd, few, position)
    total = sum(map(len, buffers))
    while done < total:
        rest = b"".join(buffers)[done:]
        done += os.pwrite(file.fd, rest, position + done)


def sync(file: File) -> None:
    try:
        os.fdatasync(file.fd)
    except OSError as error:
        raise SyncFailed(f"fdatasync: {error.strerror}") from error


def cut(file: File, size: int) -> None:
    os.ftruncate(file.fd, size)


def drop_cache(file: File) -> None:
    """Drop the clean cached pages, so that the next read comes from the disk."""
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def create(path: Path, content: Buffer = b"") -> File:
    """A new file with this content, synced; the caller syncs the directory."""
    file = File(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    if content:
        write_at(file, [content], 0)
        sync(file)
    return file


def replace(path: Path, content: Buffer) -> File:
    """Replace `path` by a new file atomically."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        file = File(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        write_at(file, [content], 0)
        sync(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    rename(temporary, path)
    sync_directory(path.parent)
    return file


def replace_if_room(path: Path, content: Buffer) -> None:
    """The same for a file that can be rebuilt: skipped if the disk is full."""
    try:
        replace(path, content)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise


def free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def rename(old: Path, new: Path) -> None:
    os.rename(old, new)


def remove(path: Path) -> None:
    os.unlink(path)


def refuse_link(directory: Path) -> None:
    """Raise if it is a symbolic link, which would be followed inside a path."""
    if directory.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "a link, which is not followed", str(directory))


def make_directory(path: Path) -> None:
    os.mkdir(path, 0o700)


def make_directories(path: Path) -> None:
    """Create a directory and its missing parents, and sync their names."""
    if not path.is_dir():
        make_directories(path.parent)
        make_directory(path)
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
    try:
        os.fsync(fd)
    except OSError as error:
        raise SyncFailed(f"fsync of {path.name}: {error.strerror}") from error
    finally:
        os.close(fd)
