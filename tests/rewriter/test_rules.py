"""The list of rules: every rule is in it, and no rule depends on another one."""

from __future__ import annotations

import ast
import pkgutil
from pathlib import Path

import pytest

from ort_dynq.rewriter import rules
from ort_dynq.rewriter.rule import Rule

MODULES = [module.name for module in pkgutil.iter_modules(rules.__path__)]


def test_every_rule_is_listed_once_under_its_own_name() -> None:
    listed = [rule for phase in rules.PHASES for rule in phase]
    found = [value for name in MODULES for value in vars(getattr(rules, name)).values() if isinstance(value, Rule)]
    assert sorted(rule.name for rule in listed) == sorted(rule.name for rule in found)
    assert len({rule.name for rule in listed}) == len(listed)


@pytest.mark.parametrize("name", MODULES)
def test_rules_do_not_import_each_other(name: str) -> None:
    tree = ast.parse((Path(rules.__path__[0]) / f"{name}.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert all(node.level != 1 and "rules" not in (node.module or "") for node in imports)
    assert not any(alias.name in MODULES for node in imports for alias in node.names)
