"""Exports the attention of architectures of transformers, and of spellings by hand, to models/attention/.

It needs torch, transformers and onnxscript, none of which is needed for the tests:

    pip install torch==2.13.0 transformers==5.24.0 onnxscript onnx
    python models/export_attention.py

With a folder, it writes two layers of networks of usual sizes there, which docs/performance.md times:

    python models/export_attention.py large/

The name of a file says who wrote it: `bert@dynamo`, `bert@dynamo23` (opset 23, operator Attention) or `bert@script`
(TorchScript, opset 17). Each model has one layer with seeded weights; what tools say about sources is removed.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers
from torch import nn

FOLDER = Path(__file__).resolve().parent / "attention"
ENCODER = {
    "vocab_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
}
DECODER = {**ENCODER, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 8,
    "patch_size": 2,
}
WINDOWS = {
    "image_size": 8,
    "patch_size": 1,
    "embed_dim": 16,
    "depths": [2],
    "num_heads": [2],
    "window_size": 4,
    "mlp_ratio": 1.0,
}
REDUCED = {
    "image_size": 8,
    "num_encoder_blocks": 1,
    "depths": [1],
    "sr_ratios": [2],
    "hidden_sizes": [16],
    "patch_sizes": [3],
    "strides": [1],
    "num_attention_heads": [2],
    "mlp_ratios": [1],
    "decoder_hidden_size": 16,
}
SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "conv_dim": (8,),
    "conv_stride": (4,),
    "conv_kernel": (8,),
    "num_feat_extract_layers": 1,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0,
}
CONFORMER = {
    **SPEECH,
    "max_source_positions": 16,
    "position_embeddings_type": "relative",
    "conv_depthwise_kernel_size": 3,
}
GPT = {"vocab_size": 16, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16, "n_inner": 16}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
BERT_OF_POSITIONS = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4}
T5 = {"vocab_size": 16, "d_model": 32, "d_kv": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2}
XGLM = {
    "vocab_size": 16,
    "d_model": 32,
    "num_layers": 1,
    "attention_heads": 2,
    "ffn_dim": 16,
    "max_position_embeddings": 16,
}
XLNET = {"vocab_size": 16, "d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 16}
MODERN = {**ENCODER, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("Bert", ENCODER, "dynamo dynamo23 script"),
    "mpnet": ("MPNet", ENCODER, "dynamo"),
    "deberta": ("DebertaV2", {**ENCODER, **BERT_OF_POSITIONS}, "dynamo script"),
    "esm": ("Esm", {**MODERN, "mask_token_id": 3, "position_embedding_type": "rotary"}, "script"),
    "modernbert": ("ModernBert", {**MODERN, "local_attention": 4}, "dynamo"),
    "gpt2": ("GPT2", GPT, "dynamo dynamo23"),
    "gpt1": ("OpenAIGPT", GPT, "script"),
    "bloom": ("Bloom", {"vocab_size": 16, "hidden_size": 32, "n_layer": 1, "n_head": 2}, "dynamo script"),
    "falcon": ("Falcon", {**ENCODER, "ffn_hidden_size": 16}, "dynamo"),
    "llama": ("Llama", DECODER, "dynamo script"),
    "gemma2": ("Gemma2", {**DECODER, **GEMMA}, "dynamo"),
    "qwen3": ("Qwen3", {**DECODER, "head_dim": 8}, "dynamo script"),
    "xglm": ("XGLM", XGLM, "script"),
    "t5": ("T5", T5, "script"),
    "xlnet": ("XLNet", XLNET, "script"),
    "vit": ("ViT", IMAGE, "dynamo23 script"),
    "swin": ("Swin", WINDOWS, "script"),
    "swinv2": ("Swinv2", WINDOWS, "script"),
    "segformer": ("Segformer", REDUCED, "script"),
    "conformer": ("Wav2Vec2Conformer", CONFORMER, "script"),
}
LARGE_BERT = {"vocab_size": 1000, "num_hidden_layers": 2, "num_attention_heads": 12, "max_position_embeddings": 512}
LARGE_LLAMA = {"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 2816, "pad_token_id": 0}
LARGE: dict[str, tuple[str, dict[str, Any], str]] = {
    "minilm": ("Bert", {**LARGE_BERT, "hidden_size": 384, "intermediate_size": 1536}, "dynamo script"),
    "bert": ("Bert", {**LARGE_BERT, "hidden_size": 768, "intermediate_size": 3072}, "dynamo script"),
    "gpt2": ("GPT2", {"vocab_size": 1000, "n_embd": 768, "n_layer": 2, "n_head": 12}, "dynamo script"),
    "llama": ("Llama", {**LARGE_BERT, **LARGE_LLAMA, "hidden_size": 1024}, "dynamo script"),
}
DECODERS = ("gpt2", "bloom", "falcon", "llama", "gemma2", "qwen3", "xglm")
BY_HAND = ("packed", "single", "channels", "einsum", "bmm", "softcap", "softmax", "mask", "tokens_first")


class Hidden(nn.Module):
    """A network that returns only its first output."""

    def __init__(self, network: nn.Module, *, is_decoder: bool = False, decodes: bool = False) -> None:
        super().__init__()
        self.network, self.is_decoder, self.decodes = network, is_decoder, decodes

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        name = "input_ids" if x.dtype == torch.int64 else "pixel_values" if x.ndim == 4 else "input_values"
        more = {"attention_mask": mask} if mask is not None else {}
        more |= {"use_cache": False} if self.is_decoder or self.decodes else {}
        more |= {"decoder_input_ids": x} if self.decodes else {}
        return self.network(**{name: x}, **more, return_dict=True)[0]


class Cached(nn.Module):
    """A decoder of one layer that appends keys and values to those of earlier runs, which are inputs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, mask: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[Any, ...]:
        cache = transformers.DynamicCache()
        cache.update(k, v, 0)
        found = self.network(input_ids=x, attention_mask=mask, past_key_values=cache, use_cache=True, return_dict=True)
        (layer,) = found.past_key_values.layers
        return found[0], layer.keys, layer.values


