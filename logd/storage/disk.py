"""Every system call that changes or reads a file goes through here.

The one seam: a test that wants a full disk, a failed sync or a kill replaces a function of this
module. Files are 0600, directories 0700, symbolic links are not followed, and what has to survive
a power cut is synced together with the directory that names it.
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
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # the last for pipes: nobody waits for one


class SyncFailed(Exception):
    """A sync failed: the kernel may have dropped what it was to write. Never to be retried."""


def refusal(error: BaseException) -> LogdError:
    """What to tell a client whose request met this error."""
    if isinstance(error, DataDirError):
        text = "the files of this topic cannot be used; the daemon's log says why"
        return IoError(text, log_text=error.text)
    if isinstance(error, LogdError):
        return error
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return NoSpace("the disk is full; nothing of this was stored, retry when there is room")
    reason = error.strerror if isinstance(error, OSError) else type(error).__name__
    text = f"the disk refused: {reason}; the daemon's log says more"
    return IoError(text, log_text=f"the disk refused: {error}")  # which may name a file


class NotCached(Exception):
    """A read would have to wait for the disk. `warm` does that, on another thread."""

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file, self.position, self.size = file, position, size

    def warm(self) -> None:
        self.file.read_waiting(self.position, self.size)


class File:
    """An open descriptor that closes itself once nobody refers to it any more.

    A reply under way keeps its file readable, even when the partition is deleted meanwhile.
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
        """What stands at `position`, without waiting for the disk: raises NotCached instead."""
        buffer = bytearray(size)
        try:
            got = os.preadv(self.fd, [buffer], position, File._nowait)
        except BlockingIOError:
            raise NotCached(self, position, size) from None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or not File._nowait:
                raise
            File._nowait = 0  # a file system that cannot tell; then every read may wait
            return self.read(position, size)
        if got < size and got < self.size() - position:  # the rest is not cached
            raise NotCached(self, position, size)
        del buffer[got:]
        return buffer

    def read_waiting(self, position: int, size: int) -> bytes:
        return os.pread(self.fd, size, position)


def is_in_place(path: Path, file: File | None, size: int) -> bool:
    """Is there a file of at least this size at `path`, and is it `file`, if that is open?"""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    is_same = file is None or file.identity == (status.st_dev, status.st_ino)
    return is_same and status.st_size >= size


class BlockingFile(File):
    """For whoever has nothing else to do: its reads wait for the disk."""

    __slots__ = ()

    def read(self, position: int, size: int) -> bytearray:
        return bytearray(self.read_waiting(position, size))


def write_at(file: File, buffers: Sequence[Buffer], position: int) -> None:
    """Write all of `buffers` at `position`: one call, unless the kernel takes less."""
    done = os.pwritev(file.fd, buffers[:_MAX_BUFFERS], position)
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
    """Forget the clean cached pages, so that the next read sees what the disk has."""
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def create(path: Path, content: Buffer = b"") -> File:
    """A new file with this content, synced; the caller syncs the directory."""
    file = File(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    if content:
        write_at(file, [content], 0)
        sync(file)
    return file


def replace(path: Path, content: Buffer) -> File:
    """Put a whole new file in the place of `path`: the old one or the new one, never half of it."""
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
    """The same for what can be made anew at any time: on a full disk it is done without."""
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
    """Files are opened by their whole path, and a link in the middle of it would be followed."""
    if directory.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "a link, which is not followed", str(directory))


def make_directory(path: Path) -> None:
    os.mkdir(path, 0o700)


def make_directories(path: Path) -> None:
    """The directory and those above it that are missing, each synced into the one that names it."""
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
