"""The storage of an archive: a directory, or an object store that is given by a URL.

Both offer a few operations: put a finished file, create a small object if it does not exist, get,
list and remove. Invariant: an object exists completely or not at all, also after a kill or a power
failure; in a directory, files and the directories above them are synced. Object stores use
`obstore`, which supports S3, Google and Azure, by the scheme of the URL.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from logd.errors import ArchiveError
from logd.storage import disk

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://.+")
_DRAFT_PREFIX = ".new-"


class StoredObject(NamedTuple):
    """An object: its path within the archive, its size, and its modification time."""

    path: str
    size: int
    modified_s: float


class ArchiveStore(Protocol):
    url: str

    def draft(self, path: str) -> Path:
        """A local path for writing the file that will be `put` at this path."""

    def put(self, path: str, draft: Path) -> None:
        """Publish a finished draft, which is removed."""

    def create(self, path: str, content: bytes) -> bool:
        """Create a small object; False if it exists."""

    def get(self, path: str) -> bytes:
        """The content of an object; FileNotFoundError if there is none."""

    def size(self, path: str) -> int:
        """The size in bytes; FileNotFoundError if there is no such object."""

    def list(self, below: str) -> Iterator[StoredObject]:
        """The objects below this path, in any order."""

    def remove(self, path: str) -> None:
        """Remove an object if it exists."""


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
        return target.with_name(f"{_DRAFT_PREFIX}{secrets.token_hex(8)}")

    def put(self, path: str, draft: Path) -> None:
        disk.sync(disk.File(draft))
        disk.rename(draft, self._root / path)
        self._sync_names(path)

    def create(self, path: str, content: bytes) -> bool:
        draft, target = self.draft(path), self._root / path
        disk.create(draft, content)
        try:
            os.link(draft, target)  # unlike a rename, it fails if the target exists
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
        """Sync all directories above: their creator may have been killed before it synced them."""
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
                    raise ArchiveError(f"{each} exists and is not a directory") from None
            # otherwise another writer has just created one of them


class ObjectStore:
    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url, self._options = url.rstrip("/"), dict(options)
        self._store = _connect(self.url, self._options)

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[str, dict[str, str]]]:
        return ObjectStore, (self.url, self._options)  # each task opens its own

    def draft(self, path: str) -> Path:
        return Path(tempfile.mkdtemp(prefix="logd-archive-")) / "draft"

    def put(self, path: str, draft: Path) -> None:
        try:
            with self._translated_errors():
                self._store.put(path, draft)
        finally:
            shutil.rmtree(draft.parent, ignore_errors=True)

    def create(self, path: str, content: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        with self._translated_errors():
            try:
                self._store.put(path, content, mode="create")
            except AlreadyExistsError:  # it may be from an attempt whose reply was lost
                return self.get(path) == content
        return True

    def get(self, path: str) -> bytes:
        with self._translated_errors():
            return bytes(self._store.get(path).bytes())

    def size(self, path: str) -> int:
        with self._translated_errors():
            return int(self._store.head(path)["size"])

    def list(self, below: str) -> Iterator[StoredObject]:
        with self._translated_errors():
            for page in self._store.list(below or None):
                for found in page:
                    modified_s = found["last_modified"].timestamp()
                    yield StoredObject(found["path"], found["size"], modified_s)

    def remove(self, path: str) -> None:
        with self._translated_errors():
            self._store.delete(path)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Convert the errors of obstore, which have many lines, to one sentence."""
        from obstore.exceptions import BaseError, NotFoundError

        try:
            yield
        except (FileNotFoundError, NotFoundError) as error:
            raise FileNotFoundError(f"{self.url} has no such object: {first_line(error)}") from None
        except BaseError as error:
            raise ArchiveError(
                f"{self.url} failed: {first_line(error)}; check the URL, the keys and the"
                " endpoint (see --store-options)"
            ) from None


def _connect(url: str, options: dict[str, str]) -> Any:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise ArchiveError(
            f"{url} needs the package obstore; install it with: pip install 'logd[spark]'"
        ) from None
    client: Any = {"allow_http": options.get("endpoint", "").startswith("http://")}
    retries: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
    try:
        return from_url(url, retry_config=retries, client_options=client, **options)
    except (BaseError, TypeError, ValueError) as error:
        raise ArchiveError(f"{url} cannot be opened: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
