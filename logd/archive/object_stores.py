"""Where an archive is kept: a directory, or an object store by its URL.

Five things are asked of either: put a finished file there, create a small object unless there is
one, get, list, remove. Always: an object is there whole or not at all, also after a kill or a power
cut; in a directory what was put is synced together with the names that lead to it. Object stores
are `obstore`'s, which knows S3, Google and Azure by the scheme of the URL.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from logd.errors import ArchiveError
from logd.storage import disk

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://.+")
_HIDDEN = ".new-"


class StoredObject(NamedTuple):
    """An object that is there: its path below the archive, its size, its age's beginning."""

    path: str
    size: int
    modified_s: float


class ArchiveStore(Protocol):
    url: str

    def draft(self, path: str) -> Path:
        """Where to write the file that is to be `put` at this path."""

    def put(self, path: str, draft: Path) -> None:
        """Make a finished draft the object; the draft is gone behind it."""

    def create(self, path: str, content: bytes) -> bool:
        """A small object with this content; False where there is one already."""

    def get(self, path: str) -> bytes:
        """All of an object; FileNotFoundError where there is none."""

    def size(self, path: str) -> int:
        """In bytes; FileNotFoundError where there is no such object."""

    def list(self, below: str) -> Iterator[StoredObject]:
        """The objects below this path, in no order."""

    def remove(self, path: str) -> None:
        """Remove it, if it is there."""


def open_store(url: str, options: Mapping[str, str] | None = None) -> ArchiveStore:
    match = _URL.fullmatch(url)
    if match is None or match[1] == "file":
        return DirectoryStore(Path(url.removeprefix("file://")).absolute())
    return ObjectStore(url, options or {})


class DirectoryStore:
    def __init__(self, root: Path) -> None:
        self.url, self._root = str(root), root

    def draft(self, path: str) -> Path:
        target = self._root / path
        _make_directories(target.parent)
        return target.with_name(f"{_HIDDEN}{secrets.token_hex(8)}")

    def put(self, path: str, draft: Path) -> None:
        disk.sync(disk.File(draft))
        disk.rename(draft, self._root / path)
        self._sync_names(path)

    def create(self, path: str, content: bytes) -> bool:
        draft, target = self.draft(path), self._root / path
        disk.create(draft, content)
        try:
            os.link(draft, target)  # unlike a rename it fails where there is one
        except FileExistsError:
            return False
        finally:
            disk.remove(draft)
        self._sync_names(path)
        return True

    def get(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def size(self, path: str) -> int:
        return (self._root / path).stat().st_size

    def list(self, below: str) -> Iterator[StoredObject]:
        for directory, _, names in os.walk(self._root / below):
            for name in names:
                path = Path(directory, name)
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # removed meanwhile
                yield StoredObject(
                    str(path.relative_to(self._root)), status.st_size, status.st_mtime
                )

    def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def _sync_names(self, path: str) -> None:
        """All directories on the way: whoever made one may have been killed before its sync."""
        for directory in (self._root / path).parents:
            disk.sync_directory(directory)
            if directory == self._root:
                return


def _make_directories(path: Path) -> None:
    while True:
        try:
            return disk.make_directories(path)
        except FileExistsError:
            for each in (path, *path.parents):
                if each.exists() and not each.is_dir():
                    raise ArchiveError(f"{each} is in the way: it is no directory") from None
            # else another writer has made one of them at the same moment


class ObjectStore:
    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url, self._options = url.rstrip("/"), dict(options)
        self._store = _connect(self.url, self._options)

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[str, dict[str, str]]]:
        return ObjectStore, (self.url, self._options)  # a task opens its own

    def draft(self, path: str) -> Path:
        return Path(tempfile.mkdtemp(prefix="logd-archive-")) / "draft"

    def put(self, path: str, draft: Path) -> None:
        import obstore

        try:
            with self._trouble():
                obstore.put(self._store, path, draft)
        finally:
            shutil.rmtree(draft.parent, ignore_errors=True)

    def create(self, path: str, content: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._trouble():
            try:
                obstore.put(self._store, path, content, mode="create")
            except AlreadyExistsError:
                return self.get(path) == content  # of a try whose answer was lost
        return True

    def get(self, path: str) -> bytes:
        import obstore

        with self._trouble():
            return bytes(obstore.get(self._store, path).bytes())

    def size(self, path: str) -> int:
        import obstore

        with self._trouble():
            return int(obstore.head(self._store, path)["size"])

    def list(self, below: str) -> Iterator[StoredObject]:
        import obstore

        with self._trouble():
            for page in obstore.list(self._store, below or None):
                for found in page:
                    modified_s = found["last_modified"].timestamp()
                    yield StoredObject(found["path"], found["size"], modified_s)

    def remove(self, path: str) -> None:
        import obstore

        with self._trouble():
            obstore.delete(self._store, path)

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        """The library's errors as one sentence each; its own have many lines."""
        from obstore.exceptions import BaseError, NotFoundError

        try:
            yield
        except (FileNotFoundError, NotFoundError) as error:
            raise FileNotFoundError(f"{self.url} has no such object: {first_line(error)}") from None
        except BaseError as error:
            raise ArchiveError(
                f"{self.url} does not work: {first_line(error)}; check the URL, the keys and the"
                " endpoint (see --store-options)"
            ) from None


def _connect(url: str, options: dict[str, str]) -> Any:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise ArchiveError(
            f"{url} needs the package obstore; install it: pip install 'logd[spark]'"
        ) from None
    settings: dict[str, Any] = dict(options)
    allow_http = settings.get("endpoint", "").startswith("http://")
    try:
        return from_url(
            url, retry_config=_retries(), client_options={"allow_http": allow_http}, **settings
        )
    except (BaseError, TypeError, ValueError) as error:
        raise ArchiveError(f"{url} cannot be opened: {first_line(error)}") from None


def _retries() -> Any:
    from datetime import timedelta

    return {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
