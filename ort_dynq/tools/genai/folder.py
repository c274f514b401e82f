"""The folders of onnxruntime-genai: their genai_config.json and the ONNX models that it names."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import DynqError
from ...files import is_inside, reason
from ...formats import models_in

CONFIG = "genai_config.json"
_LIBRARY = "custom_ops_library"
_OF_CPUS = ("cpu", "cpuexecutionprovider")


@dataclass(frozen=True)
class Folder:
    """A folder of onnxruntime-genai.

    Attributes:
        path: The folder.
        config: The content of its genai_config.json.
        models: The paths, relative to the folder, of the ONNX models that the configuration names, the decoder first.
    """

    path: Path
    config: dict[str, Any]
    models: tuple[str, ...]

    @property
    def decoder(self) -> str | None:
        """The one of `models` that generates tokens; None if that is a pipeline of several models."""
        name = self.config["model"]["decoder"].get("filename")
        return name if isinstance(name, str) else None

    @property
    def context_length(self) -> int | None:
        """The largest number of tokens of a prompt and its continuation; None if it is not known."""
        length = self.config["model"].get("context_length")
        return length if isinstance(length, int) and length > 0 else None

    @property
    def shares_buffers(self) -> bool:
        """Whether the decoder appends keys and values in place: past and present are the same buffers."""
        search = self.config.get("search")
        return isinstance(search, dict) and search.get("past_present_share_buffer") is True

    def files(self) -> list[str]:
        """Returns the paths of all files, relative to the folder, except hidden ones.

        Raises:
            DynqError: An entry is not a file or a folder; for example, it is a link to a missing file. Or it is a link
                out of the folder: a folder from an untrusted source must not copy other files.
        """
        found = []
        for root, folders, names in os.walk(self.path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(name for name in names if not name.startswith(".")):
                if not os.path.isfile(os.path.join(root, name)):
                    raise DynqError(f"{os.path.join(root, name)} is not a file, so it cannot be copied; remove it")
                _check_link(Path(root, name), self.path)
                found.append(os.path.relpath(os.path.join(root, name), self.path))
            for name in folders:
                if os.path.islink(os.path.join(root, name)):
                    raise DynqError(f"{os.path.join(root, name)} is a link to a folder; copy the folder itself there")
        return found

    def config_with(self, library: str) -> dict[str, Any]:
        """Returns the configuration with a library of operators in the session options of every model.

        Models without options of their own have those of the decoder.

        Args:
            library: The name of a file in the folder.

        Raises:
            DynqError: The configuration already names another library.
        """
        config = copy.deepcopy(self.config)
        config["model"]["decoder"].setdefault("session_options", {})
        for options in _session_options(config):
            other = options.get(_LIBRARY)
            if other and (not isinstance(other, str) or os.path.basename(other) != library):
                raise DynqError(
                    f"{self.path / CONFIG} already has {_LIBRARY} {other}, and onnxruntime-genai loads one library; "
                    "remove this entry if the models do not need it"
                )
            options[_LIBRARY] = library
        return config


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """Reads the configuration of a folder.

    Args:
        path: The folder.

    Raises:
        DynqError: The folder has no valid genai_config.json, a model is missing, one of these files is a link out of
            the folder, or the models are not for CPUs.
    """
    root = Path(path)
    file = root / CONFIG
    if not root.is_dir():
        raise DynqError(f"{root} is not a folder" if root.exists() else f"there is no folder {root}")
    if not file.is_file():
        raise DynqError(f"{root} has no {CONFIG}, so it is not a folder of onnxruntime-genai; {models_in(root)}")
    _check_link(file, root)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        copy.deepcopy(config)  # raises an error here, and not later, if it is nested too deeply
    except OSError as error:
        raise DynqError(f"{file} cannot be read: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise DynqError(f"{file} is not valid JSON: {error}") from error
    for names in (("model",), ("model", "decoder")):
        section = config
        for name in names:
            section = section.get(name) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            raise DynqError(f"{file} has no section {'.'.join(names)}")
    if not isinstance(config["model"]["decoder"].get("session_options", {}), dict):
        raise DynqError(f"{file}: model.decoder.session_options is not an object")
    for options in _session_options(config):
        for provider in _providers(options):
            if provider.lower() not in _OF_CPUS:
                raise DynqError(
                    f"{file} is for the provider {provider}, and ort_dynq's operators run on CPUs: build the model "
                    "for CPUs (--execution_provider cpu)"
                )
    return Folder(root, config, _models(config, root))


def _models(config: dict[str, Any], root: Path) -> tuple[str, ...]:
    decoder = config["model"]["decoder"]
    named = [each.get("filename") for each in (decoder, *_sections(config["model"]))]
    models = tuple(dict.fromkeys(name for name in named if isinstance(name, str) and name.endswith(".onnx")))
    if not models:
        raise DynqError(f"{root / CONFIG} names no model: model.decoder.filename has to be a .onnx file")
    for name in models:
        if not is_inside(name):
            raise DynqError(f"{root / CONFIG} names the model {name}, which is not in the folder; copy it there")
        if not (root / name).is_file():
            raise DynqError(f"{root / CONFIG} names the model {name}, but there is no file {root / name}")
        _check_link(root / name, root)
    return models


def _check_link(file: Path, root: Path) -> None:
    real = Path(os.path.realpath(file))
    if not real.is_relative_to(os.path.realpath(root)):
        raise DynqError(
            f"{file} is a link out of the folder, to {real}; if you trust its links, copy the folder with the files "
            f"that they lead to (cp -rL {root} COPY) and give the copy"
        )


def _sections(value: Any) -> Iterator[dict[str, Any]]:
    """Yields all dictionaries in a value, also nested ones: a pipeline is a list of dictionaries."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _sections(each)


def _session_options(config: dict[str, Any]) -> list[dict[str, Any]]:
    found = (section.get("session_options") for section in _sections(config["model"]))
    return [options for options in found if isinstance(options, dict)]


def _providers(options: dict[str, Any]) -> Iterator[str]:
    """Yields the names of execution providers: ``{"cuda": {…}}`` in provider_options, and in newer versions a list."""
    given, names = options.get("provider_options"), options.get("providers")
    for each in given if isinstance(given, list) else ():
        yield from each if isinstance(each, dict) else ()
    yield from map(str, names if isinstance(names, list) else ())
