"""Imports the packages that change models. Without them, a package that imports this one first says what to install."""

from ..errors import with_advice_on_tools

try:
    import onnx  # noqa: F401
    import onnx_ir  # noqa: F401
except ImportError as error:
    raise with_advice_on_tools(error) from error
