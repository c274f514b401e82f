"""Folders of onnxruntime-genai: language models. The public names of `ort_dynq/tools/genai`."""

from __future__ import annotations

from .tools import packages  # noqa: F401
from .tools.genai import FolderResult, check_target, quantize_folder, rewrite_folder, verification_feeds, verify_folder
from .tools.genai.feeds import decoder_feeds, shared_outputs
from .tools.genai.folder import CONFIG, Folder, open_folder

__all__ = [
    "CONFIG",
    "Folder",
    "FolderResult",
    "check_target",
    "decoder_feeds",
    "open_folder",
    "quantize_folder",
    "rewrite_folder",
    "shared_outputs",
    "verification_feeds",
    "verify_folder",
]
