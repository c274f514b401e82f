"""Writes models with the quantizers of torchao and compressed-tensors, exported with torch's dynamo exporter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import torch
from _common import Example, activations, main
from compressed_tensors.quantization import (  # type: ignore[import-untyped]
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from compressed_tensors.quantization.lifecycle.forward import fake_quantize  # type: ignore[import-untyped]
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp  # type: ignore[import-untyped]
from export_torch import TOKENS, TWO_AXES, GridLinear, export
from onnxscript import opset20 as op
from torch import Tensor, nn
from torchao.quantization import (  # type: ignore[import-untyped]
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MappingType,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup  # type: ignore[import-untyped]
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # type: ignore[import-untyped]
from torchao.quantization.qat import Int8DynActInt4WeightQATQuantizer, QATConfig  # type: ignore[import-untyped]
from torchao.testing.pt2e._xnnpack_quantizer import (  # type: ignore[import-untyped]
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)


def int8_config() -> Int8DynamicActivationIntxWeightConfig:
    return Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8, weight_granularity=PerAxis(0))


def torchao_8da8w() -> nn.Module:
    """Asymmetric per-token int8 activations, int8 weights."""
    model = nn.Sequential(nn.Linear(20, 13))
    quantize_(model, int8_config())
    return model


def torchao_half() -> nn.Module:
    """As `torchao_8da8w`, two layers of a float16 model; ONNX Runtime computes Gelu in float32."""
    model = nn.Sequential(nn.LayerNorm(20), nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 20)).half()
    quantize_(model, int8_config())
    return model


def torchao_grouped(dtype: torch.dtype, group: int, mapping: str = "SYMMETRIC") -> nn.Module:
    """Asymmetric per-token int8 activations, weights with a scale for each group along K; 8da4w if they have 4 bits."""
    model = nn.Sequential(nn.Linear(64, 20))
    quantize_(
        model,
        Int8DynamicActivationIntxWeightConfig(
            weight_dtype=dtype, weight_granularity=PerGroup(group), weight_mapping_type=MappingType[mapping]
        ),
    )
    return model


def torchao_weights() -> nn.Module:
    """Quantized weights only: 4 bits in groups, and 8 bits with a scale for each channel; torch folds few weights."""
    layers = nn.Sequential(nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 64), nn.ReLU(), nn.Linear(64, 13))
    quantize_(layers[0], IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))
    quantize_(layers[2:], Int8WeightOnlyConfig())
    return layers


def torchao_qat() -> nn.Module:
    """The prepare step of quantization-aware training for the same configuration."""
    model = nn.Sequential(nn.Linear(20, 13))
    quantize_(model, QATConfig(int8_config(), step="prepare"))
    return model


def torchao_qat_8da4w() -> nn.Module:
    """The prepare step of the older quantizer: 8-bit activations, grouped 4-bit weights."""
    prepared: nn.Module = Int8DynActInt4WeightQATQuantizer(groupsize=16).prepare(
        nn.Sequential(nn.Linear(32, 13, bias=False))
    )
    return prepared


class CompressedTensorsLinear(nn.Module):
    """A linear layer with compressed-tensors' dynamic quantization per token at its input."""

    def __init__(self, symmetric: bool) -> None:
        super().__init__()
        self.arguments = QuantizationArgs(num_bits=8, strategy="token", dynamic=True, symmetric=symmetric)
        self.linear = nn.Linear(20, 13)

    def forward(self, x: Tensor) -> Tensor:
        scale, zero_point = compute_dynamic_scales_and_zp(x, self.arguments, self)
        y: Tensor = self.linear(fake_quantize(x, scale, zero_point, self.arguments))
        return y


def compressed_tensors_module() -> nn.Module:
    """A linear layer: compressed-tensors replaces its forward, as llm-compressor does; its weights are on the grid."""
    torch.manual_seed(0)
    model = nn.Sequential(GridLinear(nn.Identity(), 64, 20, 64, 127))
    activations_ = QuantizationArgs(num_bits=8, strategy="token", dynamic=True)
    scheme = QuantizationScheme(targets=["Linear"], input_activations=activations_)
    apply_quantization_config(model, QuantizationConfig(config_groups={"linear": scheme}))
    return model


# Functions for `custom_translation_table`: operators that torch's exporter does not know.


def int_mm(a: Any, b: Any) -> Any:
    return op.MatMulInteger(a, b)


def choose_qparams(x: Any, quant_min: int, quant_max: int, eps: float, dtype: int) -> Any:
    """Returns an asymmetric scale and zero point for a tensor; torch declares them as float64[1] and int64[1]."""

    def number(value: float) -> Any:
        return op.Constant(value_float=float(value))

    low = op.Min(op.ReduceMin(x, keepdims=0), number(0))
    high = op.Max(op.ReduceMax(x, keepdims=0), number(0))
    scale = op.Max(op.Div(op.Sub(high, low), number(quant_max - quant_min)), number(eps))
    zero_point = op.Sub(number(quant_min), op.Round(op.Div(low, scale)))
    zero_point = op.Clip(zero_point, number(quant_min), number(quant_max))
    one = op.Constant(value_ints=[1])
    return (
        op.Reshape(op.Cast(scale, to=onnx.TensorProto.DOUBLE), one),
        op.Reshape(op.Cast(zero_point, to=onnx.TensorProto.INT64), one),
    )


