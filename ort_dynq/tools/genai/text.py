"""Reads the tokens of a text with the tokenizer of a folder, which onnxruntime-genai uses as well."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np

from ...errors import DynqError, message
from ...files import check_text, reason, temporary_folder
from ...inputs import Array
from ...system import advice_on_extensions
from .folder import Folder

_CONFIG, _TOKENIZER = "tokenizer_config.json", "tokenizer.json"
# The name that transformers 5 writes, and the older name of the same class, which onnxruntime-extensions knows.
_CLASS, _NEW_CLASS, _OLD_CLASS = "tokenizer_class", "TokenizersBackend", "PreTrainedTokenizerFast"
_IDS = "or give the numbers of the tokens as an array of integers, FILE.npy"


def read_tokens(folder: Folder, path: str | os.PathLike[str]) -> Array:
    """Returns the tokens of a text, int64 [tokens].

    Args:
        folder: The folder, which has the tokenizer.
        path: A text in UTF-8; or the numbers of the tokens, integers [tokens], as a .npy file.

    Raises:
        DynqError: The file cannot be read, or the tokenizer cannot be used.
    """
    check_text(path)
    if os.fspath(path).endswith(".npy"):
        return _checked(_read_array(path), folder, path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise DynqError(f"{path} cannot be read: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise DynqError(f"{path} is not a text in UTF-8: {error}") from error
    return _checked(_tokenized(folder.path, text), folder, path)


def _checked(tokens: Array, folder: Folder, path: str | os.PathLike[str]) -> Array:
    count = folder.config["model"].get("vocab_size")
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise DynqError(f"{path} has {tokens.dtype} {list(tokens.shape)}, expected integers [tokens]")
    if tokens.size and (tokens.min() < 0 or (isinstance(count, int) and tokens.max() >= count)):
        raise DynqError(f"{path} has tokens that the model does not have: its tokens are 0 to {count} - 1")
    return tokens.astype(np.int64)


def _read_array(path: str | os.PathLike[str]) -> Array:
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise DynqError(f"{path} cannot be read: {error}") from error


def _tokenized(root: Path, text: str) -> Array:
    try:
        from onnxruntime_extensions.pp_api import Tokenizer
    except ModuleNotFoundError as error:
        raise DynqError(
            f"a text needs the tokenizers of onnxruntime-extensions: {advice_on_extensions()}, {_IDS}"
        ) from error
    except ImportError as error:
        raise DynqError(
            f"this onnxruntime-extensions has no tokenizers: {error}; install another version, {_IDS}"
        ) from error
    try:
        config = json.loads((root / _CONFIG).read_text(encoding="utf-8"))
        with temporary_folder() as temporary:
            known = root
            if isinstance(config, dict) and config.get(_CLASS) == _NEW_CLASS:
                shutil.copyfile(root / _TOKENIZER, Path(temporary, _TOKENIZER))
                Path(temporary, _CONFIG).write_text(json.dumps({**config, _CLASS: _OLD_CLASS}), encoding="utf-8")
                known = Path(temporary)
            return np.array(Tokenizer(str(known)).tokenize(text), np.int64)
    except (OSError, ValueError, RuntimeError) as error:
        raise DynqError(f"the tokenizer of {root} cannot be used: {message(error)}; {_IDS}") from error
