"""Arguments that several subcommands take, and the types of their values."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DynqError
from ..files import target_of
from ..rewrite_options import WEIGHTS_ONLY
from .render import SCALAR

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..inputs import Array
    from ..storage import Model


_PAGES = (".html", ".htm", ".xhtml")

RARE = "seldom needed"
"""The title of the group of options that only --help-all shows."""


def rare(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Returns the group of the options that only --help-all shows."""
    found = (group for group in parser._action_groups if group.title == RARE)
    return next(found, None) or parser.add_argument_group(RARE)


def add_output(parser: argparse.ArgumentParser, *, takes_folders: bool = True) -> None:
    """Adds --output and --force."""
    model, replaced = ("the new model or folder", "IN, or a folder") if takes_folders else ("the new model", "IN")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help=model)
    parser.add_argument("--force", action="store_true", help=f"allow OUT to replace {replaced}")


def add_exact(parser: argparse._ActionsContainer) -> None:
    """Adds --exact."""
    parser.add_argument(
        "--exact",
        action="store_true",
        help="keep every output bit-identical: products of floats stay products of floats",
    )


def add_fuse(parser: argparse._ActionsContainer) -> None:
    """Adds --fuse."""
    parser.add_argument(
        "--fuse",
        action="store_true",
        help="fuse normalizations, activation functions and attention, too: changes the last bits of floats",
    )


def add_changes(parser: argparse.ArgumentParser) -> None:
    """Adds --weights-only and --keep-fused, and --exact and --fuse, which exclude each other."""
    changes = parser.add_mutually_exclusive_group()
    add_exact(changes)
    add_fuse(changes)
    add_weights_only(parser)
    add_keep_fused(parser)


def add_require_plugin(parser: argparse.ArgumentParser) -> None:
    """Adds --require-plugin."""
    rare(parser).add_argument(
        "--require-plugin",
        action="store_true",
        help="write no functions with which OUT runs without the plugin, but several times as slowly as IN: a session "
        "without it fails at once",
    )


def add_keep_fused(parser: argparse.ArgumentParser) -> None:
    """Adds --keep-fused."""
    rare(parser).add_argument(
        "--keep-fused",
        action="store_true",
        help="leave integer products that ONNX Runtime fuses with the quantization before them: they are wrong on x86 "
        "CPUs without VNNI, where their sums saturate",
    )


def add_weights_only(parser: argparse.ArgumentParser) -> None:
    """Adds --weights-only."""
    parser.add_argument(
        "--weights-only",
        choices=WEIGHTS_ONLY,
        help="4-bit and 8-bit weights with float activations. keep: as accuracy_level says (default); blocks: fastest; "
        "two-term: greedy tokens stay those of floats",
    )


def add_gates(parser: argparse.ArgumentParser) -> None:
    """Adds --min-snr, --min-agreement and --min-cosine as limits."""
    gates = parser.add_argument_group("limits of the accuracy; exit status 1 if one is not reached")
    gates.add_argument("--min-snr", type=decibels, metavar="DB", help="of the signal-to-noise ratio of each output")
    add_other_gates(gates)


def add_other_gates(gates: argparse._ActionsContainer) -> None:
    """Adds --min-agreement and --min-cosine."""
    gates.add_argument(
        "--min-agreement",
        type=share,
        metavar="SHARE",
        help="of the share of equal decisions: largest elements, probabilities above one half, tokens (CTC)",
    )
    gates.add_argument("--min-cosine", type=cosine, metavar="COSINE", help="of the cosine of each row")


def add_data(parser: argparse.ArgumentParser) -> None:
    """Adds --data, --input, --shape, --seed and --backend."""
    add_inputs(parser)
    add_seed(parser, "seed of the generated values (default: 0)")
    add_backend(parser)