def quantize(x: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: int) -> Any:
    return op.QuantizeLinear(x, op.Cast(scale, to=onnx.TensorProto.FLOAT), op.Cast(zero_point, to=dtype))


def dequantize(
    codes: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: int, out_dtype: int = -1
) -> Any:
    return op.DequantizeLinear(codes, op.Cast(scale, to=onnx.TensorProto.FLOAT), op.Cast(zero_point, to=dtype))


def dequantize_channels(
    codes: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int, dtype: int, out_dtype: int = -1
) -> Any:
    return op.DequantizeLinear(codes, scale, op.Cast(zero_point, to=dtype), axis=axis)


def int8_translations() -> dict[Any, Callable[..., Any]]:
    """Returns what the export of `Int8DynamicActivationInt8WeightConfig` needs."""
    return {torch.ops.aten._int_mm.default: int_mm}


def pt2e_translations() -> dict[Any, Callable[..., Any]]:
    """Returns what the export of a model that `convert_pt2e` returned needs."""
    operators = torch.ops.quantized_decomposed
    return {
        operators.choose_qparams.tensor: choose_qparams,
        operators.quantize_per_tensor.tensor: quantize,
        operators.dequantize_per_tensor.tensor: dequantize,
        operators.dequantize_per_channel.default: dequantize_channels,
    }


def torchao_int8() -> nn.Module:
    """Symmetric per-token int8 activations, int8 weights, and a product of integers."""
    model = nn.Sequential(nn.Linear(64, 20))
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    return model


def pt2e_dynamic() -> nn.Module:
    """Asymmetric int8 activations, one scale for a tensor; int8 weights, by PyTorch's quantizer for XNNPACK."""
    x = torch.from_numpy(UNSIGNED_TOKENS)
    tokens = {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("tokens", min=2)}
    model = torch.export.export(nn.Sequential(nn.Linear(20, 13)), (x,), dynamic_shapes=(tokens,)).module()
    config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
    model = prepare_pt2e(model, XNNPACKQuantizer().set_global(config))
    model(x)
    converted: nn.Module = convert_pt2e(model)
    converted.eval = lambda: converted  # type: ignore[method-assign]  # exported programs refuse it
    return converted


UNSIGNED_TOKENS = activations(2, 7, 20, high=16.0, zero_row=True)
WIDE_TOKENS = activations(2, 7, 64, high=16.0, zero_row=True)

MODELS: dict[str, Callable[[], Example]] = {
    "torchao_8da8w": partial(export, torchao_8da8w, UNSIGNED_TOKENS, dynamic=TWO_AXES),
    "torchao_half": partial(export, torchao_half, UNSIGNED_TOKENS.astype(np.float16), dynamic=TWO_AXES, fold=False),
    "torchao_8da8w_opset18": partial(export, torchao_8da8w, UNSIGNED_TOKENS, opset=18),
    "torchao_8da4w": partial(export, partial(torchao_grouped, torch.int4, 32), WIDE_TOKENS, dynamic=TWO_AXES),
    "torchao_weights": partial(export, torchao_weights, WIDE_TOKENS, dynamic=TWO_AXES),
    "torchao_8da4w_asymmetric": partial(
        export, partial(torchao_grouped, torch.int4, 16, "ASYMMETRIC"), WIDE_TOKENS, dynamic=TWO_AXES
    ),
    "torchao_8da8w_group": partial(export, partial(torchao_grouped, torch.int8, 32), WIDE_TOKENS, opset=18),
    "torchao_qat": partial(export, torchao_qat, UNSIGNED_TOKENS),
    "torchao_qat_8da4w": partial(export, torchao_qat_8da4w, activations(2, 7, 32, high=16.0, zero_row=True)),
    "compressed_tensors_symmetric": partial(
        export, partial(CompressedTensorsLinear, symmetric=True), TOKENS, dynamic=TWO_AXES
    ),
    "compressed_tensors_symmetric_static": partial(export, partial(CompressedTensorsLinear, symmetric=True), TOKENS),
    # No row of zeros: its zero point would be NaN.
    "compressed_tensors_asymmetric": partial(
        export,
        partial(CompressedTensorsLinear, symmetric=False),
        activations(2, 7, 20, high=16.0),
        dynamic=TWO_AXES,
    ),
    "compressed_tensors_module": partial(
        export, compressed_tensors_module, WIDE_TOKENS, dynamo=False, opset=17, dynamic=TWO_AXES
    ),
    "torchao_int8": partial(export, torchao_int8, WIDE_TOKENS, dynamic=TWO_AXES, translations=int8_translations()),
    "pt2e_dynamic": partial(export, pt2e_dynamic, UNSIGNED_TOKENS, dynamic=TWO_AXES, translations=pt2e_translations()),
}

if __name__ == "__main__":
    main(MODELS)
