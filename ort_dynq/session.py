"""The public class InferenceSession, which rewrites a model and opens it."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import onnxruntime as ort

from .backends.options import Backend
from .backends.register import register
from .backends.sessions import with_advice
from .cache import Entry, Found
from .errors import DynqError, with_advice_on_tools
from .files import contains
from .formats import check_file
from .four_bits import has_four_bits, run_of
from .operators import DOMAIN
from .rewrite_options import RewriteOptions
from .runtime import openable, serialize, within_quota
from .session_options import overridden, taken

if TYPE_CHECKING:
    from .rewriter import Result
    from .storage import Model

_LOG = logging.getLogger(__name__)
_MAX_NAMES = 3  # in a message


class InferenceSession(ort.InferenceSession):  # type: ignore[misc]  # onnxruntime is not typed
    """``onnxruntime.InferenceSession`` that registers the operators and rewrites the model before it opens it.

    Attributes:
        not_rewritten: Why the model was not rewritten: the session options override initializers, and a rewrite would
            take their values. Empty if they do not.
    """

    not_rewritten = ""

    def __init__(
        self,
        model: Model,
        sess_options: ort.SessionOptions | None = None,
        *args: Any,
        backend: Backend = "native",
        exact: bool = False,
        fuse: bool = False,
        weights_only: str = "keep",
        keep_fused: bool = False,
        cache: bool = True,
        **kwargs: Any,
    ) -> None:
        """Rewrites and opens a model. The given model, a file or an object, is not changed.

        A rewritten model is opened as it is if the packages are missing that rewrite others. If the CPU quota of a
        container is less than the machine's cores, the session has a thread for each core of the quota, unless the
        options set `intra_op_num_threads`.

        Args:
            model: A path, a serialized model, a ModelProto or an onnx_ir Model; external data are supported.
            sess_options: The session's options, in which the operators are registered. Several sessions may share them.
            *args: The further arguments of ``onnxruntime.InferenceSession``: providers, provider_options.
            backend: See :func:`ort_dynq.register`.
            exact, fuse, weights_only, keep_fused: See :func:`ort_dynq.rewrite`.
            cache: Whether the rewritten model of a file is kept for the next session: see docs/deployment.md.
            **kwargs: Keyword arguments of ``onnxruntime.InferenceSession``.

        Raises:
            DynqError: The model is missing or is not an ONNX model, or the operators cannot be registered. All other
                errors are those of ``onnxruntime.InferenceSession``.
        """
        options = register(ort.SessionOptions() if sess_options is None else sess_options, backend)
        how = RewriteOptions(exact=exact, fuse=fuse, weights_only=weights_only, keep_fused=keep_fused)
        entry = Entry.of(model, f"{backend} {how.text}") if cache else None
        found = entry.find() if entry is not None else None
        with with_advice(backend), within_quota(options):
            kept = None if found is None else self._chosen(found, model, options)
            if kept is None or not self._opens(kept, options, *args, **kwargs):
                rewritten = functools.partial(_rewritten, model, backend, how)
                opened, missing = model, None
                try:
                    may_be_source = backend == "native"
                    result = rewritten() if entry is None else entry.keep(rewritten, may_be_source, found)
                    opened = self._chosen(result, model, options)
                except ImportError as error:
                    missing = with_advice_on_tools(error)
                    if not isinstance(missing, DynqError) or not may_be_rewritten(model):
                        raise missing from error
                with openable(opened, options, shared=sess_options is not None) as source:
                    super().__init__(source, options, *args, **kwargs)
                if missing is not None and not self._is_rewritten():
                    raise missing
        self._has_four_bits = has_four_bits(self)
        if names := overridden(options, taken(self.get_modelmeta().custom_metadata_map)):
            raise DynqError(
                f"the session options override {_listed(names)}, and the model was rewritten with other values; "
                "give the model from which it was made"
            )

    def _chosen(self, rewritten: Result | Found, model: Model, options: ort.SessionOptions) -> Any:
        """Returns the rewritten model; the given one if options override what it has taken."""
        if isinstance(rewritten, Found):
            opened, names = rewritten.path or model, rewritten.facts.get("initializers", [])
        else:
            opened, names = rewritten.model, taken(rewritten.model.metadata_props)
        found = overridden(options, names)
        self.not_rewritten = ""
        if not found:
            return opened
        self.not_rewritten = f"the session options override {_listed(found)}, and a rewrite would take its values"
        _LOG.warning("the model stays as it is: %s", self.not_rewritten)
        return model

    def _opens(self, model: Any, *args: Any, **kwargs: Any) -> bool:
        """Opens a model of the cache, or one without changes. Returns False if that fails: it may be the cache."""
        try:
            super().__init__(model, *args, **kwargs)
        except Exception:  # the types are onnxruntime's own
            return False
        return True

    def _is_rewritten(self) -> bool:
        """Returns whether a rewrite or a quantization has made the model. Without the tools, no other one is opened."""
        return any(key.startswith(f"{DOMAIN}.") for key in self.get_modelmeta().custom_metadata_map)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Runs the model as ``onnxruntime.InferenceSession.run`` does.

        Inputs of type int4 and uint4, which ONNX Runtime does not take from NumPy, may be arrays of these types of
        ml_dtypes, or of other integers that fit. Such outputs are arrays of ml_dtypes.
        """
        run = run_of(self) if self._has_four_bits else super().run
        outputs: list[Any] = run(output_names, input_feed, run_options)
        return outputs

    def __reduce__(self) -> NoReturn:
        """Refuses to be pickled or copied: a session has memory and threads of its process."""
        raise DynqError(
            "a session cannot be pickled or copied: open it in each process, "
            "ort_dynq.InferenceSession(path) or onnxruntime.InferenceSession(path, ort_dynq.register(options))"
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} others" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"


def may_be_rewritten(model: Any) -> bool:
    """Returns whether a model has the mark of rewritten models; others need not be opened without the tools.

    Raises:
        DynqError: It is no model.
    """
    mark = f"{DOMAIN}.".encode()
    if not isinstance(model, str | os.PathLike):
        return mark in (model if isinstance(model, bytes) else serialize(model))
    check_file(model)
    return contains(model, mark)


def _rewritten(model: Model, backend: Backend, options: RewriteOptions) -> Result:
    """Rewrites a model for a backend."""
    from .rewriter import rewrite

    result = rewrite(model, **options.arguments)
    if backend == "native":
        return result
    from .backends.prepare import ready_for_extensions

    return ready_for_extensions(result.model)