class ByHand(nn.Module):
    """A layer of attention in one of the spellings of tutorials."""

    def __init__(self, spelling: str, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.packed, self.spelling, self.heads = nn.Linear(width, 3 * width), spelling, heads
        self.layer = nn.MultiheadAttention(width, heads)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        (batch, tokens, width), heads = x.shape, self.heads
        size, name = width // heads, self.spelling
        if name == "tokens_first":
            y = self.q(x).transpose(0, 1)
            return self.layer(y, y, y, need_weights=False)[0]
        if name == "packed":
            q, k, v = self.packed(x).reshape(batch, tokens, 3, heads, size).permute(2, 0, 3, 1, 4).unbind(0)
            p = ((q * size**-0.5) @ k.transpose(-2, -1)).softmax(-1)
            return self.o((p @ v).transpose(1, 2).reshape(batch, tokens, width))
        q, k, v = self.q(x), self.k(x), self.v(x)
        if name == "single":
            return self.o(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / width**0.5, -1) @ v)
        if name == "channels":
            q, k, v = (each.transpose(1, 2) for each in (q, k, v))
            p = torch.softmax(torch.bmm(q.transpose(1, 2), k) / width**0.5, -1)
            return self.o(torch.bmm(v, p.transpose(1, 2)).transpose(1, 2))
        q, k, v = (each.view(batch, tokens, heads, size) for each in (q, k, v))
        if name == "einsum":
            p = (torch.einsum("bnhd,bmhd->bhnm", q, k) * size**-0.5).softmax(-1)
            return self.o(torch.einsum("bhnm,bmhd->bnhd", p, v).reshape(batch, tokens, width))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if name == "bmm":
            q, k, v = (each.reshape(batch * heads, tokens, size) for each in (q, k, v))
            o = torch.bmm((torch.bmm(q, k.transpose(1, 2)) * size**-0.5).softmax(-1), v)
            return self.o(o.view(batch, heads, tokens, size).transpose(1, 2).reshape(batch, tokens, width))
        s = q @ k.transpose(-2, -1) / size**0.5
        s = s.masked_fill(mask[:, None, None, :] == 0, -1e9) if name == "mask" else s
        s = 3 * torch.tanh(s / 3) if name == "softcap" else s
        e = torch.exp(s - s.amax(-1, keepdim=True))
        p = e / e.sum(-1, keepdim=True) if name == "softmax" else s.softmax(-1)
        return self.o((p @ v).transpose(1, 2).reshape(batch, tokens, width))


