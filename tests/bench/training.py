"""Trains a small language model of the Llama kind, and exports it with the builder of onnxruntime-genai.

Its text is the documentation of Python's standard library (texts.py). Seeds are fixed, one thread computes, and nothing
is downloaded. Training takes about 15 minutes on a CPU with AVX2. It computes with float32: products of bfloat16 are 12
times slower on CPUs without AVX512_BF16. If it is interrupted, the same command continues it, with the same result.

A folder of a model contains:

* ``torch/``: the trained model and its tokenizer, as transformers stores them;
* ``held_out.npy``: int64 [tokens], the tokens of the documents that are not trained with;
* ``float32/`` and ``int4-BLOCK-level-LEVEL/``: folders of onnxruntime-genai with float32 weights, and with MatMulNBits.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ort_dynq.errors import DynqError
from ort_dynq.files import replacing, replacing_folder, temporary_folder
from ort_dynq.inputs import Array
from ort_dynq.tools.measuring.progress import Track

from .texts import library_texts

TORCH, HELD_OUT, FLOAT32 = "torch", "held_out.npy", "float32"
UNFINISHED = ".training"  # FOLDER.training has the state of an interrupted training
STEPS = 500
BLOCKS, LEVELS = (32, 128), (0, 4)
CONTEXT = 512
_BATCH = 4
_VOCABULARY = 2048
_PEAK_RATE, _WARM_UP = 3e-3, 40
_SAVED_STEPS = 20  # a state is saved after so many steps
_SIZES = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_BEGIN, _END = "<s>", "</s>"
_NEEDED = ("torch", "transformers", "tokenizers", "onnxruntime_genai", "onnx_ir")


def int4_folder(block: int, level: int) -> str:
    """Returns the name of the folder with MatMulNBits of this block size and accuracy level."""
    return f"int4-{block}-level-{level}"


def train(folder: Path, *, steps: int = STEPS, track: Track = iter) -> None:
    """Trains the model and exports it.

    Args:
        folder: A new folder. It appears when all is done. Before that, a file beside it, with the suffix
            :data:`UNFINISHED`, has the state of the training, from which the next call with as many steps continues.
        steps: The number of steps, with 2048 tokens each.
        track: Shows the progress.

    Raises:
        DynqError: The folder exists, a package is missing, or a command of the builder fails.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise DynqError(f"{', '.join(missing)} not found; pip install torch transformers onnxruntime-genai")
    if folder.exists():
        raise DynqError(f"{folder} exists; remove it, or give another folder")
    state = folder.with_name(folder.name + UNFINISHED)
    with replacing_folder(folder) as new:
        _train(new, steps, state, track)
        _export(new, FLOAT32, "fp32", [])
        for block in BLOCKS:
            for level in LEVELS:
                options = [f"block_size={block}", f"accuracy_level={level}"]
                _export(new, int4_folder(block, level), "int4", options)
    state.unlink(missing_ok=True)


def _import(name: str) -> Any:
    """Imports a package that only this module needs; its types are not checked."""
    return importlib.import_module(name)


def _train(folder: Path, steps: int, state: Path, track: Track) -> None:
    torch, transformers = _import("torch"), _import("transformers")
    torch.set_num_threads(1)
    texts = library_texts()
    tokenizer = _tokenizer(texts.training)
    training, held_out = (_tokens(tokenizer, documents) for documents in (texts.training, texts.held_out))
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=_VOCABULARY,
            max_position_embeddings=CONTEXT,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
            tie_word_embeddings=False,
            **_SIZES,
        )
    )
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=_PEAK_RATE, betas=(0.9, 0.95))
    done = 0
    if state.exists():
        saved = torch.load(state, weights_only=True)
        if saved["steps"] == steps:
            done = saved["done"]
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
    for step in track(range(done, steps)):
        for group in optimizer.param_groups:
            group["lr"] = _rate(step, steps)
        # The parts of the text depend on the step only: a training that continues reads those that are left.
        starts = np.random.default_rng([0, step]).integers(0, len(training) - CONTEXT, _BATCH)
        tokens = torch.from_numpy(np.stack([training[start : start + CONTEXT] for start in starts]))
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % _SAVED_STEPS == 0 or step + 1 == steps:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            with replacing(state) as new:
                torch.save({"steps": steps, "done": step + 1, **parts}, new)
    model.save_pretrained(folder / TORCH)
    tokenizer.save_pretrained(folder / TORCH)
    np.save(folder / HELD_OUT, held_out)


def _rate(step: int, steps: int) -> float:
    """The learning rate: linear to its peak, then half a cosine to zero."""
    warm_up = min(_WARM_UP, steps // 2)
    if step < warm_up:
        return _PEAK_RATE * (step + 1) / warm_up
    return _PEAK_RATE * (0.5 + 0.5 * math.cos(math.pi * (step - warm_up) / (steps - warm_up)))


def _tokenizer(documents: Sequence[str]) -> Any:
    """Returns a tokenizer of transformers: pairs of bytes, learned from the documents."""
    tokenizers = _import("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[_BEGIN, _END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return _import("transformers").PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=_BEGIN, eos_token=_END)


def _tokens(tokenizer: Any, documents: Sequence[str]) -> Array:
    """Returns all documents as int64 [tokens], each after a token that marks its beginning."""
    encoded = tokenizer(list(documents), add_special_tokens=False)["input_ids"]
    return np.concatenate([np.array([tokenizer.bos_token_id, *each], np.int64) for each in encoded])


def _export(folder: Path, name: str, precision: str, options: Sequence[str]) -> None:
    """Runs the builder of onnxruntime-genai.

    Raises:
        DynqError: It fails.
    """
    with temporary_folder() as cache:
        command = [
            sys.executable,
            "-m",
            "onnxruntime_genai.models.builder",
            "-p",
            precision,
            "-e",
            "cpu",
            "-c",
            str(cache),
        ]
        command += ["-i", str(folder / TORCH), "-o", str(folder / name), "--extra_options", "hf_token=false", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise DynqError(f"onnxruntime_genai.models.builder cannot write {name}: {last}")
