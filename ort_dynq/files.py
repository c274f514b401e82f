"""Writes files and folders in one step, so that each is complete or not there; temporary folders; checks of paths."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import BinaryIO

from .errors import DynqError
from .system import try_lock, unlock

_SUFFIX = ".saving"
_LOCK, _CONTENT, _REPLACED = "lock", "content", "replaced"
_SHORTEST_PAUSE, _MAX_PAUSE = 0.005, 0.1  # seconds between two attempts to get a lock
_OTHER_FOLDER = "free some space there, or set the environment variable TMPDIR to another folder"

_locks: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
_registering = threading.Lock()


def _forget_locks() -> None:
    """Renews the locks of this process after a fork: threads that had them are not there any more."""
    global _registering
    _registering = threading.Lock()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def sha256(path: str | os.PathLike[str]) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits.

    Raises:
        OSError: The file cannot be read.
    """
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def contains(path: str | os.PathLike[str], content: bytes) -> bool:
    """Returns whether a file contains these bytes. It is read in parts: a mapped file may be cut off meanwhile.

    Raises:
        OSError: The file cannot be read.
    """
    kept = b""
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            if content in (part := kept + part):
                return True
            kept = part[len(part) - len(content) + 1 :] if len(content) > 1 else b""
    return False


def check_text(path: str | os.PathLike[str]) -> None:
    """Checks the path of a text.

    Raises:
        DynqError: It is not a file.
    """
    if not os.path.isfile(path):
        raise DynqError(f"{path} is not a file with text" if os.path.exists(path) else f"there is no file {path}")


def target_of(path: Path) -> Path:
    """Returns the file, existing or not, that is written for `path`: symbolic links are followed.

    Raises:
        DynqError: `path` is not a regular file: for example, it is a folder, or a link to a device.
    """
    target = os.path.realpath(path)
    if not os.path.exists(path) and not os.path.lexists(target):
        return Path(target)
    # /dev/stdout leads to a pipe, or to a deleted file. Its target is then not the path of a file.
    if os.path.isfile(path) and os.path.isfile(target) and os.path.samefile(path, target):
        return Path(target)
    if os.path.isdir(path):
        raise DynqError(f"{path} is a folder; choose the name of a file")
    raise DynqError(f"{path} is not a file; choose another name")


def is_inside(name: str) -> bool:
    """Returns whether a path that a model gives stays in the folder that it starts from, if there are no links.

    It has no root, no drive and no ``..``, whichever system reads it: both slashes separate names.
    """
    path = PureWindowsPath(name)
    return bool(name) and not path.anchor and ".." not in path.parts


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path in a new hidden folder beside `path`. If the block succeeds, the file is moved to `path`.

    If the process is killed, the folder ``.NAME.xxxxxxxx.saving`` stays. The next call for the same path deletes it.

    Args:
        path: The file to write, see :func:`target_of`. If it exists, it is replaced.

    Raises:
        DynqError: `path` is not a regular file.
        OSError: The file cannot be written.
    """
    path = target_of(path)
    with _beside(path) as content:
        yield content / path.name
        move(content / path.name, path)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields a new empty folder. If the block succeeds, it is renamed to `path`, as :func:`replacing` does with a file.

    Args:
        path: The folder to write, not a symbolic link. If it exists, it is replaced. If the process is killed between
            the two renames that this takes, the next call for the same path puts the old folder back first.

    Raises:
        OSError: The folder cannot be written.
    """
    for hidden in _hidden_folders(path):
        if not path.exists() and not _is_in_use(hidden) and (hidden / _REPLACED).is_dir():
            os.rename(hidden / _REPLACED, path)
    with _beside(path) as content:
        folder = content / path.name
        folder.mkdir()
        yield folder
        for file in folder.rglob("*"):
            if file.is_file():
                _write_to_disk(file)
        if path.exists():
            os.rename(path, content.parent / _REPLACED)
        os.rename(folder, path)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Yields the part for content of a new hidden folder beside `path`, which is deleted after the block."""
    for old in _hidden_folders(path):
        with contextlib.suppress(OSError):
            old.rmdir()  # its process was killed before it created the lock
        if not _is_in_use(old):
            _delete(old)
    folder, lock = _new_hidden_folder(path)
    try:
        with lock:
            yield folder / _CONTENT
    finally:
        _delete(folder)


def move(source: Path, target: Path) -> None:
    """Moves a complete file to another name in the same file system, also over an existing file.

    It is written to the disk first: after a power failure, the new name never stands for an incomplete file.
    """
    _write_to_disk(source)
    os.replace(source, target)


def _write_to_disk(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a name while the block runs: others that want it, threads and processes, wait until it ends.

    Where the system has no locks of files, only the threads of this process wait.

    Args:
        path: A file that exists while somebody has the lock. If its process is killed, the file stays, unlocked.

    Raises:
        OSError: The file cannot be created.
    """
    with _registering:
        thread = _locks.setdefault(os.path.abspath(path), threading.Lock())
    with thread:
        file, has_lock = _locked_file(path)
        with file:
            try:
                yield
            finally:
                with contextlib.suppress(OSError):  # Windows deletes no open file
                    os.remove(path)
                if has_lock:
                    unlock(file)


