"""Creates a session of a program: with a rewritten model and the operators, or as the program itself would."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from ..backends.options import registered
from ..cache import Entry, Found, facts_of
from ..errors import message, with_advice_on_tools
from ..runtime import DATA_FOLDER, LentOptions, config_entry, openable
from ..session import may_be_rewritten
from ..session_options import overridden
from ..system import quota_cores
from .options import HookOptions, matches
from .patch import Installation
from .prepared import Prepared, are_ours, options_of, ours
from .sessions import Opened

if TYPE_CHECKING:
    from ..rewriter import Result
    from ..storage import Model

_LOG = logging.getLogger("ort_dynq.run")
_OPTIONS = "ort_dynq_options"
"""The attribute of a session with the options that it was created with, which have the operators."""

_warned: set[int] = set()  # processes that have warned


def create(session: Any, original: Callable[[], None], args: tuple[Any, ...], installation: Installation) -> None:
    """Creates a session.

    Args:
        session: The session of onnxruntime, with the model and the options that were given to it.
        original: Creates it as onnxruntime does.
        args: The arguments of onnxruntime's method: the providers, their options.
        installation: What is installed.

    Raises:
        Exception: What `original` raises.
    """
    if _is_ours(session):
        original()
        return
    begin = time.perf_counter()
    content = session._model_bytes
    opened = Opened(str(session._model_path) if content is None else f"a model of {len(content)} bytes")
    prepared = _prepared(session, args[0] if args else None, installation.options)
    if prepared.model is not None and (error := _opens(session, original, prepared.model)):
        prepared = Prepared("failed", f"the rewritten model cannot be opened: {error}")
    if prepared.model is None and not _opens_within_quota(session, original, prepared):
        original()
    opened.state, opened.reason, facts = prepared.state, prepared.reason, prepared.facts
    opened.integer_products = int(facts.get("integer products", 0))
    opened.float_products = int(facts.get("float products", 0))
    if prepared.trial is not None:
        prepared.trial(session, opened)
    opened.seconds = round(time.perf_counter() - begin, 3)
    installation.sessions.add(opened)
    _LOG.info("%s (%.2f s)", opened, opened.seconds)
    if opened.state == "failed" and os.getpid() not in _warned:
        _warned.add(os.getpid())
        _LOG.warning("%s; further such errors of this process are not shown", opened)


def _is_ours(session: Any) -> bool:
    """Whether ort_dynq itself opens a session: that of its own class, or one of a rewrite or a measurement."""
    own = sys.modules["ort_dynq.session"].InferenceSession
    return are_ours() or isinstance(session, own) or isinstance(session._sess_options, LentOptions)


def _prepared(session: Any, providers: Any, options: HookOptions) -> Prepared:
    """Returns what a session opens. Whatever goes wrong, it is the program's own model."""
    try:
        with ours():
            if reason := _reason_to_stay(session, providers, options):
                return Prepared("left alone", reason)
            prepared = _rewritten(session, options)
            if prepared.state != "unchanged" or not matches(session._model_path or "bytes", options.quantize):
                return prepared
            from .quantization import quantized

            return quantized(session, providers, options, prepared)
    except ImportError as error:
        return Prepared("failed", message(with_advice_on_tools(error)))
    except Exception as error:  # the program has not called us
        return Prepared("failed", f"{type(error).__name__}: {message(error)}")


def _reason_to_stay(session: Any, providers: Any, options: HookOptions) -> str:
    """Returns why a session is the program's own; an empty text if it need not be."""
    path, content, given = session._model_path, session._model_bytes, session._sess_options
    if path is not None and not isinstance(path, str):
        return "its path is bytes"
    if path is not None and not os.path.isfile(path):
        return "its model is not a file"
    if matches(path or "bytes", options.keep):
        return "kept"
    if path.lower().endswith(".ort") if path is not None else content[4:8] == b"ORTM":
        return "its model has ONNX Runtime's own format"
    if first := _other_provider(providers):
        return f"its first provider is {first}"
    if session._read_config_from_model:
        return "its options are in the model"
    if given is None:
        return ""
    if hasattr(given, "has_providers") and given.has_providers():
        return "its session options choose a provider"
    if given.optimized_model_filepath or config_entry(given, "ep.context_enable") == "1":
        return "it writes the model that ONNX Runtime makes"
    if config_entry(given, "session.load_model_format").upper() == "ORT":
        return "its model has ONNX Runtime's own format"
    if content is not None and config_entry(given, DATA_FOLDER):
        return "its model is bytes, with weights in a folder"
    if registered(given):
        return "its session options have ort_dynq's operators already"
    return ""


def _other_provider(providers: Any) -> str:
    """Returns the first provider that a session uses, unless it is the CPU's; Azure's runs remote models only."""
    available = ort.get_available_providers()
    names = [each[0] if isinstance(each, tuple) else each for each in providers or ()]
    used = [name for name in names if name in available] or available
    real = [name for name in used if name != "AzureExecutionProvider"]
    return "" if not real or real[0] == "CPUExecutionProvider" else str(real[0])


def _rewritten(session: Any, options: HookOptions) -> Prepared:
    """Returns the rewritten model of a session."""
    model: Model = session._model_bytes if session._model_path is None else session._model_path
    entry = Entry.of(model, f"native {options.rewriting.text}")
    found: Found | Result | None = None if entry is None else entry.find()
    if found is None:
        if not _has_tools():
            if may_be_rewritten(model):
                return Prepared("registered", "", model)
            return Prepared("unchanged", "the cache does not have it, and the packages that rewrite are not installed")
        from ..rewriter import rewrite

        rewriting = functools.partial(rewrite, model, **options.rewriting.arguments)
        found = rewriting() if entry is None else entry.keep(rewriting)
        if entry is not None and not isinstance(found, Found):
            found = entry.find() or found
    if isinstance(found, Found):
        opens: Model | None = found.path
        facts: Mapping[str, Any] = found.facts
    else:
        facts = facts_of(model, found)
        opens = found.model if found.report.rewritten else None
    summary = str(facts["summary"])
    given = session._sess_options
    if opens is None:
        if facts["rewritten before"]:
            return Prepared("registered", summary, model, facts)
        return Prepared("unchanged", summary, None, facts)
    if given is not None and (names := overridden(given, facts["all initializers"])):
        return Prepared("left alone", f"its session options override the initializer {names[0]}")
    return Prepared("rewritten", summary, opens, facts)


def _has_tools() -> bool:
    return all(map(importlib.util.find_spec, ("onnx", "onnx_ir")))


def _opens_within_quota(session: Any, original: Callable[[], None], prepared: Prepared) -> bool:
    """Opens a session's own model with the threads of a container's CPU quota, if its options choose no number."""
    given = session._sess_options
    if prepared.state != "unchanged" or not quota_cores() or (given is not None and given.intra_op_num_threads):
        return False
    model: Model = session._model_bytes if session._model_path is None else session._model_path
    return not _opens(session, original, model, operators=False)


def _opens(session: Any, original: Callable[[], None], model: Model, *, operators: bool = True) -> str:
    """Opens a model for a session, with options of its own. Returns the error, or nothing."""
    given, path, content = session._sess_options, session._model_path, session._model_bytes
    try:
        options = options_of(given, operators=operators)
        with openable(model, options) as source:
            is_path = isinstance(source, str)
            session._model_path, session._model_bytes = (source, None) if is_path else (None, source)
            session._sess_options = options
            original()
    except Exception as error:  # the types are onnxruntime's own
        session._sess_options = given
        return message(error)
    finally:
        session._model_path, session._model_bytes = path, content
    setattr(session, _OPTIONS, options)
    return ""
