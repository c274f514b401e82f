"""Writes the folders beside this file: tiny language models with seeded weights, as onnxruntime-genai's builder does.

    pip install onnxruntime-genai==0.18.0 torch transformers && python tests/genai/build.py

The weights are multiples of 1/16, so that the files compress well. Nothing is downloaded. The folders of GRAPHS have
neither weights nor a tokenizer: genai_folders.filled adds them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).resolve().parent
VOCABULARY, HIDDEN, CONTEXT = 256, 64, 256
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 254,
    "eos_token_id": 255,
    "pad_token_id": 255,
}
_MIXTURE = {"num_hidden_layers": 1, "num_experts_per_tok": 2, "head_dim": 16, "layer_types": ["full_attention"]}
FOLDERS: dict[str, tuple[type[Any], dict[str, Any], dict[str, Any]]] = {
    # the model, its sizes, and options of the builder
    "llama": (transformers.LlamaForCausalLM, {}, {}),
    "qwen": (  # biases of Q, K and V; 4 and 8 bits; zero points
        transformers.Qwen2ForCausalLM,
        {"num_hidden_layers": 1},
        {"algo_config": "k_quant_mixed", "is_symmetric": False},
    ),
    "phi": (  # no accuracy level
        transformers.Phi3ForCausalLM,
        {"num_hidden_layers": 1, "original_max_position_embeddings": CONTEXT},
        {"accuracy_level": 0},
    ),
    "gpt_oss": (  # experts with biases; the builder writes no accuracy level for them, which 8 bits need not
        transformers.GptOssForCausalLM,
        {**_MIXTURE, "intermediate_size": 64, "num_local_experts": 4, "sliding_window": 4},
        {"moe_quant_type": "int8", "windowed_kv_cache": False},
    ),
    "qwen_moe": (  # a shared expert; positions in three rows
        transformers.Qwen3_5MoeForConditionalGeneration,
        {
            **_MIXTURE,
            "moe_intermediate_size": 64,
            "num_experts": 4,
            "shared_expert_intermediate_size": 64,
            "rope_parameters": {
                "partial_rotary_factor": 0.5,
                "rope_theta": 10000.0,
                "rope_type": "default",
                "mrope_section": [2, 1, 1],
            },
        },
        {"moe_quant_type": "int8"},
    ),
}
_TIED = {"num_hidden_layers": 1, "tie_word_embeddings": True}
_WIDE = {"num_hidden_layers": 1, "hidden_size": 128, "intermediate_size": 256}  # enough weights to quantize
GRAPHS: dict[str, tuple[type[Any], dict[str, Any], str, dict[str, Any]]] = {
    # the model, its sizes, the precision, and options of the builder
    "float32": (transformers.Qwen2ForCausalLM, {**_WIDE, **_TIED, "vocab_size": 1024}, "fp32", {}),
    # with fewer heads of keys and values, the builder's float16 models for CPUs do not decode in ONNX Runtime 1.32
    "float16": (transformers.LlamaForCausalLM, {**_WIDE, "num_key_value_heads": 4}, "fp16", {}),
    "tied": (transformers.Qwen2ForCausalLM, _TIED, "int4", {}),
    "tied8": (transformers.Qwen2ForCausalLM, _TIED, "int4", {"algo_config": "k_quant_mixed"}),
    "qdq": (transformers.LlamaForCausalLM, {"num_hidden_layers": 1}, "int4", {"use_qdq": True}),
    "cache8": (
        transformers.LlamaForCausalLM,
        {"num_hidden_layers": 1},
        "int4",
        {"kv_cache_quant_scheme": "int8_per_channel"},
    ),
    "cache4": (
        transformers.LlamaForCausalLM,
        {"num_hidden_layers": 1},
        "int4",
        {"kv_cache_quant_scheme": "int4_per_channel"},
    ),
}
_VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "num_position_embeddings": 16}


def write_tokenizer(folder: Path) -> None:
    """Writes a tokenizer: its tokens are 254 of the 256 bytes, and two special ones."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: VOCABULARY - 2]
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)


def _made_of(name: str) -> tuple[type[Any], dict[str, Any], str, dict[str, Any]]:
    """The model, its sizes, the precision, and options of the builder."""
    if name in GRAPHS:
        return GRAPHS[name]
    kind, sizes, options = FOLDERS[name]
    return kind, sizes, "int4", options


def configuration(name: str) -> Any:
    """The configuration of a model."""
    kind, sizes, _, _ = _made_of(name)
    given = {**_SIZES, **sizes}
    if name == "qwen_moe":  # a text model inside one of texts and images
        return kind.config_class(text_config=given, vision_config={**_VISION, "out_hidden_size": HIDDEN})
    return kind.config_class(**given)


def add_experts(source: Path) -> None:
    """Adds the codes of experts of 4-bit floats, which checkpoints of GPT-OSS have."""
    (file,) = source.glob("*.safetensors")
    tensors = load_file(file)
    for name in ("gate_up_proj", "down_proj"):
        bias = tensors[f"model.layers.0.mlp.experts.{name}_bias"]
        shape = *bias.shape, HIDDEN // 32
        tensors[f"model.layers.0.mlp.experts.{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
        tensors[f"model.layers.0.mlp.experts.{name}_scales"] = torch.randint(123, 125, shape, dtype=torch.uint8)
    save_file(tensors, file, metadata={"format": "pt"})


def write(name: str) -> None:
    """Writes the folder of one model."""
    kind, _, precision, options = _made_of(name)
    torch.manual_seed(0)
    model = kind(configuration(name))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            spread = 0.25 if parameter.ndim > 1 else 0.1
            drawn = torch.randn(parameter.shape) * spread + (1.0 if "norm" in key else 0.0)
            parameter.copy_((drawn * 16).round() / 16)
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "source")
        model.save_pretrained(source)
        if name == "gpt_oss":
            add_experts(source)
        write_tokenizer(source)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(target)]
        command += ["-p", precision, "-e", "cpu", "-c", os.path.join(work, "cache")]
        if "kv_cache_quant_scheme" in options:
            scales = [[0.25] * (HIDDEN // 2)]  # one layer, two heads
            Path(work, "scales.json").write_text(json.dumps({"scales": {"k_scales": scales, "v_scales": scales}}))
            options = {**options, "kv_cache_scale_file": os.path.join(work, "scales.json")}
        further = ["hf_token=false", *(f"{key}={value}" for key, value in options.items())]
        subprocess.run([*command, "--extra_options", *further], check=True)
    if name in GRAPHS:
        for file in target.iterdir():
            if file.name not in ("model.onnx", "genai_config.json"):
                file.unlink()


if __name__ == "__main__":
    for each in sys.argv[1:] or (*FOLDERS, *GRAPHS):
        write(each)
