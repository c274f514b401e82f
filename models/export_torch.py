"""Writes models with the two exporters of torch.onnx.export: dynamo and TorchScript.

More than 450 lines: the modules of all models, each a few lines, and the list of models.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxscript.optimizer
import torch
import torch.ao.quantization.fx._decomposed  # registers torch.ops.quantized_decomposed
from _common import Array, Example, activations, main
from bench.cached_decoder import VOCABULARY, Decoder
from bench.cached_decoder import export as export_decoder
from torch import Tensor, nn
from torch.nn import functional as F

_MIN_WEIGHTS = 100


def export(
    build: Callable[[], nn.Module],
    *inputs: Array,
    dynamo: bool = True,
    opset: int = 20,
    names: tuple[str, ...] = ("x",),
    dynamic: dict[str, dict[int, str]] | None = None,
    translations: dict[Any, Callable[..., Any]] | None = None,
    fold: bool = True,
) -> Example:
    """Exports the module that `build` returns, in eval mode, with seeded weights.

    `dynamic` names dynamic axes. `translations` are for operators that the dynamo exporter does not know. Without
    `fold`, it does not fold weights, as it does not fold large ones.
    """
    torch.manual_seed(0)
    module = build().eval()
    arguments = tuple(torch.from_numpy(array) for array in inputs)
    options: dict[str, Any] = {"input_names": list(names), "opset_version": opset, "dynamo": dynamo}
    if dynamic and dynamo:
        options["dynamic_shapes"] = tuple(
            {axis: torch.export.Dim(dim, min=1) for axis, dim in dynamic.get(name, {}).items()} for name in names
        )
    elif dynamic:
        options["dynamic_axes"] = dynamic
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if dynamo:
            program = torch.onnx.export(
                module,
                arguments,
                verbose=False,
                custom_translation_table=translations,
                optimize=fold,
                **options,
            )
            assert program is not None
            if not fold:
                limits = {"input_size_limit": _MIN_WEIGHTS, "output_size_limit": _MIN_WEIGHTS}
                onnxscript.optimizer.optimize(program.model, **limits)
            return Example(program.model_proto, inputs)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            torch.onnx.export(module, arguments, path, **options)
            return Example(onnx.load(path), inputs)


# Fake quantization: exporters turn torch.fake_quantize_* into QuantizeLinear and DequantizeLinear.


def fake_quantize_u8(x: Tensor) -> Tensor:
    """Asymmetric, per tensor, to uint8."""
    low = x.min().clamp(max=0.0)
    high = x.max().clamp(min=0.0)
    scale = ((high - low) / 255).clamp(min=1e-8)
    zero_point = (-low / scale).round().clamp(0, 255).to(torch.int32)
    return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, 0, 255)


def fake_quantize_s8_asymmetric(x: Tensor) -> Tensor:
    """Asymmetric, per tensor, to int8."""
    low = torch.clamp(x.min(), max=0.0)
    high = torch.clamp(x.max(), min=0.0)
    scale = ((high - low) / 255.0).clamp(min=1e-8)
    zero_point = (-128 - torch.round(low / scale)).clamp(-128, 127).to(torch.int32)
    return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, -128, 127)


def fake_quantize_s8(x: Tensor) -> Tensor:
    """Symmetric, per tensor, to int8."""
    scale = x.abs().max().clamp(min=1e-8) / 127
    return torch.fake_quantize_per_tensor_affine(x, scale, torch.zeros(1, dtype=torch.int32)[0], -128, 127)


def fake_quantize_channel(x: Tensor, axis: int) -> Tensor:
    """Symmetric, per channel along `axis`, to int8."""
    others = [other for other in range(x.dim()) if other != axis]
    scale = x.abs().amax(dim=others).clamp(min=1e-8) / 127
    return torch.fake_quantize_per_channel_affine(x, scale, torch.zeros_like(scale, dtype=torch.int32), axis, -128, 127)


def fake_quantize_channel_u8(x: Tensor, axis: int) -> Tensor:
    """Asymmetric, per channel along `axis`, to uint8."""
    others = [other for other in range(x.dim()) if other != axis]
    low = x.amin(dim=others).clamp(max=0.0)
    high = x.amax(dim=others).clamp(min=0.0)
    scale = ((high - low) / 255).clamp(min=1e-8)
    zero_point = (-low / scale).round().clamp(0, 255).to(torch.int32)
    return torch.fake_quantize_per_channel_affine(x, scale, zero_point, axis, 0, 255)


class QuantizedLinear(nn.Module):
    """A linear layer that applies `quantize` to its input."""

    def __init__(self, quantize: Callable[[Tensor], Tensor], inputs: int, outputs: int) -> None:
        super().__init__()
        self.quantize = quantize
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(self.quantize(x))
        return y


class Activation(nn.Module):
    """`quantize`, followed by Relu."""

    def __init__(self, quantize: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.quantize = quantize

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.quantize(x))


class Int8Linear(nn.Module):
    """A linear layer with int8 weights, one scale per output channel; the graph dequantizes them."""

    weight: Tensor
    scale: Tensor
    zero_point: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        weight = torch.randn(outputs, inputs) / inputs**0.5
        scale = weight.abs().amax(dim=1) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("zero_point", torch.zeros(outputs, dtype=torch.int8))
        self.bias = nn.Parameter(torch.randn(outputs) / 8)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.ops.quantized_decomposed.dequantize_per_channel(
            self.weight, self.scale, self.zero_point, 0, -128, 127, torch.int8
        )
        y: Tensor = x @ weight.t() + self.bias
        return y


class EncoderLayer(nn.Module):
    """A pre-norm transformer encoder layer. `quantize` precedes linear layers, `inner` is inside the attention."""

    def __init__(
        self, width: int, heads: int, quantize: Callable[[Tensor], Tensor], inner: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.heads = heads
        self.quantize = quantize
        self.inner = inner
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.query = Int8Linear(width, width)
        self.key = Int8Linear(width, width)
        self.value = Int8Linear(width, width)
        self.output = Int8Linear(width, width)
        self.up = Int8Linear(width, 2 * width)
        self.down = Int8Linear(2 * width, width)

    def split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.quantize(self.norm1(x))
        query, key, value = (self.split(layer(y)) for layer in (self.query, self.key, self.value))
        scores = self.inner(query) @ self.inner(key).transpose(-1, -2) / (x.shape[-1] // self.heads) ** 0.5
        y = (self.inner(torch.softmax(scores, dim=-1)) @ self.inner(value)).transpose(1, 2).reshape(x.shape)
        x = x + self.output(self.quantize(y))
        y = F.gelu(self.up(self.quantize(self.norm2(x))))
        down: Tensor = self.down(self.quantize(y))
        return x + down


def encoder(quantize: Callable[[Tensor], Tensor], inner: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(*(EncoderLayer(32, 4, quantize, inner) for _ in range(2)), nn.LayerNorm(32))


class ConvNet(nn.Module):
    """Two convolutions and a classifier. As in training, weights are quantized per output channel at run time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 5, 3, padding=1)
        self.conv2 = nn.Conv2d(5, 7, 3, stride=2, bias=False)
        self.gain = nn.Parameter(torch.ones(7, 1, 1, 1))
        self.linear = nn.Linear(7, 10)

    def forward(self, x: Tensor, gain: Tensor) -> Tensor:
        weight = fake_quantize_channel(self.conv1.weight * gain, 0)
        x = torch.relu(F.conv2d(fake_quantize_u8(x), weight, self.conv1.bias, padding=1))
        weight = fake_quantize_channel(self.conv2.weight * gain, 0)
        x = torch.relu(F.conv2d(fake_quantize_u8(x), weight, stride=2))
        y: Tensor = self.linear(fake_quantize_u8(x.mean(dim=(2, 3))))
        return y


