"""Writes models with the quantizers of torchao and compressed-tensors, exported with torch's dynamo exporter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from _common import Example, activations, main
from compressed_tensors.quantization import QuantizationArgs  # type: ignore[import-untyped]
from compressed_tensors.quantization.lifecycle.forward import fake_quantize  # type: ignore[import-untyped]
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp  # type: ignore[import-untyped]
from export_torch import TOKENS, TWO_AXES, export
from torch import Tensor, nn
from torchao.quantization import (  # type: ignore[import-untyped]
    Int8DynamicActivationIntxWeightConfig,
    MappingType,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup  # type: ignore[import-untyped]
from torchao.quantization.qat import Int8DynActInt4WeightQATQuantizer, QATConfig  # type: ignore[import-untyped]


def int8_config() -> Int8DynamicActivationIntxWeightConfig:
    return Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8, weight_granularity=PerAxis(0))


def torchao_8da8w() -> nn.Module:
    """Asymmetric per-token int8 activations, int8 weights."""
    model = nn.Sequential(nn.Linear(20, 13))
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


UNSIGNED_TOKENS = activations(2, 7, 20, high=16.0, zero_row=True)
WIDE_TOKENS = activations(2, 7, 64, high=16.0, zero_row=True)

MODELS: dict[str, Callable[[], Example]] = {
    "torchao_8da8w": partial(export, torchao_8da8w, UNSIGNED_TOKENS, dynamic=TWO_AXES),
    "torchao_8da8w_opset18": partial(export, torchao_8da8w, UNSIGNED_TOKENS, opset=18),
    "torchao_8da4w": partial(export, partial(torchao_grouped, torch.int4, 32), WIDE_TOKENS, dynamic=TWO_AXES),
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
}

if __name__ == "__main__":
    main(MODELS)
