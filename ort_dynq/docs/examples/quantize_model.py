"""Quantizes a float model, a transformer or a network of convolutions: ``python quantize_model.py IN OUT [DATA]``.

DATA is an NPZ file with an array for each input, or a folder of such files. Without it, the accuracy on generated data
shows no more than that the result runs.
"""

from __future__ import annotations

import argparse

import onnxruntime

import ort_dynq
from ort_dynq.accuracy import Reference, measure_outputs


def main(source: str, target: str, data: str | None = None) -> None:
    result = ort_dynq.quantize(source, weights="int8", activations="token")
    result.save(target)
    print(result.report.summary)

    reference = Reference(source, data)  # the float model's outputs on the data
    for output in measure_outputs(reference, target):
        if output.snr_db is not None and output.cosine_worst is not None:  # an output of floats
            print(f"{output.name}: signal to noise {output.snr_db:.1f} dB, worst cosine {output.cosine_worst:.5f}")

    session = onnxruntime.InferenceSession(target, ort_dynq.register(onnxruntime.SessionOptions()))
    for output, array in zip(session.get_outputs(), session.run(None, dict(reference.data.sets[0])), strict=True):
        print(f"{output.name}: {array.dtype} {array.shape}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", metavar="IN")
    parser.add_argument("target", metavar="OUT")
    parser.add_argument("data", metavar="DATA", nargs="?")
    try:
        main(**vars(parser.parse_args()))
    except ort_dynq.DynqError as error:
        parser.error(str(error))
