"""The help of each command: what fits a screen, and what only --help-all shows."""

from __future__ import annotations

import re

import pytest

from ort_dynq import cli
from ort_dynq.cli import command


@pytest.mark.parametrize("name", [each.name for each in cli.COMMANDS])
def test_help_fits_a_screen(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 lines and 80 columns. `--help-all` adds the options that are seldom needed, and takes nothing away."""
    monkeypatch.setenv("COLUMNS", "80")
    parser = command.subparser(cli.parser(), name)
    shown: dict[str, str] = {}
    for option in ("--help", "--help-all"):
        if option in parser._option_string_actions:
            with pytest.raises(SystemExit):
                cli.main([name, option])
            shown[option] = capsys.readouterr().out
    assert len(shown["--help"].splitlines()) <= 40
    assert max(map(len, shown["--help"].splitlines())) <= 80
    options = {option for option in parser._option_string_actions if option.startswith("--")}
    assert options == {*re.findall(r"--[a-z][a-z-]*[a-z]", shown.get("--help-all", shown["--help"]))} & options
    hidden = {"--backend", "--opset", "--body", "--isa", "--warmup", "--keep-fused", "--allow-none", "--symmetric"}
    assert not hidden & {*shown["--help"].split()}