class Branches(nn.Module):
    """Quantizes only inside one branch of a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(11, 6)

    def forward(self, flag: Tensor, x: Tensor) -> Tensor:
        x = torch.cond(flag, fake_quantize_u8, lambda x: x * 1.0, (x,))
        y: Tensor = self.linear(x)
        return y


class Unrolled(nn.Module):
    """Quantizes the state at every step of a scripted loop."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) / 4)

    def forward(self, steps: Tensor, x: Tensor) -> Tensor:
        for _ in range(int(steps)):
            low = x.min().clamp(max=0.0)
            high = x.max().clamp(min=0.0)
            scale = ((high - low) / 255).clamp(min=1e-8)
            zero_point = (-low / scale).round().clamp(0, 255).to(torch.int32)
            y = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, 0, 255)
            x = torch.tanh(torch.matmul(y, self.weight)) * 3.0
        return x


# Chains of primitive operators.


def per_token(x: Tensor) -> Tensor:
    """Fake quantization per token by the absolute maximum, as in SmoothQuant."""
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-5) / 127
    return (x / scale).round().clamp(-128, 127) * scale


def per_token_no_clip(x: Tensor) -> Tensor:
    """SmoothQuant's own code: in place, with max()[0], codes not clamped."""
    scales = x.abs().max(dim=-1, keepdim=True)[0]
    q_max = 2**7 - 1
    scales = scales.clamp(min=1e-5).div(q_max)
    return x.div(scales).round().mul(scales)