def export(
    network: nn.Module, inputs: tuple[torch.Tensor, ...], name: str, exporter: str, folder: Path = FOLDER
) -> None:
    """Writes one model; the first dimension of inputs, and the second of ids, masks and rows, have any length."""
    path, names = folder / f"{name}@{exporter}.onnx", ["x", "mask", "k", "v"][: len(inputs)]
    axes = [{0: "batch"} if each.ndim == 4 else {0: "batch", 1: "tokens"} for each in inputs]
    if len(inputs) == 4:
        axes[1:] = [{0: "batch", 1: "total"}, *({0: "batch", 2: "past"} for _ in range(2))]
    given: dict[str, Any] = {
        "input_names": names,
        "output_names": ["y", "k_out", "v_out"][: 3 if len(inputs) == 4 else 1],
    }
    if exporter.startswith("dynamo"):
        shapes = tuple(dict.fromkeys(each, torch.export.Dim.DYNAMIC) for each in axes)
        given |= {"opset_version": 23} if exporter == "dynamo23" else {}
        torch.onnx.export(
            network, inputs, path, dynamo=True, dynamic_shapes=shapes, external_data=False, verbose=False, **given
        )
    else:
        given |= {"opset_version": 17}
        torch.onnx.export(
            network, inputs, path, dynamo=False, dynamic_axes=dict(zip(names, axes, strict=True)), **given
        )
    model = onnx.load(path)
    model.graph.ClearField("value_info" if exporter.startswith("script") else "metadata_props")
    for each in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.graph.initializer):
        each.ClearField("doc_string")
        if hasattr(each, "metadata_props"):
            each.ClearField("metadata_props")
    for value in (*model.graph.input, *model.graph.output, *model.functions):
        value.ClearField("metadata_props")
    onnx.save(model, path)


def main() -> None:
    """Writes all models."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    ids, mask = torch.arange(12).reshape(2, 6) % 15 + 1, torch.ones(2, 6, dtype=torch.int64)
    inputs: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
        "image_size": lambda: (torch.randn(2, 3, 8, 8),),
        "conv_dim": lambda: (torch.randn(2, 64),),
        "vocab_size": lambda: (ids, mask),
    }
    for name, (architecture, options, exporters) in (ARCHITECTURES if folder == FOLDER else LARGE).items():
        for exporter in exporters.split():
            torch.manual_seed(0)
            config = getattr(transformers, f"{architecture}Config")(**options)
            kind = getattr(transformers, f"{architecture}Model")
            try:
                network = kind._from_config(config, attn_implementation="sdpa")
            except ValueError:  # it has no other implementation
                network = kind._from_config(config, attn_implementation="eager")
            is_decoder = name in DECODERS
            whole = Hidden(network.eval(), is_decoder=is_decoder, decodes=name == "t5")
            export(whole, next(make() for key, make in inputs.items() if key in options), name, exporter, folder)
    for name, heads in (("gpt2", 2), ("llama", 2)) if folder == FOLDER else ():
        architecture, options, _ = ARCHITECTURES[name]
        length = {"n_positions": 64} if name == "gpt2" else {"max_position_embeddings": 64}
        config = getattr(transformers, f"{architecture}Config")(**{**options, **length})
        size = config.hidden_size // config.num_attention_heads
        past = tuple(torch.randn(2, heads, 3, size) for _ in range(2))
        for exporter in ("dynamo", "script"):
            torch.manual_seed(0)
            network = getattr(transformers, f"{architecture}Model")._from_config(config, attn_implementation="sdpa")
            longer = torch.ones(2, 9, dtype=torch.int64)
            export(Cached(network.eval()), (ids, longer, *past), f"{name}_past", exporter, folder)
    for spelling in BY_HAND if folder == FOLDER else ():
        torch.manual_seed(0)
        export(ByHand(spelling).eval(), (torch.randn(2, 6, 32), mask), f"by_hand_{spelling}", "dynamo")


if __name__ == "__main__":
    main()
