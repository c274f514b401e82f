"""Replaces the method of onnxruntime that creates sessions, now or when onnxruntime is imported.

It is the method, not the class: names that were imported earlier, and subclasses, are reached.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

from .options import HookOptions
from .sessions import Sessions

_MODULE = "onnxruntime.capi.onnxruntime_inference_collection"
TRIAL = "ort_dynq_trial"
"""The attribute of a session while its int8 model is being measured."""

Method = Callable[..., Any]


class Installation(NamedTuple):
    """What is installed.

    Attributes:
        options: What is done with models.
        sessions: The record of the sessions.
        create: Creates a session, given the session, onnxruntime's own way, the arguments of onnxruntime's method, and
            this.
    """

    options: HookOptions
    sessions: Sessions
    create: Callable[[Any, Callable[[], None], tuple[Any, ...], Installation], None]


class _State:
    """What is installed in this process, and the methods that are replaced: by their class and name."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.installation: Installation | None = None
        self.originals: dict[tuple[type, str], Method] = {}

    def after_fork(self) -> None:
        self.lock = threading.RLock()
        if self.installation is not None:
            self.installation.sessions.renew_lock()


_state = _State()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_state.after_fork)


def active() -> Installation | None:
    """Returns what is installed in this process."""
    return _state.installation


def activate(installation: Installation | None) -> None:
    """Installs something, in place of what is installed; None installs nothing, and takes back the methods."""
    with _state.lock:
        _state.installation = installation
        if installation is None:
            _restore()
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _SessionFinder)]
        elif _MODULE in sys.modules:
            _replace(sys.modules[_MODULE])
        elif not any(isinstance(finder, _SessionFinder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _SessionFinder())


class _SessionFinder(MetaPathFinder):
    """Finds the module with the class of sessions as others do, and replaces its methods once it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return find_spec(fullname, path, target) if fullname == _MODULE else None


def find_spec(fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
    """Returns what others find of the module with the class of sessions; its methods are replaced after its import."""
    for finder in sys.meta_path:
        if not isinstance(finder, _SessionFinder) and (find := getattr(finder, "find_spec", None)) is not None:
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                _call_after(spec, _imported)
                return spec
    return None


def _call_after(spec: ModuleSpec, function: Callable[[ModuleType], None]) -> None:
    """Calls a function with the module after it has been executed."""
    loader: Any = spec.loader
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def executed(module: ModuleType) -> None:
        execute(module)
        function(module)

    loader.exec_module = executed


def _imported(module: ModuleType) -> None:
    with _state.lock:
        if _state.installation is not None:
            _replace(module)


def _replace(module: Any) -> None:
    """Replaces the method that creates sessions."""
    _exchange(module.InferenceSession, "_create_inference_session", _creating)


def watch_runs() -> None:
    """Replaces the methods that run sessions, too: an int8 model is measured on what a program runs."""
    module: Any = sys.modules[_MODULE]
    with _state.lock:
        _exchange(module.Session, "run", _running)
        _exchange(module.Session, "run_async", _running_later)
        _exchange(module.IOBinding, "__init__", _binding)


def _exchange(owner: type, name: str, replacing: Callable[[Method], Method]) -> None:
    if (owner, name) not in _state.originals:
        original = getattr(owner, name)
        _state.originals[owner, name] = original
        setattr(owner, name, functools.wraps(original)(replacing(original)))


def _restore() -> None:
    """Puts the original methods back, unless somebody else has replaced ours: then they pass every call on."""
    for (owner, name), original in list(_state.originals.items()):
        if getattr(owner.__dict__.get(name), "__wrapped__", None) is original:
            setattr(owner, name, original)
            del _state.originals[owner, name]


def _creating(original: Method) -> Method:
    def create(session: Any, *args: Any, **kwargs: Any) -> None:
        installation = _state.installation
        if installation is None:
            original(session, *args, **kwargs)
            return
        installation.create(session, functools.partial(original, session, *args, **kwargs), args, installation)

    return create


def _running(original: Method) -> Method:
    def run(session: Any, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        trial = session.__dict__.get(TRIAL)
        if trial is None:
            return original(session, output_names, input_feed, run_options)
        return trial.run(functools.partial(original, session), output_names, input_feed, run_options)

    return run


def _running_later(original: Method) -> Method:
    def run_async(session: Any, *args: Any, **kwargs: Any) -> Any:
        if (trial := session.__dict__.get(TRIAL)) is not None:
            trial.keeps_float = True  # the run ends at an unknown time, with the float model
        return original(session, *args, **kwargs)

    return run_async


def _binding(original: Method) -> Method:
    def bind(binding: Any, session: Any) -> None:
        original(binding, session)
        if (trial := session.__dict__.get(TRIAL)) is not None:
            trial.keeps_float = True  # to which the binding belongs

    return bind
