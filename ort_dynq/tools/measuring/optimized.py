"""The graph that ONNX Runtime runs for a model: after its own optimizations at the default level."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from ... import runtime
from ...errors import DynqError, message
from ...files import temporary_folder
from .sessions import SessionError

if TYPE_CHECKING:
    from ...storage import Model

_WEIGHTS = "weights.bin"
_MIN_WEIGHT = "1024"  # bytes


def optimized(model: Model) -> ir.Model:
    """Returns the graph that stock ONNX Runtime runs for a model, without its weights. A profile has its names.

    Args:
        model: The model.

    Raises:
        SessionError: ONNX Runtime does not load the model, or cannot write the graph.
        DynqError: The temporary folder cannot be written.
    """
    with temporary_folder() as folder:
        options = runtime.session_options(threads=1)
        path = Path(folder) / "optimized.onnx"
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", _MIN_WEIGHT)
        try:
            runtime.open_session(model, options)
            return ir.from_proto(onnx.load(path, load_external_data=False))
        except DynqError:
            raise
        except Exception as error:
            raise SessionError(message(error)) from error