def _locked_file(path: Path) -> tuple[BinaryIO, bool]:
    """Opens and locks a file. Returns the file, and whether there are locks."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    pause = _SHORTEST_PAUSE
    while True:
        file = open(os.open(path, flags, 0o600), "rb+")  # noqa: SIM115
        is_locked = try_lock(file)
        if is_locked is None:
            return file, False
        with contextlib.suppress(FileNotFoundError):  # who had the lock has deleted the file
            if is_locked and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file, True
        file.close()
        if not is_locked:
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)


def delete_unlocked(folder: Path, pattern: str) -> None:
    """Deletes the files of :func:`locked` that processes which were killed have left in a folder."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError), open(path, "rb+") as file:
            if try_lock(file):
                os.remove(path)


def delete_unfinished(folder: Path) -> None:
    """Deletes the hidden folders that processes which were killed have left in a folder."""
    for hidden in folder.glob(f".*{_SUFFIX}"):
        if not _is_in_use(hidden):
            _delete(hidden)


def is_being_replaced(path: Path) -> bool:
    """Returns whether :func:`replacing` is writing `path`, in this or another process."""
    return any(map(_is_in_use, _hidden_folders(path)))


def _new_hidden_folder(path: Path) -> tuple[Path, BinaryIO]:
    """Creates a hidden folder with a lock. The system unlocks it when this process ends."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_SUFFIX, dir=path.parent))
        with contextlib.suppress(FileNotFoundError):  # another process has found it empty and deleted it
            lock = open(folder / _LOCK, "xb")  # noqa: SIM115
            try_lock(lock)
            (folder / _CONTENT).mkdir()
            return folder, lock


def _delete(folder: Path) -> None:
    """Deletes a hidden folder, its lock last: if this is interrupted, the next call for the file deletes the rest."""
    shutil.rmtree(folder / _CONTENT, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _hidden_folders(path: Path) -> list[Path]:
    name = re.compile(re.escape(f".{path.name}.") + r"\w{8}" + re.escape(_SUFFIX))
    try:
        return [folder for folder in path.parent.iterdir() if name.fullmatch(folder.name)]
    except OSError:  # the folder may be writable but not readable
        return []


def _is_in_use(folder: Path) -> bool:
    """Returns whether the process that created a hidden folder is alive, or may be."""
    try:
        with open(folder / _LOCK, "rb+") as lock:
            return not try_lock(lock)
    except OSError:  # the lock is not there yet
        return True


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Yields a folder that is deleted after the block, except for files that a session still maps on Windows.

    Raises:
        DynqError: The folder cannot be created.
    """
    try:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    except OSError as error:
        place = f" in {os.path.dirname(error.filename)}" if error.filename else ""
        raise DynqError(f"a temporary folder cannot be created{place}: {reason(error)}; {_OTHER_FOLDER}") from error
    with folder as path:
        yield path


def unwritable(folder: str, error: Exception) -> DynqError:
    """Returns the error of a temporary folder in which a file cannot be written: for example, its disk is full."""
    return DynqError(f"the temporary folder {folder} cannot be written: {reason(error)}; {_OTHER_FOLDER}")


def reason(error: Exception) -> str:
    """Returns why a file cannot be read or written: NumPy does not say it if the system takes a part of an array."""
    if not isinstance(error, OSError):
        return str(error)
    if error.errno is None and re.search(r"\d+ requested and \d+ written", str(error)):
        return f"{os.strerror(errno.ENOSPC)}, or {os.strerror(errno.EFBIG).lower()}"
    return error.strerror or str(error)
