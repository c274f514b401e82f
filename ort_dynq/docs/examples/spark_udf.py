"""Runs a model over a column with Spark, on one machine or a cluster: ``python spark_udf.py model.onnx``.

Needs ``pip install pyspark pandas pyarrow`` and Java. Rewrite the model first: `ort-dynq rewrite`. Every machine must
have the file. The model of this example has one input and one output, both float32.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

Array = npt.NDArray[np.float32]

INSTALL = "pip install pyspark pandas pyarrow"


def udf(path: str, shape: list[int], *, batch: int = 64) -> Any:
    """Returns the function of Spark from a column of flat inputs to a column of flat outputs.

    Args:
        path: The model.
        shape: The shape of one row of its input.
        batch: The number of rows in one run.
    """
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    # Each worker calls it once: a session cannot be sent to another process.
    def open_model() -> Callable[[Array], Array]:
        import onnxruntime

        import ort_dynq

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # Spark starts a worker for each core
        session = onnxruntime.InferenceSession(path, ort_dynq.register(options))
        (name,) = (each.name for each in session.get_inputs())

        def run(rows: Array) -> Array:
            (output,) = session.run(None, {name: np.asarray(rows, np.float32)})
            return np.asarray(output).reshape(len(rows), -1)

        return run

    result = ArrayType(FloatType())
    return predict_batch_udf(open_model, return_type=result, batch_size=batch, input_tensor_shapes=[shape])


def infer(path: str, rows: Array, *, workers: int = 2) -> Array:
    """Returns the flat outputs of a model, [len(rows), elements], in the order of the rows."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master(f"local[{workers}]").getOrCreate()
    table = [(i, row.ravel().tolist()) for i, row in enumerate(rows)]
    frame = spark.createDataFrame(table, "row long, data array<float>")
    done = frame.withColumn("output", udf(path, [*rows.shape[1:]])("data")).orderBy("row").collect()
    return np.array([each["output"] for each in done], np.float32)


def main(path: str) -> None:
    import onnxruntime

    import ort_dynq

    if importlib.util.find_spec("pyspark") is None:
        raise SystemExit(f"pyspark is missing: run `{INSTALL}`")
    (given,) = onnxruntime.InferenceSession(path, ort_dynq.register(onnxruntime.SessionOptions())).get_inputs()
    shape = [size if isinstance(size, int) else 2 for size in given.shape[1:]]
    output = infer(str(Path(path).resolve()), np.random.default_rng(0).standard_normal((256, *shape), np.float32))
    print(output.dtype, output.shape)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", metavar="model.onnx")
    path = parser.parse_args().path
    if not Path(path).is_file():
        parser.error(f"there is no file {path}")
    main(path)
