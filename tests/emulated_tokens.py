"""Generates tokens by rewritten folders: on any CPU the same, which `.ci/emulated` checks.

`python tests/emulated_tokens.py write tokens.json` rewrites folders, runs them on this CPU, and adds the tokens to the
file under the name of the instruction set. With `check` they must be those in the file, and one of the instruction sets
that wrote them must be another one than that which checks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import genai_folders
import numpy as np

from ort_dynq import kernels
from ort_dynq.genai import rewrite_folder
from ort_dynq.tools.genai.decoding import Decoder
from ort_dynq.tools.genai.folder import open_folder

# MatMulNBits of level 4, behind DequantizeLinear, with a tied embedding; experts; a cache of codes.
FOLDERS = ("llama", "qdq", "tied", "gpt_oss", "qwen_moe", "cache8")
PROMPTS, TOKENS = (2, 8), 12


def tokens_of(name: str) -> list[list[int]]:
    """Returns the tokens that the rewrite of a folder generates from seeded prompts."""
    with TemporaryDirectory() as work:
        source, target = Path(work, "source"), Path(work, "target")
        make = genai_folders.filled if name in genai_folders.GRAPHS else genai_folders.copy_of
        rewrite_folder(make(name, source)).save(target)
        prompts = np.random.default_rng(0).integers(0, genai_folders.VOCABULARY, PROMPTS)
        decoder = Decoder(open_folder(target), target / "model.onnx", name, backend="native")
        found: list[list[int]] = decoder.generate(prompts, TOKENS).tolist()
        return found


if __name__ == "__main__":
    command, file, isa = sys.argv[1], Path(sys.argv[2]), kernels.isa()
    found = {name: tokens_of(name) for name in FOLDERS}
    written = json.loads(file.read_text()) if file.exists() else {}
    if command == "write":
        file.write_text(json.dumps(written | {isa: found}))
    else:
        for other, expected in written.items():
            different = [name for name in FOLDERS if found[name] != expected[name]]
            assert not different, f"{isa}: other tokens of {', '.join(different)} than with {other}"
        assert set(written) - {isa}, f"only {isa} wrote tokens to {file}: nothing to compare with"
        print(f"{isa}: the tokens of {len(FOLDERS)} folders are those of {', '.join(written)}")
