"""Verifies rewrites of models on an emulated CPU: `python tests/emulated_models.py`, which `.ci/emulated` runs.

It does not need pytest, which takes minutes in an emulator to collect the tests of all models. The exact rewrites leave
the products that differ between CPUs to ONNX Runtime.
"""

from __future__ import annotations

import time

from rewriting import check_verification

from ort_dynq import kernels

# Others of their kinds reach no further kernel.
MODELS = (
    *("encoder_token", "encoder_tensor_s8", "torchao_8da8w"),  # products with a scale for each row, for all rows
    *("torchao_8da8w_group", "torchao_8da4w", "ort_nbits", "ort_dequantized_weights"),  # for groups; of 4 bits
    *("torchao_half", "ort_half_token", "ort_dynamic_channel"),  # of float16; codes of DynamicQuantizeLinear
    *("ort_dynamic_conv", "ort_dynamic_speech"),  # convolutions of images and of sequences
    *("ort_dynamic_lstm", "ort_dynamic_attention", "ort_mixture_of_experts"),
    *("torch_group", "functions", "keras_int8"),  # programs of blocks, in functions, of products
)

if __name__ == "__main__":
    print("instruction set:", kernels.isa())
    for model in MODELS:
        start = time.perf_counter()
        check_verification(model)
        print(f"{model}: verified in {time.perf_counter() - start:.1f} s", flush=True)
