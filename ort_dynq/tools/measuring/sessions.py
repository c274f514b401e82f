"""Opens and runs models in ONNX Runtime, with one-line errors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort

from ... import runtime
from ...backends.register import register
from ...backends.sessions import open_registered
from ...errors import DynqError, message
from ...expansion import ExpansionError, has_functions
from ...formats import check_file, format_of
from ...four_bits import run_of
from ...inputs import DTYPES, Array, Input

if TYPE_CHECKING:
    from ...backends.options import Backend
    from ...storage import Model

# onnxruntime's errors for files that are not models. Any other error means that a model does not load.
_NOT_A_MODEL = ("NoSuchFile", "InvalidProtobuf")

FEW_RUNS = {"session.disable_prepacking": "1"}
"""Entries for a session that runs few times: to copy its weights into another layout takes longer than it saves. The
last bits of products depend on it. Such a session does not copy its weights: see :class:`.runtime.LentOptions`."""


class SessionError(Exception):
    """ONNX Runtime does not load or run a model."""


def open_session(
    model: Model,
    role: str,
    *,
    backend: Backend | None = None,
    optimize: bool = False,
    entries: Mapping[str, str] | None = None,
) -> ort.InferenceSession:
    """Opens a session on the CPU.

    Args:
        model: The model.
        role: The name of the model in error messages: A or B.
        backend: How the session gets ort_dynq's operators; None for stock ONNX Runtime.
        optimize: Whether the default optimization level is on; otherwise all optimizations are off.
        entries: Further entries of the session's configuration.

    Raises:
        DynqError: The file is not a model, or stock ONNX Runtime does not load it.
        SessionError: ONNX Runtime with the plugin does not load it.
    """
    what = f"{role} ({os.fspath(model)})" if isinstance(model, str | os.PathLike) else role
    if isinstance(model, str | os.PathLike):
        check_file(model, role)
    check_expansion(model, what)
    options = runtime.session_options(optimize=optimize)
    # A comparison opens several sessions. Idle threads that spin would take cores from the session that runs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.copies = entries is not FEW_RUNS or optimize
    for name, value in (entries or {}).items():
        options.add_session_config_entry(name, value)
    if backend:
        register(options, backend)
    try:
        return open_registered(_lent(model, options), options)
    except DynqError as error:
        if backend == "extensions":  # onnxruntime's error, to which the backend has added advice
            raise SessionError(message(error)) from error
        raise
    except Exception as error:
        _check(model, what)
        if type(error).__name__ in _NOT_A_MODEL:
            found = format_of(model) if isinstance(model, str | os.PathLike) else ""
            raise DynqError(f"{what} is not an ONNX model: {f'it is {found}' if found else message(error)}") from error
        if backend is None:
            raise DynqError(f"{what} does not load in stock ONNX Runtime: {message(error)}") from error
        raise SessionError(message(error)) from error


def _lent(model: Model, options: runtime.LentOptions) -> Model:
    """Returns the argument that opens a model: a file that was read is not read again."""
    from ...storage import ModelFile

    if isinstance(model, ModelFile):
        try:
            found = model.content
        except DynqError:  # onnxruntime says what is wrong
            return model
        if found is not None:
            content, weights = found
            options.lend(weights)
            return content
    return model


def check_expansion(model: Model, what: str) -> None:
    """Checks the functions of a model before onnxruntime opens it, which would take hours to refuse the same ones.

    Args:
        model: The model.
        what: Its name in error messages.

    Raises:
        DynqError: They stand for too many nodes.
    """
    from ...storage import load

    if not has_functions(model):
        return
    try:
        load(model)
    except ExpansionError as error:
        raise DynqError(f"{what}: {error}") from error
    except DynqError:  # onnxruntime says what is wrong
        return


def _check(model: Model, what: str) -> None:
    """Checks what onnxruntime says in many words: external data are missing, or the model is too new.

    Raises:
        DynqError: It is so.
    """
    from ...opsets import check_versions
    from ...storage import ExternalDataError, check_data, load

    try:
        loaded = load(model)
    except ExternalDataError as error:
        raise DynqError(f"{what}: {error}") from error
    except DynqError:  # the error of onnxruntime says what is wrong
        return
    try:
        check_data(loaded)
        check_versions(loaded)
    except DynqError as error:
        raise DynqError(f"{what}: {error}") from error


def run(
    session: ort.InferenceSession, names: list[str], feeds: Mapping[str, Array], *, any_type: bool = False
) -> list[Array]:
    """Runs a session and returns the outputs with these names.

    Args:
        session: The session.
        names: The names of outputs.
        feeds: The values of all inputs.
        any_type: Whether outputs may be of any type: strings, sequences and maps are returned as onnxruntime has them.

    Raises:
        SessionError: The model does not run.
        DynqError: An output is not a tensor of a supported type.
    """
    try:
        outputs: list[Array] = run_of(session)(names, dict(feeds))
    except Exception as error:
        raise SessionError(message(error)) from error
    for name, output in zip(names, outputs, strict=True):
        if any_type:
            break
        if not isinstance(output, np.ndarray) or output.dtype not in DTYPES.values():
            kind = output.dtype if isinstance(output, np.ndarray) else type(output).__name__
            raise DynqError(f"the output {name} is of type {kind}, which cannot be verified")
    return outputs


def run_original(
    session: ort.InferenceSession,
    names: list[str],
    feeds: Mapping[str, Array],
    resolved: Sequence[Input],
    *,
    any_type: bool = False,
    option: str = "--input",
) -> list[Array]:
    """Runs A, the original model, as :func:`run` does.

    Args:
        session, names, feeds, any_type: As for :func:`run`.
        resolved: The inputs; empty if all values are the user's.
        option: The option by which the user gives values.

    Raises:
        DynqError: A does not run. If values are generated, the message names the shapes that were assumed, and the
            options to give others.
    """
    try:
        return run(session, names, feeds, any_type=any_type)
    except SessionError as error:
        assumed = [f"--shape {each.name}={'x'.join(map(str, each.shape))}" for each in resolved if each.assumed]
        shapes = f"assumed {' '.join(assumed)}; set other shapes like this, or " if assumed else ""
        is_generated = any(not each.given for each in resolved)
        advice = f" with generated values ({shapes}give your own values with {option})" if is_generated else ""
        raise DynqError(f"A, the original model, does not run in stock ONNX Runtime{advice}: {error}") from error


def signature(session: ort.InferenceSession) -> list[str]:
    """Returns the inputs, sorted, and the outputs of a model, as text."""
    inputs = sorted(f"input {each.name} of type {each.type}" for each in session.get_inputs())
    return inputs + [f"output {each.name}" for each in session.get_outputs()]


def check_signature(a: list[str], b: list[str]) -> None:
    """Checks that two models have the same inputs and outputs.

    Raises:
        DynqError: They do not.
    """
    if a == b:
        return
    sides = (("A", sorted({*a} - {*b})), ("B", sorted({*b} - {*a})))
    found = "; ".join(f"only {role} has {', '.join(only)}" for role, only in sides if only)
    raise DynqError(f"A and B are not interchangeable: {found or 'their outputs are in another order'}")


def check_shapes(inputs: Sequence[Input], b: ort.InferenceSession) -> None:
    """Checks that B takes the inputs on which A has run.

    Raises:
        DynqError: The shape of an input is not the one that B declares.
    """
    declared = {each.name: each.shape for each in b.get_inputs()}
    for each in inputs:
        shape = declared[each.name]
        fits = len(shape) == len(each.shape) and all(
            got == size or not isinstance(size, int) for got, size in zip(each.shape, shape, strict=True)
        )
        if shape and not fits:  # without dimensions, it is a scalar, or has no declared shape
            advice = f"; give one that both take with --shape {each.name}=..." if each.assumed or each.given else ""
            expected = ", ".join(str(size or "?") for size in shape)
            raise DynqError(
                f"A and B are not interchangeable: the input {each.name} of A has shape {list(each.shape)}, that of B "
                f"[{expected}]{advice}"
            )
