"""Paths that are given as ONNX models and are none: what they are, by their first bytes, and what to do.

Nothing here loads a library of graphs or numbers, so a wrong path is an error at once.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from .errors import DynqError

_EXPORT = "load it there and export it with torch.onnx.export(model, inputs, 'model.onnx', dynamo=True)"
_AGAIN = "copy or download it again"
_PICKLE = "a pickle of Python, as scikit-learn writes models; convert the model to ONNX, with skl2onnx for example"
_PYTORCH = f"a file of PyTorch, which has weights and Python code instead of an ONNX graph; {_EXPORT}"

# The first bytes of a format: where they are, what they are, what the file is and the remedy.
_FORMATS = (
    (0, b"version https://git-lfs", "a pointer of Git LFS instead of the file; run `git lfs pull` in its repository"),
    (0, b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", _PYTORCH),  # the number with which torch.save began before 1.6
    *((0, bytes((0x80, protocol)), _PICKLE) for protocol in (2, 3, 4, 5)),
    (
        *(4, b"ORTM"),
        "a model in ONNX Runtime's own format (.ort), which cannot be converted; give the .onnx file behind it",
    ),
    (4, b"TFL3", "a model of TensorFlow Lite; convert it: python -m tf2onnx.convert --tflite IN --output model.onnx"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes them; convert the model with tf2onnx.convert.from_keras"),
    (0, b"GGUF", "a model of llama.cpp (GGUF), which has weights without a graph; export the original to ONNX"),
    (0, b"\x1f\x8b", "compressed by gzip; unpack it with gunzip"),
    (0, bytes(64), f"zeros; {_AGAIN}"),
)
_SAMPLE = 4096
_MAX_NAMES = 3


def check_file(path: str | os.PathLike[str], role: str = "") -> None:
    """Checks that a path can be that of a model. The content of the file is not checked.

    Args:
        path: The path.
        role: The name of the model in messages: A or B.

    Raises:
        DynqError: There is no file, or it is a folder, another thing that is not a file, or empty.
    """
    what = f"{role} ({os.fspath(path)})" if role else os.fspath(path)
    if os.path.isdir(path):
        raise DynqError(f"{what} is a folder; {models_in(path)}")
    if not os.path.lexists(path):
        raise DynqError(f"{role} ({os.fspath(path)}) is not a file" if role else f"there is no file {what}")
    if not os.path.isfile(path):  # reading a FIFO would block
        raise DynqError(f"{what} is not an ONNX model: it is not a file")
    if not os.path.getsize(path):
        raise DynqError(f"{what} is not an ONNX model: it is empty; {_AGAIN}")


def models_in(folder: str | os.PathLike[str]) -> str:
    """Returns the advice to give a model of this folder instead: it names those in it, or one folder below."""
    root = Path(folder)
    found = sorted(root.glob("*.onnx")) or sorted(root.glob("*/*.onnx"))
    if not found:
        return "give a model, a .onnx file; there is none in it"
    names = ", ".join(map(str, found[:_MAX_NAMES])) + (", ..." if len(found) > _MAX_NAMES else "")
    return f"give the model in it: {names}" if len(found) == 1 else f"give one of the models in it: {names}"


def format_of(path: str | os.PathLike[str]) -> str:
    """Returns what a file is that is no ONNX model, and what to do: ``a text file; ...``.

    The text is empty if the format is not known or the file cannot be read.
    """
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            sample = file.read(_SAMPLE)
        if not sample:
            return f"empty; {_AGAIN}"
        for start, magic, found in _FORMATS:
            if sample[start : start + len(magic)] == magic:
                return found
        if zipfile.is_zipfile(path):
            return _archive(path)
    except (OSError, zipfile.BadZipFile):
        return ""
    if sample[8:9] == b"{" and 0 < int.from_bytes(sample[:8], "little") < size:
        return "a file of safetensors, which has weights without a graph; export the model to ONNX"
    return _text(sample) or _incomplete(path, size)


def _archive(path: str | os.PathLike[str]) -> str:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(name.rpartition("/")[2] == "data.pkl" for name in names):
        return _PYTORCH
    models = [name for name in names if name.endswith(".onnx")]
    return f"a ZIP archive; unpack it{f' and give its file {models[0]}' if models else ''}"


def _text(sample: bytes) -> str:
    text = sample.decode("utf-8", errors="ignore")  # the sample may end within a character
    if len(text.encode()) < len(sample) - 3 or not all(c.isprintable() or c.isspace() for c in text):
        return ""
    if text.lstrip().lower().startswith(("<!doctype html", "<html")):
        return "an HTML page, perhaps the page about the file; download the file itself"
    begin = " ".join(text.split())[:60]
    return f"a text file that begins with '{begin}'; {_AGAIN}"


def _incomplete(path: str | os.PathLike[str], size: int) -> str:
    """Recognizes a ModelProto with a last field that is longer than the file."""
    integers, lengths = {1, 5}, {2, 3, 4, 6, 7, 8, 14, 20, 25, 26}  # fields of a ModelProto, by their wire type
    at = 0
    with open(path, "rb") as file:
        while at < size:
            file.seek(at)
            head = file.read(20)  # a key and a number, each of at most 10 bytes
            key, begin = _varint(head, 0)
            number, end = _varint(head, begin)
            if key & 7 == 0 and key >> 3 in integers:
                at += end
            elif key & 7 == 2 and key >> 3 in lengths:
                at += end + number
            else:
                return ""
    return f"cut off: it has {size} bytes of at least {at}; {_AGAIN}" if at > size else ""


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Decodes a number of a protocol buffer; returns it and the position after it."""
    value = shift = 0
    for byte in content[at:]:
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return value, at
