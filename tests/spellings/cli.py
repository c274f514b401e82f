"""The command line: how many spellings become integer products, and which choices the others have."""

from __future__ import annotations

import argparse
import functools
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import onnx
from onnx import helper, numpy_helper

from .check import Outcome, check, converted
from .generator import Spelling, near_miss, spelling

_FEW = 16  # elements of a constant that is shown
_EXAMPLES = """examples:
  python tests/spellings --count 1000               the rate, misses by choice, and their causes
  python tests/spellings --count 1000 --check       also compare results; the exit status is 1 if one is wrong
  python tests/spellings --seed 12 --show           one spelling, reduced to the choices that matter, and its model
  python tests/spellings --plain --set "product=Conv" --set "scheme=offset"     only these and usual choices
  python tests/spellings --seed 12 --show --set "rounding=Round" --set "opset=20"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status: 1 if a result is wrong or a near miss was converted."""
    parser = argparse.ArgumentParser(
        prog="python tests/spellings",
        description="Measures how many random spellings of quantizations become integer products.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=300, help="the number of spellings (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--check", action="store_true", help="also compare the results with the original's")
    parser.add_argument("--near-misses", action="store_true", help="check near misses instead")
    parser.add_argument("--plain", action="store_true", help="make usual choices only, except for those of --set")
    parser.add_argument(
        "--causes", type=int, default=100, help="how many misses to reduce to their causes (default: 100)"
    )
    parser.add_argument("--show", action="store_true", help="show one spelling, reduced if it is a miss")
    parser.add_argument("--set", action="append", default=[], metavar="CHOICE=VALUE", help="fix a choice")
    given = parser.parse_args(argv)
    fixed = dict(text.split("=", 1) for text in given.set)
    if given.show:
        make = near_miss if given.near_misses else functools.partial(spelling, plain=given.plain)
        return _show(functools.partial(make, given.seed), fixed)
    return _measure(given, fixed)


def _measure(given: argparse.Namespace, fixed: dict[str, str]) -> int:
    make = near_miss if given.near_misses else functools.partial(spelling, plain=given.plain)
    wrong, fused, hits, drawn, missed = 0, 0, 0, Counter[str](), Counter[str]()
    misses = []
    for seed in range(given.seed, given.seed + given.count):
        made = make(seed, fixed)
        outcome = check(made) if given.check or given.near_misses else converted(made)[1]
        if outcome.problem or (made.expected is False and outcome.products):
            wrong += 1
            least = (reduced(functools.partial(make, seed), fixed, is_wrong) or (made, outcome))[0]
            text = ", ".join(_remaining(least)) or "the plain spelling"
            print(f"WRONG: seed {seed}: {text}: {outcome.problem or 'has an integer product'}", flush=True)
        if sys.stderr.isatty():
            print(f"\r{seed - given.seed + 1} of {given.count}", end="", file=sys.stderr, flush=True)
        if made.expected is not True:
            continue
        choices = [f"{name}={value}" for name, value in made.draw.made.items()]
        if outcome.is_fused and outcome.products < made.products:
            fused += 1
            continue
        drawn.update(choices)
        if outcome.products >= made.products:
            hits += 1
        else:
            misses.append(seed)
            missed.update(choices)
    total = hits + len(misses)
    if total:
        print(f"\n{hits} of {total} ({hits / total:.1%}) have the integer product; ONNX Runtime fuses {fused} others")
        _print_choices(drawn, missed)
        _print_causes(misses[: given.causes], fixed, plain=given.plain)
    else:
        print(f"\n{given.count - wrong} of {given.count} near misses stay as they are, with the same results")
    return int(wrong > 0)


def _print_choices(drawn: Counter[str], missed: Counter[str]) -> None:
    """Prints the choices that spellings without an integer product have more often than others."""
    average = missed.total() / max(1, drawn.total())
    excess = {choice: missed[choice] - average * drawn[choice] for choice in drawn}
    print("\nmissed  drawn  choice (those with the most misses above the average)")
    for choice in sorted(excess, key=lambda each: -excess[each])[:40]:
        if excess[choice] > 0:
            print(f"{missed[choice]:6}  {drawn[choice]:5}  {choice}")


def _print_causes(seeds: Sequence[int], fixed: dict[str, str], *, plain: bool) -> None:
    causes: dict[str, list[int]] = {}
    texts = {}
    for seed in seeds:
        found = reduced(functools.partial(spelling, seed, plain=plain), fixed, is_missed)
        if found is None:
            continue
        least, outcome = found
        cause = ", ".join(_remaining(least)) or "the plain spelling"
        causes.setdefault(cause, []).append(seed)
        texts[cause] = outcome.texts
    print(f"\nmisses  seed   fewest choices with which {len(seeds)} of the misses stay misses; reasons")
    for cause, each in sorted(causes.items(), key=lambda item: -len(item[1])):
        print(f"{len(each):6}  {each[0]:<5}  {cause}")
        for text in texts[cause] or ("no reason",):
            print(f"{'':15}- {text}")


def is_missed(made: Spelling) -> tuple[bool, Outcome]:
    """Returns whether a product that could be an integer product is none."""
    outcome = converted(made)[1]
    return bool(made.expected and outcome.products < made.products and not outcome.is_fused), outcome


def is_wrong(made: Spelling) -> tuple[bool, Outcome]:
    """Returns whether the results are wrong, or a near miss was converted."""
    outcome = check(made)
    return bool(outcome.problem or (made.expected is False and outcome.products)), outcome


def reduced(
    make: Callable[[dict[str, str]], Spelling],
    fixed: dict[str, str],
    is_bad: Callable[[Spelling], tuple[bool, Outcome]],
) -> tuple[Spelling, Outcome] | None:
    """Makes a bad spelling as plain as possible.

    Args:
        make: Returns the spelling with some choices fixed.
        fixed: Choices that stay fixed.
        is_bad: Says whether a spelling is bad, and what became of it.

    Returns:
        The spelling with the fewest choices that is still bad; None if it is not bad.
    """
    best = make(fixed)
    bad, outcome = is_bad(best)
    is_changed = bad
    while is_changed:
        is_changed = False
        for name in list(best.draw.made):
            if name in fixed or best.draw.made.get(name) == best.draw.plain.get(name):
                continue
            candidate = {**fixed, name: best.draw.plain[name]}
            made = make(candidate)
            still_bad, found = is_bad(made)
            if still_bad:
                best, outcome, fixed, is_changed = made, found, candidate, True
    return (best, outcome) if bad else None


def _remaining(made: Spelling) -> list[str]:
    return [f"{name}={value}" for name, value in made.draw.made.items() if value != made.draw.plain[name]]


def _show(make: Callable[[dict[str, str]], Spelling], fixed: dict[str, str]) -> int:
    made = make(fixed)
    outcome = check(made)
    made, outcome = reduced(make, fixed, is_wrong) or reduced(make, fixed, is_missed) or (made, outcome)
    print(_text(made.model))
    print("; ".join(_remaining(made)) or "the plain spelling")
    print(f"{outcome.products} of {made.products} integer products", *outcome.texts, outcome.problem, sep="\n- ")
    return int(bool(outcome.problem))


def _text(model: onnx.ModelProto) -> str:
    """Returns the text of a model; its large constants are only named."""
    short = onnx.ModelProto()
    short.CopyFrom(model)
    for tensor in list(short.graph.initializer):
        if numpy_helper.to_array(tensor).size > _FEW:
            short.graph.initializer.remove(tensor)
            element = helper.tensor_dtype_to_string(tensor.data_type).partition(".")[2].lower()
            short.graph.doc_string += f"{tensor.name}: {element}{list(tensor.dims)} "
    return f"{onnx.printer.to_text(short)}\n{short.graph.doc_string}"
