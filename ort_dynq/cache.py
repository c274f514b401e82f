"""Keeps the models that sessions have rewritten, in a folder of the user.

Each entry is a folder. Its name is a hash of what the rewritten model follows from: the content of the model's file,
the options, and the versions of ort_dynq and onnxruntime. It has `model.onnx`, unless nothing was rewritten, and
`entry.json` with hashes of the files with external data, and the versions of the packages that rewrite: where they are
missing, any version will do. The cache never makes a session fail: whatever goes wrong with an entry, the model is
rewritten again. What others than the user may have written is not opened, see trusted.py.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import trusted
from .errors import DynqError
from .files import delete_unfinished, delete_unlocked, is_inside, locked, replacing, replacing_folder, sha256
from .operators import DOMAIN
from .session_options import taken
from .system import package_version
from .version import __version__

if TYPE_CHECKING:
    from .rewriter import Result
    from .storage import Model

_LOG = logging.getLogger(__name__)

FOLDER = "ORT_DYNQ_CACHE"
"""The environment variable that names the folder; ``0`` turns the cache off."""

MAX_BYTES = 8 << 30
"""The size from which on the entries that were not used for the longest time are deleted."""

_TOOLS = ("onnx", "onnx-ir")
"""The packages that a rewritten model depends on, and that a session of one does not need."""

_MODEL, _ENTRY, _NOTE, _LOCKS = "model.onnx", "entry.json", ".note.json", "*.lock"
_MAX_TEXT = 64 << 20  # bytes of entry.json, with the hashes of some 100,000 files


def folder() -> Path | None:
    """Returns the folder of the cache, which may not exist yet; None if the cache is turned off."""
    named = os.environ.get(FOLDER, "")
    if named == "0":
        return None
    if named:
        named = os.path.expanduser(named)
        return None if named.startswith("~") else Path(os.path.abspath(named))  # the folder of no user
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
    base = os.path.expanduser(base or "~/.cache")
    return Path(base, "ort_dynq") if os.path.isabs(base) else None  # somebody without a home


@dataclass(frozen=True)
class Found:
    """What the cache has of a model.

    Attributes:
        path: The rewritten model; None if nothing was rewritten, so that the model itself is opened.
        facts: What is known of the rewrite, as plain data for JSON; see :func:`facts_of`.
        version: A number of the entry, which changes when it is written again.
    """

    path: Path | None
    facts: Mapping[str, Any] = field(compare=False)
    version: int


class Entry:
    """The place in the cache of a model, rewritten with certain options."""

    def __init__(self, source: Path | bytes, options: str, path: Path) -> None:
        self._source, self._options, self._path = source, options, path

    @classmethod
    def of(cls, model: object, options: str) -> Entry | None:
        """Returns the entry of a model.

        Args:
            model: The model, in any form.
            options: The options that the rewritten model depends on.

        Returns:
            The entry; None if the model is neither bytes nor a file that can be read, or the cache is turned off.
        """
        cache = folder()
        if cache is None:
            return None
        try:
            if isinstance(model, bytes):
                source: Path | bytes = model
                content = hashlib.sha256(model).hexdigest()
            elif isinstance(model, str | os.PathLike) and os.path.isfile(model):
                source = Path(os.path.abspath(model))
                content = sha256(source)
            else:
                return None
            key = hashlib.sha256(f"{_versions()} {options} {content}".encode())
        except Exception as error:  # a session does not fail because of its cache
            _LOG.info("the cache is not used: %s", error)
            return None
        return cls(source, options, cache / key.hexdigest())

    def find(self) -> Found | None:
        """Returns what the cache has of the model; None without an entry, or if others may have written it."""
        try:
            found = self._find()
            with contextlib.suppress(OSError):  # the cache may be read-only
                os.utime(self._path / _ENTRY)
        except FileNotFoundError:
            return None
        except Exception as error:  # a session does not fail because of its cache
            _LOG.info("an entry of the cache is not used: %s", error or type(error).__name__)
            return None
        if found is not None:
            _LOG.info("%s is opened as %s", self._name, found.path or "it is")
        return found

    def _find(self) -> Found | None:
        trusted.check_folder(self._path.parent)
        trusted.check_folder(self._path)
        entry = json.loads(trusted.read(self._path / _ENTRY, _MAX_TEXT))
        if any(_installed(tool) not in (None, version) for tool, version in entry["packages"].items()):
            return None
        if not all(map(self._is_as_it_was, entry["external data"].items())):
            return None
        path = None
        if entry["rewritten"]:
            path = self._path / _MODEL
            for file in self._path.iterdir():  # also those of its weights
                trusted.check_file(file)
        return Found(path, dict(entry["facts"]), os.stat(self._path).st_ino)

    def _is_as_it_was(self, item: tuple[str, str]) -> bool:
        """Whether a file with external data has the hash that it had when the model was rewritten."""
        name, content = item
        if isinstance(self._source, bytes) or not is_inside(name):
            return False
        file = self._source.parent / name
        return os.path.isfile(file) and sha256(file) == content

    def keep(
        self, rewrite: Callable[[], Result], may_be_source: bool = True, damaged: Found | None = None
    ) -> Result | Found:
        """Rewrites the model and writes the entry, unless another thread or process does: then its entry is awaited.

        Args:
            rewrite: Rewrites the model.
            may_be_source: Whether the model itself will do if the report says that nothing is rewritten.
            damaged: An entry that could not be opened.

        Returns:
            The result of `rewrite`, whether or not the entry could be written; or the entry of the other.
        """
        with self._alone():
            found = self.find()
            if found is not None and found != damaged:
                return found
            try:
                hashes = self._hashes()
            except Exception:  # the model may be wrong in any way, which the rewrite says
                return rewrite()
            result = rewrite()
            try:
                self._write(result, bool(result.report.rewritten) or not may_be_source, hashes)
            except Exception as error:  # a session does not fail because of its cache
                _LOG.info("%s is not kept in the cache: %s", self._name, error)
            return result

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the lock of the entry in the block, if the cache can be written."""
        with contextlib.ExitStack() as stack:
            try:
                self._make_folder()
                stack.enter_context(locked(self._path.with_suffix(_LOCKS[1:])))
            except Exception as error:  # a session does not fail because of its cache
                _LOG.info("the cache cannot be written: %s", error)
            yield

    def _make_folder(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        trusted.check_folder(self._path.parent)

    def _write(self, result: Result, is_rewritten: bool, hashes: dict[str, str]) -> None:
        from .storage import tensors

        if is_rewritten and (size := sum(tensor.nbytes for tensor in tensors(result.model))) > MAX_BYTES:
            raise DynqError(f"it has {size} bytes")
        self._make_folder()
        with replacing_folder(self._path) as entry:
            if is_rewritten:
                result.save(entry / _MODEL)
            self._describe(entry, is_rewritten, hashes, facts_of(self._source, result))
            now = Entry.of(self._source, self._options)
            if now is None or now._path != self._path or now._hashes() != hashes:
                raise DynqError("it has changed since it was read")
        _delete_oldest(self._path.parent)

    def _describe(self, entry: Path, is_rewritten: bool, hashes: dict[str, str], facts: Mapping[str, Any]) -> None:
        content = {
            "source": self._name,
            "rewritten": is_rewritten,
            "external data": hashes,
            "packages": {tool: _installed(tool) for tool in _TOOLS},
            "facts": facts,
        }
        (entry / _ENTRY).write_text(json.dumps(content), encoding="utf-8")
        trusted.make_private(entry)

    def keep_reason(self, summary: str) -> None:
        """Writes an entry that says why there is no other model. It is found as one without a path."""
        try:
            self._make_folder()
            with replacing_folder(self._path) as entry:
                self._describe(entry, False, self._hashes(), {"summary": summary})
        except Exception as error:  # a session does not fail because of its cache
            _LOG.info("%s is not kept in the cache: %s", self._name, error)

    def note(self) -> dict[str, Any]:
        """Returns what was noted on the model beside its entry; nothing without a note."""
        try:
            trusted.check_folder(self._path.parent)
            found = json.loads(trusted.read(self._note, _MAX_TEXT))
            return found if isinstance(found, dict) else {}
        except Exception:  # a session does not fail because of its cache
            return {}

    def write_note(self, content: Mapping[str, Any]) -> None:
        """Notes something on the model, in place of what was noted before."""
        try:
            self._make_folder()
            with replacing(self._note) as file:
                file.write_text(json.dumps(content), encoding="utf-8")
                os.chmod(file, 0o600)
        except Exception as error:  # a session does not fail because of its cache
            _LOG.info("nothing is noted on %s: %s", self._name, error)

    @property
    def _note(self) -> Path:
        return self._path.with_suffix(_NOTE)

    def _hashes(self) -> dict[str, str]:
        """The hashes of the files with external data, by their path from the model's folder.

        Raises:
            DynqError: It is no model, or bytes with external data: the session's options may name their folder.
        """
        from .storage import data_files, files_of, load

        if isinstance(self._source, bytes):
            if files_of(load(self._source)):
                raise DynqError("it has external data, but no folder")
            return {}
        files = sorted(data_files(self._source))
        return {os.path.relpath(file, self._source.parent): sha256(file) for file in files}

    @property
    def _name(self) -> str:
        return f"a model of {len(self._source)} bytes" if isinstance(self._source, bytes) else str(self._source)


def facts_of(source: Model, result: Result) -> dict[str, Any]:
    """Returns what is known of a rewrite, or a quantization, as plain data for JSON.

    Args:
        source: The model that was rewritten.
        result: The result.

    Returns:
        `summary`: the report in one line. `integer products`, `float products`: see
        :attr:`ort_dynq.rewriter.report.Report.products`. `rewritten before`: whether the source has ort_dynq's
        operators already. `initializers`: the names of those that values were taken of. If something was rewritten,
        also `all initializers`: the names of the source's, and `classifiers`: the names of the outputs that are a
        classifier's scores.
    """
    from .classifiers import is_classifier
    from .graphs import graphs
    from .storage import load

    report = result.report
    integers, floats = report.products
    before = any(operator.startswith(f"{DOMAIN}.") for operator in report.before)
    facts: dict[str, Any] = {"summary": report.summary, "integer products": integers, "float products": floats}
    facts |= {"rewritten before": before, "initializers": taken(result.model.metadata_props)}
    facts |= {"all initializers": [], "classifiers": []}
    if report.rewritten:
        model = load(source)
        facts["all initializers"] = [name for _, graph in graphs(model) for name in getattr(graph, "initializers", ())]
        facts["classifiers"] = [output.name for output in model.graph.outputs if is_classifier(output)]
    return facts


def describe() -> str:
    """Returns the folder, the number of its models and their size, or that there is no cache, or why it is not used."""
    cache = folder()
    if cache is None:
        return "none"
    if os.path.lexists(cache):
        try:
            trusted.check_folder(cache)
        except (DynqError, OSError) as error:
            return f"not used: {error}"
    entries = _entries(cache)
    return f"{cache}: models {len(entries)}, {sum(size for _, size, _ in entries) / 1e6:.0f} MB"


@functools.cache
def _versions() -> str:
    """The versions that a rewrite depends on, and the state of the code."""
    return " ".join((__version__, _hash_of_code(), package_version("onnxruntime")))


def _hash_of_code() -> str:
    """A hash of the package's code: in a working copy, it changes without the version."""
    found = hashlib.sha256()
    package = Path(__file__).parent
    for file in sorted(package.rglob("*.py")):
        found.update(f"{file.relative_to(package).as_posix()} {sha256(file)}\n".encode())
    return found.hexdigest()


def _installed(distribution: str) -> str | None:
    """The installed version of a distribution; None if there is none."""
    try:
        return package_version(distribution)
    except ImportError:
        return None


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
    """Deletes entries, those first that were not used for the longest time, until MAX_BYTES are left.

    What processes that were killed have left is deleted, too.
    """
    delete_unfinished(cache)
    delete_unlocked(cache, _LOCKS)
    entries = sorted(_entries(cache))
    total = sum(size for _, size, _ in entries)
    for _, size, entry in entries:
        if total <= MAX_BYTES:
            break
        shutil.rmtree(entry, ignore_errors=True)
        entry.with_suffix(_NOTE).unlink(missing_ok=True)
        total -= size