def per_token_int8(x: Tensor) -> Tensor:
    """As `per_token`, with codes cast to int8 and back."""
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-5) / 127
    codes = (x / scale).round().clamp(-128, 127).to(torch.int8)
    return codes.to(x.dtype) * scale


def bitnet(x: Tensor) -> Tensor:
    """The activation quantization of BitNet b1.58, which uses an inverse scale."""
    scale = 127.0 / x.abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)
    return (x * scale).round().clamp_(-128, 127) / scale


def asymmetric_per_token(x: Tensor) -> Tensor:
    """Asymmetric per token, with a hand-written zero point and codes cast to uint8 and back."""
    low = x.amin(dim=-1, keepdim=True).clamp(max=0.0)
    high = x.amax(dim=-1, keepdim=True).clamp(min=0.0)
    scale = ((high - low) / 255).clamp(min=1e-8)
    zero_point = (-low / scale).round().clamp(0, 255).to(torch.uint8)
    codes = ((x / scale).round() + zero_point).clamp(0, 255).to(torch.uint8)
    return (codes.to(x.dtype) - zero_point.to(x.dtype)) * scale


def quarot(x: Tensor) -> Tensor:
    """QuaRot's and SpinQuant's activation quantizer: its scale is repeated to the shape of x."""
    matrix = x.reshape((-1, x.shape[-1]))
    zero = torch.zeros(matrix.shape[0])
    low = torch.minimum(matrix.min(1)[0], zero)
    high = torch.maximum(torch.abs(low), torch.maximum(matrix.max(1)[0], zero))
    is_zero = high == 0
    scale = (high / 127).unsqueeze(1).repeat(1, matrix.shape[-1])
    scale[is_zero] = 1
    scale = scale.reshape(x.shape)
    return scale * torch.clamp(torch.round(x / scale), -128, 127)


def quarot_groups(x: Tensor, group: int) -> Tensor:
    """As `quarot`, with a scale for each group of a row."""
    groups = x.reshape(-1, x.shape[-2], x.shape[-1] // group, group)
    high = torch.amax(groups, dim=3, keepdim=True)
    high = torch.maximum(torch.abs(torch.amin(groups, dim=3, keepdim=True)), high)
    is_zero = high == 0
    scale = high / 127
    scale[is_zero] = 1
    scale = scale.repeat(1, 1, 1, group).reshape(x.shape)
    return scale * torch.clamp(torch.round(x / scale), -128, 127)


def group_wise(x: Tensor, group: int) -> Tensor:
    """Symmetric; `group` adjacent elements share a scale."""
    groups = x.reshape(*x.shape[:-1], -1, group)
    scale = groups.abs().amax(dim=-1, keepdim=True).clamp(min=1e-6) / 127.0
    codes = torch.clamp(torch.round(groups / scale), -128, 127).to(torch.int8)
    return (codes.float() * scale).reshape(x.shape)


def group_wise_asymmetric(x: Tensor, group: int) -> Tensor:
    """Asymmetric; all groups of all rows are rows of one matrix."""
    groups = x.reshape(-1, group)
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 255).clamp(min=1e-6)
    zero_point = torch.clamp(-128 - torch.round(low / scale), -128, 127)
    codes = torch.clamp(torch.round(groups / scale) + zero_point, -128, 127)
    return ((codes - zero_point) * scale).reshape(x.shape)


