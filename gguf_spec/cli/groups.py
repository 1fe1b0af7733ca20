"""What all commands have in common: groups of options that several share, and no empty names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand

Command = Callable[..., None]
#: The metavar of values that are free text, and may be empty; all others name or count something.
FREE_TEXT = "TEXT"


class CheckedCommand(TyperCommand):
    """A command that refuses values which are empty or blank, as of an unset shell variable.

    What such a value would mean depends on who reads it: no value, the first of a list, the
    working folder. Commands declare names as ``str``: as a ``Path`` an empty one is ".".
    """

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse a command line. Raises BadParameter, of exit code 2, for a blank value."""
        context = super().make_context(*args, **extra)
        parameter: Any
        for parameter in self.params:
            value = context.params.get(parameter.name or "")
            if parameter.metavar == FREE_TEXT or value is None:
                continue
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, str) and not item.strip():
                    raise typer.BadParameter("it is empty", ctx=context, param=parameter)
        return context


def check_values(app: typer.Typer) -> None:
    """Make a ``CheckedCommand`` of every command of ``app``, those of its groups included."""
    for command in app.registered_commands:
        command.cls = CheckedCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            check_values(group.typer_instance)


def flat(command: Command) -> Command:
    """``command`` as typer wants it: a parameter that is a dataclass is replaced by its fields.

    typer reads a command's options off its signature and knows no groups of them. Written out,
    every command would repeat some thirty parameters, and each would have to be handed on.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: dict[str, inspect.Parameter] = {}
    groups: dict[str, tuple[type, list[str]]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and is_dataclass(kind):
            types = get_type_hints(kind, include_extras=True)
            groups[name] = (kind, [field.name for field in fields(kind)])
            for field in fields(kind):
                parameters[field.name] = _parameter(field, types[field.name])
        else:
            parameters[name] = parameter.replace(
                annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY
            )

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        for name, (kind, names) in groups.items():
            values[name] = kind(**{part: values.pop(part) for part in names})
        command(**values)

    del wrapper.__wrapped__  # or the signature would be looked up on the original
    wrapper.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    wrapper.__annotations__ = {name: item.annotation for name, item in parameters.items()}
    return wrapper


def _parameter(field: Field[Any], kind: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
    )
