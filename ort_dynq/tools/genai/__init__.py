"""Rewrites and quantizes folders of onnxruntime-genai: a genai_config.json, ONNX models and the files of a tokenizer.

onnxruntime-genai registers the library that the session options in genai_config.json name as ``custom_ops_library``. It
refuses libraries outside of the model's folder, also behind symbolic links, so the folder gets a copy of ort_dynq's.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import DynqError
from ...files import contains, reason, replacing_folder
from ...inputs import Array
from ...library import get_library_path
from ...quantizer import NoWeightsError, quantize_layers
from ...quantizer.options import Options
from ...rewrite_options import WEIGHTS_ONLY, RewriteOptions
from ...rewriter import Result, rewrite
from ...shown import Shown, Table
from ...storage import data_files, save
from ..measuring.sessions import SessionError, open_session, run
from ..verification.verification import Verification, verify
from .feeds import decoder_feeds
from .folder import CONFIG, Folder, open_folder

if TYPE_CHECKING:
    from ...backends.options import Backend

_TOKENS = 8  # of a verification: new ones, and earlier ones


@dataclass(frozen=True, repr=False)
class FolderResult(Shown):
    """The rewritten or quantized models of a folder.

    Attributes:
        folder: The original.
        results: The new model and the report of each file, the decoder first.
    """

    folder: Folder
    results: Mapping[str, Result]

    def _line(self) -> str:
        return "; ".join(f"{name}: {each.report.summary}" for name, each in self.results.items())

    def _tables(self) -> Iterator[Table]:
        for each in self.results.values():
            yield from each.report._tables()

    def require_plugin(self) -> None:
        """Removes the functions from all models: see :meth:`ort_dynq.rewriter.Result.require_plugin`."""
        for each in self.results.values():
            each.require_plugin()

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes a folder that ``onnxruntime_genai.Model(path)`` opens. It appears in one step.

        It contains the new models with their weights, the library, the configuration that names it, and copies
        of all other files except hidden ones.

        Args:
            path: The new folder.
            force: Whether it may replace a folder that has a genai_config.json.

        Raises:
            DynqError: See :func:`check_target`; or a file cannot be written.
        """
        target = check_target(self.folder.path, Path(path), force=force)
        for result in self.results.values():
            result.check()
        library = Path(get_library_path())
        config = json.dumps(self.folder.config_with(library.name), indent=4, ensure_ascii=False)
        copies = [name for name in self.folder.files() if name not in self._replaced()]
        try:
            with replacing_folder(target) as temporary:
                for name in (*copies, *self.results):
                    (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                for name in copies:
                    shutil.copyfile(self.folder.path / name, temporary / name)
                shutil.copyfile(library, temporary / library.name)
                (temporary / CONFIG).write_text(config, encoding="utf-8")
                for name, result in self.results.items():
                    save(result.model, temporary / name, apart=True)
        except OSError as error:
            raise DynqError(f"{path} cannot be written: {reason(error)}") from error

    def _replaced(self) -> set[str]:
        """The files that are not copied: the models, and their weights unless another model in the folder has them."""
        root = self.folder.path
        others = [root / name for name in self.folder.files() if name.endswith(".onnx") and name not in self.results]
        weights = {file for name in self.results for file in data_files(root / name)}
        unused = {file for file in weights if not any(contains(other, file.name.encode()) for other in others)}
        return {*self.results, CONFIG, *(os.path.relpath(file, root) for file in unused)}


def rewrite_folder(
    path: str | os.PathLike[str],
    *,
    exact: bool = False,
    fuse: bool = False,
    weights_only: str = WEIGHTS_ONLY[0],
    keep_fused: bool = False,
) -> FolderResult:
    """Rewrites every model of a folder of onnxruntime-genai.

    Args:
        path: The folder. It is not changed.
        exact, fuse, weights_only, keep_fused: As for :func:`ort_dynq.rewrite`.

    Raises:
        DynqError: The folder has no valid genai_config.json, a model is missing or not valid, or the folder is not for
            CPUs, needs another library of operators, or has links out of the folder.
    """
    folder = _checked_folder(path)
    options = RewriteOptions(exact=exact, fuse=fuse, weights_only=weights_only, keep_fused=keep_fused)
    return FolderResult(folder, {name: rewrite(folder.path / name, **options.arguments) for name in folder.models})


def quantize_folder(path: str | os.PathLike[str], options: Options | None = None) -> FolderResult:
    """Quantizes every model of a folder of onnxruntime-genai, as :func:`ort_dynq.quantize` does.

    A model without weights stays as it is.

    Args:
        path: The folder. It is not changed.
        options: How layers are quantized; None for 8 bits.

    Raises:
        DynqError: As for :func:`rewrite_folder`; or a model cannot be quantized, see :func:`ort_dynq.quantize`.
    """
    folder = _checked_folder(path)
    found = {name: _quantized(folder.path / name, options or Options()) for name in folder.models}
    if not any(found.values()):
        raise NoWeightsError(f"no model of {path} has weights to quantize")
    return FolderResult(folder, {name: result for name, result in found.items() if result is not None})


def _quantized(model: Path, options: Options) -> Result | None:
    """Quantizes a model; None if it has no weights."""
    try:
        return quantize_layers(model, options)
    except NoWeightsError:
        return None


def _checked_folder(path: str | os.PathLike[str]) -> Folder:
    """Opens a folder; what would prevent the new one is an error before the work.

    Raises:
        DynqError: See :func:`rewrite_folder`.
    """
    folder = open_folder(path)
    folder.config_with(Path(get_library_path()).name)
    folder.files()
    return folder


def verify_folder(
    found: FolderResult, *, inputs: Mapping[str, Array] | None = None, seed: int = 0, backend: Backend = "native"
) -> dict[str, Verification]:
    """Verifies every rewritten model as :func:`ort_dynq.verify` does, and returns the results by file.

    The decoder runs on new tokens after keys and values of as many earlier ones. Other models run on generated inputs.

    Args:
        found: The rewritten models.
        inputs: The values of some inputs of the decoder, by name. Others are generated.
        seed: The seed of the generated values.
        backend: See :func:`ort_dynq.register`.

    Raises:
        DynqError: A model cannot be verified. The message names it.
    """
    folder, results = found.folder, {}
    for name, result in found.results.items():
        original, feeds = folder.path / name, None
        try:
            if name == folder.decoder:
                feeds = verification_feeds(folder, given=inputs, seed=seed)
                feeds.update(inputs or {})
            results[name] = _generated(verify(original, result.model, inputs=feeds, seed=seed, backend=backend), inputs)
        except DynqError as error:
            raise DynqError(f"{name} cannot be verified: {error}") from error
    return results


def verification_feeds(folder: Folder, *, given: Mapping[str, Array] | None = None, seed: int = 0) -> dict[str, Array]:
    """Returns inputs of the decoder: new tokens after keys and values of as many earlier ones.

    A decoder that takes only one token after earlier ones gets a prompt.

    Args:
        folder: The folder. Its decoder is one model.
        given: The values of some inputs, by name. Others are generated.
        seed: The seed of the generated values.

    Raises:
        DynqError: See :func:`decoder_feeds`.
    """
    assert folder.decoder is not None
    session = open_session(folder.path / folder.decoder, "A")

    def feeds(past: int) -> dict[str, Array]:
        return decoder_feeds(folder, session.get_inputs(), tokens=_TOKENS, past=past, given=given, seed=seed)

    if not given:
        try:
            run(session, [session.get_outputs()[0].name], feeds(_TOKENS))
        except (DynqError, SessionError):
            return feeds(0)
    return feeds(_TOKENS)


def _generated(verification: Verification, given: Mapping[str, Array] | None) -> Verification:
    """Marks the inputs that were generated here as generated."""
    return replace(
        verification, inputs=tuple(replace(each, given=each.name in (given or {})) for each in verification.inputs)
    )


def check_target(source: Path, target: Path, *, force: bool) -> Path:
    """Checks the path of an output folder, and returns it with symbolic links followed.

    Args:
        source: The input folder.
        target: The output folder.
        force: Whether it may replace a folder that has a genai_config.json.

    Raises:
        DynqError: It is the input, contains it or is in it; it is not empty; or it cannot be there.
    """
    original, resolved = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if resolved == original:
        raise DynqError(f"{target} is the input itself; choose another folder")
    if original in resolved.parents or resolved in original.parents:
        raise DynqError(f"one of {source} and {target} contains the other; choose another folder")
    if not resolved.parent.is_dir():
        raise DynqError(f"there is no folder {resolved.parent} to write {resolved.name} in")
    if resolved.exists() and not resolved.is_dir():
        raise DynqError(f"{target} is a file; the input is a folder, so choose the name of a folder")
    if resolved.is_dir() and any(resolved.iterdir()):
        if not force:
            raise DynqError(f"{target} is not empty; use --force to replace it, or choose another folder")
        if not (resolved / CONFIG).is_file():
            raise DynqError(f"{target} is not empty and has no {CONFIG}, so it is not replaced; choose another folder")
    return resolved
