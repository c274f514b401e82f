"""The list of rules: every rule is in it, no rule depends on another one, and none changes a model when it matches."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

from rule_lists import RULES

from ort_dynq import rewriter
from ort_dynq.rewriter.rule import Rule

MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(rewriter.__path__, f"{rewriter.__name__}.")
    if not module.name.endswith(".rules")
]
RULE_MODULES = [module for module in MODULES if any(isinstance(value, Rule) for value in vars(module).values())]


def test_every_rule_is_listed_once_under_its_own_name() -> None:
    found = {id(value) for module in RULE_MODULES for value in vars(module).values() if isinstance(value, Rule)}
    assert {id(rule) for rule in RULES} == found
    assert len({rule.name for rule in RULES}) == len(RULES) > 10


def test_rules_do_not_import_each_other() -> None:
    names = {module.__name__.split(".")[-1] for module in RULE_MODULES}
    for module in RULE_MODULES:
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert (node.module or "").split(".")[-1] not in names, module.__name__
                assert not names & {alias.name for alias in node.names}, module.__name__
