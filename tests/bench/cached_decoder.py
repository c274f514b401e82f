"""A decoder in torch: its cache of keys and values holds int8 codes with a scale for each token and head, or floats.

It is of the Llama kind: RMSNorm, rotary positions, one matrix for query, key and value. :func:`export` writes it to
ONNX. Inputs: `tokens` int64 [1, new], and for each layer `past_key_0`, [1, heads, past, size], `past_key_scale_0`,
float32 [1, heads, past, 1], and the same for the value; a cache of floats has no scales. Outputs: `logits` float32
[1, new, vocabulary], and `key_0` and so on: the past and the new tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ort_dynq.inputs import Array
from ort_dynq.tools.measuring.progress import Track

from .texts import library_texts

VOCABULARY = 128
"""Tokens are bytes of ASCII."""
_BATCH, _LENGTH, _RATE = 4, 128, 2e-3


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns int8 codes and a scale for each row."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return torch.round(x / scale).clamp(-127, 127).to(torch.int8), scale


class Layer(nn.Module):
    """A layer: attention over the cache and the new tokens, and two linear layers."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(hidden, 1e-6), nn.RMSNorm(hidden, 1e-6)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 4 * hidden, bias=False), nn.Linear(4 * hidden, hidden, bias=False)

    def forward(
        self, x: Tensor, cosine: Tensor, sine: Tensor, seen: Tensor, past: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Returns the result and the new cache: key and value, or their codes, each with its scales."""
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        q, k = (
            (each * cosine + torch.cat([-each.chunk(2, -1)[1], each.chunk(2, -1)[0]], -1) * sine) for each in (q, k)
        )
        new = (k, v) if len(past) < 4 else (*quantize(k), *quantize(v))
        cache = tuple(torch.cat(pair, 2) for pair in zip(past, new, strict=True)) if past else new
        if len(cache) == 4:
            codes_of_key, scale_of_key, codes_of_value, scale_of_value = cache
            key, value = codes_of_key.to(x.dtype) * scale_of_key, codes_of_value.to(x.dtype) * scale_of_value
        else:
            key, value = cache
        scores = (q @ key.transpose(-1, -2)) * q.shape[-1] ** -0.5
        p = torch.softmax(torch.where(seen, scores, -torch.inf), -1)
        x = x + self.out((p @ value).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.second(x)))), cache


class Decoder(nn.Module):
    """The decoder.

    Args:
        hidden, heads, layers: Its sizes.
        longest: The number of positions.
    """

    def __init__(self, hidden: int, heads: int, layers: int, longest: int = 8192) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(hidden, 1e-6), nn.Linear(hidden, VOCABULARY, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        size = hidden // heads
        angles = torch.outer(torch.arange(longest), 10000.0 ** -(torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Returns the logits and the new cache. The past has 4 tensors a layer, 2 if they are floats, or is empty."""
        each = len(past) // len(self.layers)
        before, new = past[0].shape[2] if past else 0, tokens.shape[1]
        positions = torch.arange(before, before + new)
        seen = torch.arange(before + new)[None] <= positions[:, None]
        x, caches = self.embedding(tokens), []
        for i, layer in enumerate(self.layers):
            x, cache = layer(x, self.cosine[positions], self.sine[positions], seen, past[i * each : (i + 1) * each])
            caches += cache
        return self.head(self.norm(x)), *caches


def names_of_cache(layers: int, *, is_float: bool) -> list[str]:
    """Returns the names of the cache's tensors, in their order."""
    kinds = ("key", "value") if is_float else ("key", "key_scale", "value", "value_scale")
    return [f"{kind}_{i}" for i in range(layers) for kind in kinds]


def export(model: Decoder, *, is_float: bool) -> onnx.ModelProto:
    """Exports a decoder, with any numbers of past and of new tokens.

    Args:
        model: The decoder.
        is_float: Whether the cache holds floats.
    """
    layers, (heads, size) = len(model.layers), (model.layers[0].heads, model.cosine.shape[1])
    names = names_of_cache(layers, is_float=is_float)
    past = [
        torch.zeros(
            1,
            heads,
            5,
            1 if "scale" in name else size,
            dtype=torch.float32 if is_float or "scale" in name else torch.int8,
        )
        for name in names
    ]
    shapes = ({1: torch.export.Dim("new")}, tuple({2: torch.export.Dim("past")} for _ in past))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.eval(),
            (torch.zeros(1, 3, dtype=torch.int64), *past),
            input_names=["tokens", *(f"past_{name}" for name in names)],
            output_names=["logits", *names],
            dynamic_shapes=shapes,
            opset_version=20,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model_proto: onnx.ModelProto = program.model_proto
    return model_proto


def held_out() -> Array:
    """Returns the bytes of the documents that :func:`train` does not read, uint8."""
    return _bytes(library_texts().held_out)


def _bytes(documents: Sequence[str]) -> Array:
    return np.frombuffer("\n".join(documents).encode("ascii", "ignore"), np.uint8)


def train(steps: int, track: Track = iter) -> Decoder:
    """Returns a decoder of 4 layers with hidden size 256 that has read bytes of English text (texts.py).

    Args:
        steps: The number of steps, with 512 bytes each.
        track: Shows the progress.
    """
    torch.manual_seed(0)
    model = Decoder(256, 4, 4)
    text = _bytes(library_texts().training)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps, pct_start=0.1)
    for step in track(range(steps)):
        starts = np.random.default_rng([0, step]).integers(0, len(text) - _LENGTH - 1, _BATCH)
        tokens = torch.from_numpy(np.stack([text[start : start + _LENGTH + 1] for start in starts]).astype(np.int64))
        logits = model(tokens[:, :-1])[0]
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model
