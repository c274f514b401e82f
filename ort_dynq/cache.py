"""Keeps the models that InferenceSession has rewritten, in a folder of the user.

Each entry is a folder. Its name is a hash of what the rewritten model follows from: the content of the model's file,
the options, and the versions of ort_dynq and onnxruntime. It has `model.onnx`, unless nothing was rewritten, and
`entry.json` with the sizes and times of the files with external data, whose content is not hashed. The cache never
makes a session fail: whatever goes wrong with an entry, the model is rewritten again.
"""

from __future__ import annotations

import contextlib
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
from .files import replacing_folder
from .version import __version__

if TYPE_CHECKING:
    from .rewriter import Result

_LOG = logging.getLogger(__name__)

FOLDER = "ORT_DYNQ_CACHE"
"""The environment variable that names the folder; ``0`` turns the cache off."""

MOST_BYTES = 8 << 30
"""The size from which on the entries that were not used for the longest time are deleted."""

_MODEL, _ENTRY = "model.onnx", "entry.json"


def folder() -> Path | None:
    """Returns the folder of the cache, which may not exist yet; None if the cache is turned off."""
    named = os.environ.get(FOLDER, "")
    if named == "0":
        return None
    if named:
        return Path(named)
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

    def __init__(self, source: Path, path: Path) -> None:
        self._source, self._path = source, path

    @classmethod
    def of(cls, model: object, options: str) -> Entry | None:
        """Returns the entry of a model.

        Args:
            model: The model, in any form.
            options: The options that the rewritten model depends on.

        Returns:
            The entry; None if the model is no file that can be read, or the cache is turned off.
        """
        import onnxruntime as ort

        cache = folder()
        if cache is None or not isinstance(model, str | os.PathLike):
            return None
        source = Path(os.path.abspath(model))
        key = hashlib.sha256(f"{__version__} {_state_of_package()} {ort.__version__} {options}\n".encode())
        try:
            with open(source, "rb") as file:
                while part := file.read(1 << 20):
                    key.update(part)
        except OSError:
            return None
        return cls(source, cache / key.hexdigest())

    def find(self) -> Path | None:
        """Returns the file to open, which is the model's own if nothing is rewritten in it; None without an entry."""
        try:
            entry = json.loads((self._path / _ENTRY).read_text("utf-8"))
            files = {self._source.parent / name: state for name, state in entry["external data"].items()}
            if any(_state(file) != state for file, state in files.items()):
                return None
            os.utime(self._path / _ENTRY)
            path = self._path / _MODEL if entry["rewritten"] else self._source
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            return None
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
        from .storage import data_files

        try:
            # Read before the rewrite: files that change meanwhile are then not those of the entry.
            states = {os.path.relpath(file, self._source.parent): _state(file) for file in data_files(self._source)}
        except (OSError, ValueError, DynqError):
            return rewrite()
        result = rewrite()
        is_rewritten = bool(result.report.rewritten) or not may_be_source
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing_folder(self._path) as entry:
                if is_rewritten:
                    result.save(entry / _MODEL)
                text = json.dumps({"source": str(self._source), "rewritten": is_rewritten, "external data": states})
                (entry / _ENTRY).write_text(text, "utf-8")
            _delete_oldest(self._path.parent)
        except (OSError, DynqError) as error:
            _LOG.info("%s is not kept in the cache: %s", self._source, error)
        return result


def describe() -> str:
    """Returns the folder, the number of its models and their size, or that there is no cache."""
    cache = folder()
    if cache is None:
        return "none"
    entries = _entries(cache)
    return f"{cache}, {len(entries)} models, {sum(size for _, size, _ in entries) / 1e6:.0f} MB"


def _state(file: Path) -> list[int]:
    """The size and the time of the last change."""
    found = file.stat()
    return [found.st_size, found.st_mtime_ns]


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
    """Deletes entries, those first that were not used for the longest time, until MOST_BYTES are left."""
    entries = sorted(_entries(cache))
    total = sum(size for _, size, _ in entries)
    for _, size, entry in entries:
        if total <= MOST_BYTES:
            break
        shutil.rmtree(entry, ignore_errors=True)
        total -= size