class GridLinear(nn.Module):
    """A linear layer with a quantization at its input; adjacent weights, `group` of them, share a scale."""

    def __init__(self, quantize: Callable[[Tensor], Tensor], inputs: int, outputs: int, group: int, largest: int):
        super().__init__()
        self.quantize = quantize
        self.linear = nn.Linear(inputs, outputs)
        weights = self.linear.weight.detach().reshape(outputs, -1, group)
        scale = weights.abs().amax(-1, keepdim=True) / largest
        self.linear.weight.data = (torch.round(weights / scale) * scale).reshape(outputs, inputs)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(self.quantize(x))
        return y


class BitLinear(nn.Module):
    """BitNet's linear layer: ternary weights, 8-bit activations."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)

    def forward(self, x: Tensor) -> Tensor:
        scale = 1.0 / self.weight.abs().mean().clamp_(min=1e-5)
        weight = (self.weight * scale).round().clamp_(-1, 1) / scale
        return F.linear(bitnet(F.rms_norm(x, x.shape[-1:], eps=1e-6)), weight)


class BitLinearInference(nn.Module):
    """BitNet's inference form: integer activations, ternary weights, and one division by both scales at the end."""

    weight: Tensor
    weight_scale: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-1, 2, (outputs, inputs), dtype=torch.int8))
        self.register_buffer("weight_scale", torch.tensor(5.5))

    def forward(self, x: Tensor) -> Tensor:
        scale = 127 / x.abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)
        codes = (x * scale).round().clamp(-128, 127).to(torch.int8)
        return F.linear(codes.to(x.dtype), self.weight.to(x.dtype)) / (scale * self.weight_scale)


class Deferred(nn.Module):
    """Multiplies integer codes and applies both scales after the product."""

    weight: Tensor
    weight_scale: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8))
        self.register_buffer("weight_scale", torch.rand(outputs) / 127 + 0.001)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-5) / 127
        codes = (x / scale).round().clamp(-128, 127).to(torch.int8)
        return F.linear(codes.float(), self.weight.float()) * scale * self.weight_scale + self.bias


class Unclipped(nn.Module):
    """As `Deferred`, with the arithmetic of vLLM's and SGLang's per_token_quant_int8: an inverse scale and no clamp."""

    weight: Tensor
    weight_scale: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (inputs, outputs), dtype=torch.int8))
        self.register_buffer("weight_scale", torch.rand(outputs) / 127 + 0.001)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        absmax = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10)
        codes = torch.round(x * (127 / absmax)).to(torch.int8)
        return torch.matmul(codes.float(), self.weight.float()) * (absmax / 127) * self.weight_scale + self.bias


class LlmInt8(nn.Module):
    """LLM.int8 without outliers, as bitsandbytes' default backend computes it: no epsilon and no clamp."""

    weight: Tensor
    weight_absmax: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (inputs, outputs), dtype=torch.int8))
        self.register_buffer("weight_absmax", torch.rand(outputs) / 4 + 0.1)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        absmax = x.abs().amax(dim=-1, keepdim=True)
        codes = torch.round(x * (127.0 / absmax)).to(torch.int8)
        sums = torch.matmul(codes.float(), self.weight.float())
        return sums * (absmax * self.weight_absmax) * 6.200012e-05 + self.bias