def add_seed(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds --seed."""
    rare(parser).add_argument("--seed", type=natural, default=0, metavar="N", help=text)


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Adds --data, --input and --shape."""
    data = parser.add_argument_group("input data (default: generated)")
    data.add_argument(
        "--data",
        metavar="PATH",
        help="an NPZ file with an array for each input, or for several sets of them; or a folder of such files",
    )
    data.add_argument("--shape", metavar="X=1x128", action="append", default=[], help="shape of the generated input X")
    rare(parser).add_argument(
        "--input",
        metavar="X=FILE.npy",
        action="append",
        default=[],
        help="read the values of the input X; other inputs are generated",
    )


def add_page(parser: argparse.ArgumentParser) -> None:
    """Adds --report, a page beside the text."""
    parser.add_argument("--report", metavar="OUT.html", help="also write an HTML page, with pictures, in one file")


def add_backend(parser: argparse.ArgumentParser) -> None:
    """Adds --backend."""
    rare(parser).add_argument(
        "--backend",
        choices=("native", "extensions"),
        default="native",
        help="how sessions get ort_dynq's operators: from its native library (default), or through "
        "onnxruntime-extensions",
    )


def check_data(arguments: argparse.Namespace) -> None:
    """Checks the path of --data before libraries are loaded.

    Raises:
        DynqError: There is nothing, or --input or --shape are given as well.
    """
    if arguments.data and not os.path.lexists(arguments.data):
        raise DynqError(f"there is no file or folder {arguments.data} with data")
    if arguments.data and (arguments.shape or arguments.input):
        raise DynqError(
            "--data gives the values and shapes of all inputs; --input and --shape cannot be combined with it"
        )


def given_inputs(
    arguments: argparse.Namespace,
) -> tuple[dict[str, tuple[int, ...]], dict[str, npt.NDArray[np.generic]]]:
    """Returns the shapes and the values that --shape and --input give, by the name of the input.

    Raises:
        DynqError: A text does not have the right form, or a file is not a .npy file.
    """
    return dict(map(_parse_shape, arguments.shape)), dict(map(_load_input, arguments.input))


def given_sets(arguments: argparse.Namespace, model: Model) -> tuple[Mapping[str, Array], ...]:
    """Returns the sets of --data for a model; none if it is not given.

    Raises:
        DynqError: The data cannot be read, or do not fit the model's inputs.
    """
    check_data(arguments)
    if not arguments.data:
        return ()
    from ..tools.measuring.data import declared_inputs, load_data

    return load_data(arguments.data, declared_inputs(model)).sets


def given_data(
    arguments: argparse.Namespace, model: Model
) -> tuple[dict[str, tuple[int, ...]], dict[str, npt.NDArray[np.generic]]]:
    """Returns the shapes and the values of a model's inputs: the first set of --data, or :func:`given_inputs`.

    Raises:
        DynqError: The data cannot be read, or do not fit the model's inputs.
    """
    if sets := given_sets(arguments, model):
        return {}, dict(sets[0])
    return given_inputs(arguments)


def check_target(source: Path, target: Path, *, force: bool) -> None:
    """Checks the path of an output file before the work starts.

    Args:
        source: The input file.
        target: The output file.
        force: Whether the output may replace the input.

    Raises:
        DynqError: The output cannot be written there.
    """
    resolved = target_of(target)
    folder = resolved.parent if target.is_symlink() else target.parent
    if not folder.is_dir():
        raise DynqError(f"there is no folder {folder} to write {target.name} in")
    if target.exists() and source.exists() and target.samefile(source) and not force:
        raise DynqError(f"{target} is the input itself; use --force to overwrite it")


def check_page(source: Path, target: Path) -> None:
    """Checks the path of an HTML page about a model before the work starts.

    Args:
        source: The model.
        target: The page.

    Raises:
        DynqError: The page cannot be written there, would replace the model, or has the name of another format.
    """
    check_target(source, target, force=True)
    if target.exists() and source.exists() and target.samefile(source):
        raise DynqError(f"{target} is the model itself; choose another name for the report")
    if target.suffix.lower() not in ("", *_PAGES):
        raise DynqError(f"the report is an HTML page; choose a name that ends with {_PAGES[0]} instead of {target}")


def similar(word: str, words: Iterable[str]) -> str:
    """Returns the one of some words that was probably meant; an empty string if none is similar."""
    return next(iter(difflib.get_close_matches(str(word).lower(), map(str, words), 1)), "")


def positive(text: str) -> int:
    """Parses a positive integer below one million."""
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise argparse.ArgumentTypeError(f"{text} is not a positive integer")
    return int(text)


def natural(text: str) -> int:
    """Parses a non-negative integer."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a non-negative integer")
    return int(text)


def seconds(text: str) -> float:
    """Parses a positive number of seconds."""
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or not 0 < float(text) < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return float(text)


def decibels(text: str) -> float:
    """Parses a number of decibels."""
    if not re.fullmatch(r"-?[0-9]{0,3}\.?[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text} is not a number of decibels")
    return float(text)


def share(text: str) -> float:
    """Parses a number from 0 to 1."""
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or not float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to 1")
    return float(text)


def ratio(text: str) -> float:
    """Parses a positive ratio."""
    if not re.fullmatch(r"[0-9]{0,3}\.?[0-9]+", text) or not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive ratio")
    return float(text)


def cosine(text: str) -> float:
    """Parses a number from -1 to 1."""
    if not re.fullmatch(r"-?[0-9]*\.?[0-9]+", text) or not abs(float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a cosine from -1 to 1")
    return float(text)


def positives(text: str) -> tuple[int, ...]:
    """Parses positive integers separated by commas."""
    return tuple(map(positive, text.split(",")))


def thread_counts(text: str) -> tuple[int, ...]:
    """Parses numbers of threads separated by commas."""
    if not re.fullmatch(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*", text):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of threads, or several like 1,2")
    return tuple(map(int, text.split(",")))


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition("=")
    if name and sizes == SCALAR:
        return name, ()
    if not name or not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", sizes):
        raise DynqError(f"--shape {text} is not of the form NAME=1x128x768")
    return name, tuple(map(int, sizes.split("x")))


def _load_input(text: str) -> tuple[str, npt.NDArray[np.generic]]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise DynqError(f"--input {text} is not of the form NAME=FILE.npy")
    if not os.path.lexists(path):
        raise DynqError(f"there is no file {path}")
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DynqError(f"{path} is not a .npy file: {error}") from error
    if not isinstance(array, np.ndarray):
        raise DynqError(f"{path} contains several arrays; --input takes a .npy file with one array")
    return name, array
