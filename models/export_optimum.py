"""Writes decoders as they are published: exported by Optimum, quantized by quantize_dynamic of ONNX Runtime.

One table is the embedding and the head. `optimum_whisper` is merged by Optimum, then quantized; `optimum_t5` is
quantized, then merged. Weights are seeded.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
import transformers
from _common import Array, Example, main
from onnxruntime.quantization import QuantType, quantize_dynamic
from optimum.exporters.onnx import onnx_export_from_model  # type: ignore[import-untyped]
from optimum.onnx import merge_decoders  # type: ignore[import-untyped]

WORDS, WIDTH, HEADS, HIDDEN = 2048, 32, 2, 48
FRAMES, TOKENS, PAST = 6, 1, 4  # of the encoder, of the text, before it
SIZES = {"vocab_size": WORDS, "pad_token_id": 0, "eos_token_id": 1}
ENCODER = {"d_model": WIDTH, "encoder_layers": 1, "decoder_layers": 1, "decoder_start_token_id": 2}
WHISPER = {
    **{f"{part}_attention_heads": HEADS for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": HIDDEN for part in ("encoder", "decoder")},
    "max_target_positions": 32,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
T5 = {"d_model": 128, "vocab_size": 512, "d_kv": 8, "d_ff": 16, "num_heads": HEADS}


def export(model: transformers.PreTrainedModel, task: str, folder: Path) -> None:
    """Writes a model with seeded weights, with past keys and values."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.normal_(0, 0.2, generator=generator)
    onnx_export_from_model(
        model.eval(), folder, task=f"{task}-with-past", monolith=False, do_validation=False, opset=18
    )


def quantized(path: Path, kind: QuantType, *, per_channel: bool = False) -> Path:
    result = path.with_suffix(".quantized.onnx")
    quantize_dynamic(path, result, weight_type=kind, per_channel=per_channel, extra_options={"EnableSubgraph": True})
    return result


def example(path: Path) -> Example:
    """Returns a decoder and its inputs: a token after others."""
    model, rng = onnx.load(path), np.random.default_rng(2)
    inputs = list[Array]()
    for value in model.graph.input:
        lengths = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
        if value.name == "input_ids":
            inputs.append(rng.integers(2, T5["vocab_size"], (1, TOKENS)))
        elif value.name == "encoder_attention_mask":
            inputs.append(np.array([[1] * (FRAMES - 1) + [0]]))
        elif value.name == "use_cache_branch":
            inputs.append(np.array([True]))
        else:  # states of the encoder, or keys and values
            lengths[-2] = FRAMES if "encoder" in value.name else PAST
            inputs.append(rng.normal(0, 1, lengths).astype(np.float32))
    return Example(model, inputs)


def whisper() -> Example:
    config = transformers.WhisperConfig(**SIZES, **ENCODER, **WHISPER, bos_token_id=2)
    with tempfile.TemporaryDirectory() as folder:
        model = transformers.WhisperForConditionalGeneration(config)
        export(model, "automatic-speech-recognition", Path(folder))
        return example(quantized(Path(folder, "decoder_model_merged.onnx"), QuantType.QInt8))


def t5() -> Example:
    config = transformers.T5Config(**{**SIZES, **T5}, num_layers=1, num_decoder_layers=1, decoder_start_token_id=0)
    with tempfile.TemporaryDirectory() as folder:
        export(transformers.T5ForConditionalGeneration(config), "text2text-generation", Path(folder))
        names = ("decoder_model.onnx", "decoder_with_past_model.onnx")
        parts = [quantized(Path(folder, name), QuantType.QUInt8, per_channel=True) for name in names]
        merged = Path(folder, "merged.onnx")
        merge_decoders(*parts, save_path=merged, strict=False)
        return example(merged)


if __name__ == "__main__":
    main({"optimum_whisper": whisper, "optimum_t5": t5})
