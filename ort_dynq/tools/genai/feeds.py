"""Generates inputs of a decoder. Their shapes depend on each other: new tokens, a mask, past keys and values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import DynqError
from ...inputs import DTYPES, Array
from .folder import CONFIG, Folder

# The names that onnxruntime-genai uses if the configuration has none. %d is the number of a layer.
_INPUTS = {
    "input_ids": "input_ids",
    "embeddings": "inputs_embeds",
    "attention_mask": "attention_mask",
    "position_ids": "position_ids",
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
}
_CODES = {"tensor(int8)": np.int8, "tensor(uint8)": np.uint8}  # of caches of 8 bits, and of 4 bits in pairs
_OUTPUTS = {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
_PAIRS = (("past_key_names", "present_key_names"), ("past_value_names", "present_value_names"))


def decoder_feeds(
    folder: Folder,
    declared: Sequence[Any],
    *,
    tokens: int,
    past: int,
    in_place: bool = False,
    is_empty: bool = False,
    given: Mapping[str, Array] | None = None,
    seed: int = 0,
) -> dict[str, Array]:
    """Returns seeded inputs of the decoder: one sequence of random tokens after random keys and values.

    Args:
        folder: The folder.
        declared: The inputs of a session of the decoder.
        tokens: The number of new tokens.
        past: The number of tokens before them.
        in_place: Whether the past keys and values have room for those of the new tokens, see :func:`shared_outputs`.
        is_empty: Whether the past keys and values have no tokens; only the mask and the positions tell of earlier ones.
        given: The values of some inputs, by name.
        seed: The seed.

    Raises:
        DynqError: The decoder has another input. Its values are not known.
    """
    names = _names(folder, "inputs", _INPUTS)
    rng, given = np.random.default_rng(seed), given or {}
    length = 0 if is_empty else past + tokens if in_place else past

    def values(each: Any) -> Array:
        if each.name == names["input_ids"]:
            return rng.integers(0, _size(folder, "model", "vocab_size"), (1, tokens))
        if each.name == names["embeddings"]:
            return rng.standard_normal((1, tokens, _size(folder, "model", "decoder", "hidden_size")))
        if each.name == names["attention_mask"]:
            return np.ones((1, past + tokens))
        if each.name == names["position_ids"]:
            positions = np.arange(past, past + tokens)[None]
            return np.stack([positions] * 3) if len(each.shape) == 3 else positions  # of texts, all three are equal
        if any(_layer(names[key], each.name) for key, _ in _PAIRS):
            _, heads, _, head_size = each.shape if len(each.shape) == 4 else 4 * [None]
            if not isinstance(heads, int):
                heads = _size(folder, "model", "decoder", "num_key_value_heads")
            if not isinstance(head_size, int):
                head_size = _size(folder, "model", "decoder", "head_size")
            shape = 1, heads, length, head_size
            return _codes(rng, each.type, shape) if each.type in _CODES else rng.standard_normal(shape)
        raise DynqError(
            f"the values of the decoder's input {each.name} are not known; give --input {each.name}=FILE.npy"
        )

    feeds = {}
    for each in declared:
        if each.name not in given and each.type not in DTYPES:
            raise DynqError(f"the decoder's input {each.name} is of type {each.type}, which cannot be generated")
        try:
            feeds[each.name] = given[each.name] if each.name in given else values(each).astype(DTYPES[each.type])
        except (MemoryError, ValueError) as error:
            raise DynqError(f"the decoder's input {each.name} cannot be generated: {error}") from error
    return feeds


def shared_outputs(folder: Folder, inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[str, str]:
    """Returns those of :func:`cache_outputs` that the decoder writes to the buffer of the input.

    It is empty if onnxruntime-genai does not share buffers for this folder.

    Args:
        folder: The folder.
        inputs, outputs: The inputs and outputs of a session of the decoder.
    """
    return cache_outputs(folder, inputs, outputs) if folder.shares_buffers else {}


def cache_outputs(folder: Folder, inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[str, str]:
    """Returns the past keys and values, by the name of the present ones, which are the past ones of the next token.

    Args:
        folder: The folder.
        inputs, outputs: The inputs and outputs of a session of the decoder.
    """
    pasts, presents = _names(folder, "inputs", _INPUTS), _names(folder, "outputs", _OUTPUTS)
    found = {}
    for past, present in _PAIRS:
        layers = {layer: each.name for each in inputs if (layer := _layer(pasts[past], each.name))}
        for each in outputs:
            if (layer := _layer(presents[present], each.name)) in layers:
                found[each.name] = layers[layer]
    return found


def input_name(folder: Folder, key: str) -> str:
    """Returns the name of an input of the decoder, by its key in genai_config.json, such as input_ids."""
    return _names(folder, "inputs", _INPUTS)[key]


def _codes(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    dtype = np.dtype(_CODES[kind])
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _names(folder: Folder, section: str, defaults: Mapping[str, str]) -> dict[str, str]:
    given = folder.config["model"]["decoder"].get(section)
    texts = {key: name for key, name in (given if isinstance(given, dict) else {}).items() if isinstance(name, str)}
    return {**defaults, **texts}


def _layer(pattern: str, name: str) -> str | None:
    """Returns the number of the layer in the name of an input or output; None if it does not have the pattern."""
    before, _, after = pattern.partition("%d")
    match = re.fullmatch(rf"{re.escape(before)}(\d+){re.escape(after)}", name)
    return match[1] if match else None


def _size(folder: Folder, *keys: str) -> int:
    value: Any = folder.config
    for key in keys:
        value = value.get(key)
    if not isinstance(value, int) or value < 1:
        raise DynqError(f"{folder.path / CONFIG} has no {'.'.join(keys)}, which the inputs of the decoder depend on")
    return value