class KeyValueCache(nn.Module):
    """Appends quantized keys to a cache of int8 codes, with one scale per token and head, and reads the cache."""

    def __init__(self, scale_dtype: torch.dtype) -> None:
        super().__init__()
        self.scale_dtype = scale_dtype

    def forward(
        self, query: Tensor, key: Tensor, past_codes: Tensor, past_scales: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        scale = (key.abs().amax(dim=-1, keepdim=True).clamp(min=1e-5) / 127.0).to(self.scale_dtype)
        codes = torch.round(key / scale.float()).clamp(-128, 127).to(torch.int8)
        codes = torch.cat([past_codes, codes], dim=2)
        scales = torch.cat([past_scales, scale], dim=2)
        keys = codes.to(torch.float32) * scales.to(torch.float32)
        return torch.softmax(query @ keys.transpose(-1, -2), dim=-1), codes, scales


def decoder_with_codes() -> Example:
    """A decoder of one layer with int8 codes in its cache of keys and values, with past and new tokens."""
    torch.manual_seed(0)
    decoder = Decoder(32, 2, 1, longest=64)
    rng = np.random.default_rng(6)
    cache = [
        rng.integers(-127, 128, (1, 2, 9, 16)).astype(np.int8)
        if i % 2 == 0
        else rng.uniform(0.005, 0.02, (1, 2, 9, 1)).astype(np.float32)
        for i in range(4)
    ]
    return Example(export_decoder(decoder, is_float=False), [rng.integers(0, VOCABULARY, (1, 3)), *cache])


class LearnedStep(nn.Module):
    """LSQ: the step is a parameter, so the quantization is static."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.tensor(0.125))
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear((x / self.step).clamp(-128, 127).round() * self.step)
        return y


class HalfLinear(nn.Module):
    """A float16 model that computes its scale in float32."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs).half()

    def forward(self, x: Tensor) -> Tensor:
        scale = (x.float().abs().amax(dim=-1, keepdim=True).clamp(min=1e-5) / 127).half()
        x = (x / scale).round().clamp(-128, 127) * scale
        y: Tensor = self.linear(x)
        return y


def half_linear(quantize: Callable[[Tensor], Tensor]) -> nn.Module:
    """A float16 model: its chain is of float16, too."""
    return QuantizedLinear(quantize, 20, 13).half()


def linear(quantize: Callable[[Tensor], Tensor], inputs: int = 20, outputs: int = 13) -> Callable[[], nn.Module]:
    return partial(QuantizedLinear, quantize, inputs, outputs)


UNSIGNED = activations(2, 7, 20, high=16.0, tensor=True)
SIGNED = activations(2, 7, 20)
TOKENS = activations(2, 7, 20, zero_row=True)
WIDE_TOKENS = activations(2, 7, 256, high=16.0, zero_row=True)
CHANNELS = activations(3, 5, 11, high=16.0, channel=1)
COLUMNS = activations(2, 7, 20, channel=2)
HALF_TOKENS = TOKENS.astype(np.float16)
TWO_AXES = {"x": {0: "batch", 1: "tokens"}}

MODELS: dict[str, Callable[[], Example]] = {
    "torch_tensor_u8": partial(export, linear(fake_quantize_u8), UNSIGNED),
    "torchscript_tensor_u8": partial(export, linear(fake_quantize_u8), UNSIGNED, dynamo=False, opset=17),
    "torch_tensor_s8_asymmetric": partial(export, linear(fake_quantize_s8_asymmetric), UNSIGNED, opset=18),
    "torch_channel_first": partial(
        export, partial(Activation, partial(fake_quantize_channel, axis=0)), activations(3, 5, 11, channel=0)
    ),
    "torch_channel_middle": partial(
        export, partial(Activation, partial(fake_quantize_channel_u8, axis=1)), CHANNELS, opset=21
    ),
    "torch_channel_last": partial(export, linear(partial(fake_quantize_channel, axis=2)), COLUMNS),
    "torchscript_channel_last": partial(
        export, linear(partial(fake_quantize_channel, axis=2)), COLUMNS, dynamo=False, opset=13, dynamic=TWO_AXES
    ),
    "torch_encoder_u8": partial(
        export, partial(encoder, fake_quantize_u8, fake_quantize_u8), activations(2, 9, 32, low=-2.0, high=2.0, seed=1)
    ),
    "torch_encoder_s8": partial(
        export,
        partial(encoder, fake_quantize_s8_asymmetric, fake_quantize_s8),
        activations(2, 9, 32, low=-2.0, high=2.0, seed=1),
    ),
    "torch_conv_u8": partial(
        export,
        ConvNet,
        activations(2, 3, 9, 11, high=16.0, tensor=True),
        np.array(1.25, dtype=np.float32),
        names=("x", "gain"),
    ),
    "torch_if": partial(
        export, Branches, np.array(True), activations(5, 11, high=16.0, tensor=True), names=("flag", "x")
    ),
    "torchscript_loop": partial(
        export,
        lambda: torch.jit.script(Unrolled()),
        np.array(3, dtype=np.int64),
        activations(5, 6, high=16.0, tensor=True),
        names=("steps", "x"),
        dynamo=False,
        opset=17,
    ),
    "torch_token": partial(export, linear(per_token), TOKENS, dynamic=TWO_AXES),
    "torchscript_token": partial(export, linear(per_token), TOKENS, dynamo=False, opset=17),
    "torch_token_smoothquant": partial(export, linear(per_token_no_clip), TOKENS, opset=18),
    "torchscript_token_smoothquant": partial(export, linear(per_token_no_clip), TOKENS, dynamo=False, opset=14),
    "torch_token_int8": partial(export, linear(per_token_int8), TOKENS, opset=21),
    "torchscript_token_int8": partial(export, linear(per_token_int8), TOKENS, dynamo=False, opset=17),
    # No ties: their codes would depend on the last bit of the norm's mean.
    "torch_bitnet": partial(
        export, partial(BitLinear, 20, 13), np.random.default_rng(5).normal(size=(2, 7, 20)).astype(np.float32)
    ),
    "torchscript_bitnet": partial(export, linear(bitnet), TOKENS, dynamo=False, opset=17),
    "torch_bitnet_inference": partial(export, partial(BitLinearInference, 20, 13), TOKENS),
    "torch_token_asymmetric": partial(
        export, linear(asymmetric_per_token), activations(2, 7, 20, high=16.0, zero_row=True)
    ),
    "torch_token_deferred": partial(export, partial(Deferred, 20, 13), TOKENS),
    "torch_token_unclipped": partial(export, partial(Unclipped, 20, 13), TOKENS, dynamic=TWO_AXES),
    "torch_llm_int8": partial(export, partial(LlmInt8, 20, 13), TOKENS),
    "torch_group": partial(export, linear(partial(group_wise, group=5)), TOKENS, dynamic=TWO_AXES),
    "torch_group_product": partial(
        export, partial(GridLinear, partial(group_wise, group=32), 256, 96, 64, 127), WIDE_TOKENS, dynamic=TWO_AXES
    ),
    "torch_quarot": partial(export, partial(GridLinear, quarot, 256, 96, 256, 127), WIDE_TOKENS, dynamic=TWO_AXES),
    "torch_quarot_group": partial(
        export, partial(GridLinear, partial(quarot_groups, group=32), 256, 96, 64, 127), WIDE_TOKENS, dynamic=TWO_AXES
    ),
    "torchscript_group_product": partial(
        export,
        partial(GridLinear, partial(group_wise_asymmetric, group=16), 256, 96, 16, 7),
        WIDE_TOKENS,
        dynamo=False,
        opset=17,
        dynamic=TWO_AXES,
    ),
    "torch_kv_cache": partial(
        export,
        partial(KeyValueCache, torch.float16),
        activations(1, 3, 2, 10, low=-2.0, high=2.0),
        activations(1, 3, 2, 10, zero_row=True, seed=2),
        np.random.default_rng(3).integers(-127, 128, (1, 3, 5, 10)).astype(np.int8),
        np.random.default_rng(4).uniform(0.01, 0.2, (1, 3, 5, 1)).astype(np.float16),
        names=("query", "key", "past_codes", "past_scales"),
        dynamic={"past_codes": {2: "past"}, "past_scales": {2: "past"}},
    ),
    "torch_int8_cache": decoder_with_codes,
    "torch_lsq_constant": partial(export, partial(LearnedStep, 20, 13), SIGNED),
    "torch_half_token": partial(export, partial(half_linear, per_token), HALF_TOKENS, dynamic=TWO_AXES),
    "torchscript_half_token": partial(
        export, partial(half_linear, per_token_int8), HALF_TOKENS, dynamo=False, opset=17, dynamic=TWO_AXES
    ),
    "torch_token_float16": partial(export, partial(HalfLinear, 20, 13), TOKENS.astype(np.float16)),
}

if __name__ == "__main__":
    main(MODELS)
