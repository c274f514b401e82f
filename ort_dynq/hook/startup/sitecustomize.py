"""Python imports this module when it starts, since `ort-dynq run` puts its folder in front of PYTHONPATH.

It hides another sitecustomize, that of the user or of the system, which it imports. What it does has to be cheap, and
needs nothing but Python's own modules: the process may never use onnxruntime, or have no ort_dynq.
"""

import importlib
import os
import sys


class _StartupFinder:
    """Installs what `ort-dynq run` says when the process imports onnxruntime."""

    is_done = False

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        """Returns the specification of the module with the class of sessions, which others find."""
        if self.is_done or name != "onnxruntime.capi.onnxruntime_inference_collection":
            return None
        self.is_done = True
        try:
            patch = importlib.import_module("ort_dynq.hook.patch")
            importlib.import_module("ort_dynq.hook.process").begin()
            return patch.find_spec(name, path, target)
        except ImportError as error:
            advice = f"`{sys.executable} -m pip install ort_dynq`"
            _say(f"{sys.executable} opens its models as before: {error}; {advice}")
        except Exception as error:  # the program has not called us
            _say(f"{type(error).__name__}: {error}")
        return None


def _say(problem: str = "") -> None:
    """Adds this process, and what is wrong, to the record of `ort-dynq run`."""
    try:
        record = os.open(os.environ["ORT_DYNQ_RUN_RECORD"], os.O_WRONLY | os.O_APPEND)
        try:
            text = problem.encode("unicode_escape").decode().replace('"', "'").replace("\\", "/")
            os.write(record, f'{{"process": {os.getpid()}, "problem": "{text}"}}\n'.encode())
        finally:
            os.close(record)
    except (OSError, KeyError, ValueError):
        pass


def _import_other() -> None:
    """Imports the next sitecustomize of the path, under its own name."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != folder]
    this = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if this is not None:
            sys.modules["sitecustomize"] = this


if os.environ.get("ORT_DYNQ_RUN"):
    _say()
    sys.meta_path.insert(0, _StartupFinder())  # type: ignore[arg-type]  # as importlib.abc has it, but that import takes long
_import_other()
