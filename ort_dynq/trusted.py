"""Files and folders that nobody but the user may write: what a cache holds is run, so it must not be somebody else's.

Links are not followed. Files of the system's administrator count as the user's own.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from .errors import DynqError

_OVERFLOW = 65534  # the owner that a container shows for files of users that it does not have


def check_folder(path: Path) -> None:
    """Checks a folder, and that nobody else can put another one in its place.

    Raises:
        DynqError: It is a link or no folder, belongs to somebody else, or others may write it.
        OSError: It cannot be found.
    """
    _check(path, os.lstat(path), stat.S_ISDIR, "folder")
    for parent in Path(os.path.realpath(path)).parents:
        found = os.lstat(parent)
        if _is_writable_by_all(found) or not _is_owned(found, _OVERFLOW):
            raise DynqError(f"others may replace {path}, since {parent} belongs to another user or all may write it")


def check_file(path: Path) -> None:
    """Checks a file.

    Raises:
        DynqError: It is a link or no regular file, belongs to somebody else, or others may write it.
        OSError: It cannot be found.
    """
    _check(path, os.lstat(path), stat.S_ISREG, "regular file")


def read(path: Path, max_bytes: int) -> bytes:
    """Returns the content of a file.

    Args:
        path: The file.
        max_bytes: The size of the largest file that is read.

    Raises:
        DynqError: See :func:`check_file`; or the file is larger.
        OSError: It cannot be read, or is a link.
    """
    flags = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    with open(os.open(path, os.O_RDONLY | sum(flags)), "rb") as file:
        found = os.fstat(file.fileno())
        _check(path, found, stat.S_ISREG, "regular file")
        if found.st_size > max_bytes:
            raise DynqError(f"{path} has {found.st_size} bytes, expected at most {max_bytes}")
        return file.read()


def make_private(folder: Path) -> None:
    """Takes from all others the permissions to read and write a folder and everything in it."""
    os.chmod(folder, 0o700)
    for each in folder.rglob("*"):
        os.chmod(each, 0o700 if each.is_dir() else 0o600)


def _check(path: Path, found: os.stat_result, is_kind: Callable[[int], bool], kind: str) -> None:
    if not is_kind(found.st_mode):
        raise DynqError(f"{path} is not a {kind}")
    if not _is_owned(found):
        raise DynqError(f"{path} belongs to another user")
    if sys.platform != "win32" and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DynqError(f"others may write {path}; `chmod go-w` takes that from them")


def _is_owned(found: os.stat_result, *others: int) -> bool:
    return sys.platform == "win32" or found.st_uid in (os.geteuid(), 0, *others)


def _is_writable_by_all(found: os.stat_result) -> bool:
    """Whether all users may rename what others have in a folder, which its sticky bit forbids."""
    return sys.platform != "win32" and bool(found.st_mode & stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
