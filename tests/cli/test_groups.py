"""What holds for every command, whatever options it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from gguf_spec.cli.app import app
from gguf_spec.cli.groups import FREE_TEXT
from tests.cli.conftest import Cli


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with what is typed to get there."""
    nested = getattr(command, "commands", None)
    if nested is None:
        yield path, command
    for name, child in (nested or {}).items():
        yield from commands(child, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def lines(path: tuple[str, ...], blank: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A command line for each value that names something, with ``blank`` there; and its name."""
    parameters = COMMANDS[path].params
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    filled = tuple("x" for p in arguments if p.required)
    for parameter in parameters:
        if parameter.metavar == FREE_TEXT or getattr(parameter, "is_flag", False):
            continue
        if parameter.param_type_name == "argument":
            before = arguments.index(parameter)
            yield parameter.metavar, (*path, *["x"] * before, blank, *filled[before + 1 :])
        elif parameter.name not in ("help", "install_completion", "show_completion"):
            yield parameter.opts[-1], (*path, *filled, parameter.opts[-1], blank)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("blank", ["", " \t"])
def test_no_value_that_names_something_may_be_blank(
    cli: Cli, path: tuple[str, ...], blank: str
) -> None:
    for name, line in lines(path, blank):
        result = cli(*line)
        assert result.code == 2, (line, result)
        assert result.err.startswith("error: "), line
        assert f"'{name}'" in result.err.replace(" / ", "' '"), (line, result)


def test_the_walk_finds_options_and_arguments() -> None:
    found = {(*path, name) for path in COMMANDS for name, _ in lines(path, "")}
    assert {
        ("plan", "--min-quant"),
        ("plan", "--gpu"),
        ("run", "--draft"),
        ("run", "PROFILE|REF"),
    } <= found
    assert {("profiles", "new", "NAME"), ("models", "[FOLDER]...")} <= found
    assert ("run", "--prompt") not in found
