"""Keeps the models that InferenceSession has rewritten, in a folder of the user.

Each entry is a folder. Its name is a hash of what the rewritten model follows from: the content of the model's file,
the options, and the versions of ort_dynq and of what it uses. It has `model.onnx`, unless nothing was rewritten, and
`entry.json` with hashes of the files with external data. The cache never makes a session fail: whatever goes wrong with
an entry, the model is rewritten again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import DynqError
from .files import delete_unfinished, replacing_folder, sha256
from .system import package_version
from .version import __version__

if TYPE_CHECKING:
    from .rewriter import Result

_LOG = logging.getLogger(__name__)

FOLDER = "ORT_DYNQ_CACHE"
"""The environment variable that names the folder; ``0`` turns the cache off."""

MOST_BYTES = 8 << 30
"""The size from which on the entries that were not used for the longest time are deleted."""

_PACKAGES = ("onnxruntime", "onnx", "onnx-ir")
_MODEL, _ENTRY = "model.onnx", "entry.json"


def folder() -> Path | None:
    """Returns the folder of the cache, which may not exist yet; None if the cache is turned off."""
    named = os.environ.get(FOLDER, "")
    if named == "0":
        return None
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
    base = os.path.expanduser(base or "~/.cache")
    return Path(base, "ort_dynq") if os.path.isabs(base) else None  # somebody without a home


class Entry:
    """The place in the cache of a model's file, rewritten with certain options."""

    def __init__(self, source: Path, options: str, path: Path) -> None:
        self._source, self._options, self._path = source, options, path

    @classmethod
    def of(cls, model: object, options: str) -> Entry | None:
        """Returns the entry of a model.

        Args:
            model: The model, in any form.
            options: The options that the rewritten model depends on.

        Returns:
            The entry; None if the model is no file that can be read, or the cache is turned off.
        """
        cache = folder()
        if cache is None or not isinstance(model, str | os.PathLike):
            return None
        source = Path(os.path.abspath(model))
        try:
            key = hashlib.sha256(f"{_versions()} {options} {sha256(source)}".encode())
        except (OSError, ImportError):
            return None
        return cls(source, options, cache / key.hexdigest())

    def find(self) -> Path | None:
        """Returns the file to open, which is the model's own if nothing is rewritten in it; None without an entry."""
        try:
            entry = json.loads((self._path / _ENTRY).read_text(encoding="utf-8"))
            if any(sha256(self._source.parent / name) != found for name, found in entry["external data"].items()):
                return None
            path = self._path / _MODEL if entry["rewritten"] else self._source
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            return None
        with contextlib.suppress(OSError):  # the cache may be read-only
            os.utime(self._path / _ENTRY)
        _LOG.info("%s is opened as %s", self._source, path)
        return path

    def keep(self, rewrite: Callable[[], Result], *, may_be_source: bool = True) -> Result:
        """Rewrites the model and writes the entry.

        Args:
            rewrite: Rewrites the model.
            may_be_source: Whether the model's own file will do if the report says that nothing is rewritten.

        Returns:
            The result of `rewrite`, whether or not the entry could be written.
        """
        try:
            hashes = self._hashes()
        except Exception:  # the model may be wrong in any way, which the rewrite says
            return rewrite()
        result = rewrite()
        try:
            self._write(result, bool(result.report.rewritten) or not may_be_source, hashes)
        except Exception as error:  # a session does not fail because of its cache
            _LOG.info("%s is not kept in the cache: %s", self._source, error)
        return result

    def _write(self, result: Result, is_rewritten: bool, hashes: dict[str, str]) -> None:
        from .storage import tensors

        if is_rewritten and (size := sum(tensor.nbytes for tensor in tensors(result.model))) > MOST_BYTES:
            raise DynqError(f"it has {size} bytes")
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing_folder(self._path) as entry:
            if is_rewritten:
                result.save(entry / _MODEL)
            text = json.dumps({"source": str(self._source), "rewritten": is_rewritten, "external data": hashes})
            (entry / _ENTRY).write_text(text, encoding="utf-8")
            now = Entry.of(self._source, self._options)
            if now is None or now._path != self._path or now._hashes() != hashes:
                raise DynqError("it has changed since it was read")
        _delete_oldest(self._path.parent)

    def _hashes(self) -> dict[str, str]:
        """The hashes of the files with external data, by their path from the model's folder."""
        from .storage import data_files

        files = sorted(data_files(self._source))
        return {os.path.relpath(file, self._source.parent): sha256(file) for file in files}


def describe() -> str:
    """Returns the folder, the number of its models and their size, or that there is no cache."""
    cache = folder()
    if cache is None:
        return "none"
    entries = _entries(cache)
    return f"{cache}: models {len(entries)}, {sum(size for _, size, _ in entries) / 1e6:.0f} MB"


@functools.cache
def _versions() -> str:
    """The versions that a rewrite depends on, and the state of the code."""
    return " ".join((__version__, str(_state_of_package()), *map(package_version, _PACKAGES)))


def _state_of_package() -> int:
    """The time of the last change of the package's code: in a working copy, it changes without the version."""
    folders = [Path(__file__).parent]
    latest = 0
    while folders:
        with os.scandir(folders.pop()) as files:
            for file in files:
                if file.is_dir():
                    folders.append(Path(file.path))
                elif file.name.endswith(".py"):
                    latest = max(latest, file.stat().st_mtime_ns)
    return latest


def _entries(cache: Path) -> list[tuple[float, int, Path]]:
    """The time of the last use, the size in bytes and the folder of each entry."""
    found = []
    with contextlib.suppress(OSError):
        for entry in cache.iterdir():
            with contextlib.suppress(OSError):
                used = (entry / _ENTRY).stat().st_mtime
                found.append((used, sum(file.stat().st_size for file in entry.iterdir()), entry))
    return found


def _delete_oldest(cache: Path) -> None:
    """Deletes entries, those first that were not used for the longest time, until MOST_BYTES are left.

    What processes that were killed have left is deleted, too.
    """
    delete_unfinished(cache)
    entries = sorted(_entries(cache))
    total = sum(size for _, size, _ in entries)
    for _, size, entry in entries:
        if total <= MOST_BYTES:
            break
        shutil.rmtree(entry, ignore_errors=True)
        total -= size
