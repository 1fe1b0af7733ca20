"""Checks of option values. What they raise is shown with the option as the user typed it."""

from __future__ import annotations

import math
from collections.abc import Callable

import typer

MAX_TOKENS = 2**31 - 1  # llama.cpp counts tokens in 32 bits
MAX_THREADS = 512  # GGML_MAX_N_THREADS in ggml.h
MAX_SEED = 2**32 - 1


def ctx_size(value: str | None) -> str | None:
    """A number of tokens, or ``max``."""
    return _number_or_word(value, ("max",), 1, "a number of tokens from 1 up")


def gpu_layers(value: str | None) -> str | None:
    """A number of layers, or ``auto`` or ``all``."""
    return _number_or_word(value, ("auto", "all"), 0, "a number of layers from 0 up")


def word_or_number(value: str) -> str | int:
    """What a text checked by ``ctx_size`` or ``gpu_layers`` stands for."""
    return int(value) if value.isdigit() else value


def n_predict(value: int | None) -> int | None:
    """A number of tokens, or -1 for no limit."""
    if value is not None and value != -1 and value < 1:
        raise typer.BadParameter(f"{value} is no number of tokens: from 1 up, or -1 (unlimited)")
    return value


def whole(least: int, most: int) -> Callable[[int | None], int | None]:
    """A check: a whole number in a range."""

    def check(value: int | None) -> int | None:
        if value is not None and value < least:
            raise typer.BadParameter(f"{value} is too small: a whole number from {least} up")
        if value is not None and value > most:
            raise typer.BadParameter(f"{value} is too large: at most {most}")
        return value

    return check


def each(
    check: Callable[[int | None], int | None],
) -> Callable[[list[int] | None], list[int] | None]:
    """A check of every value of a repeatable option."""

    def check_all(value: list[int] | None) -> list[int] | None:
        for item in value or ():
            check(item)
        return value

    return check_all


def real(least: float, most: float = math.inf) -> Callable[[float | None], float | None]:
    """A check: a finite number in a range."""

    def check(value: float | None) -> float | None:
        if value is not None and not (math.isfinite(value) and least <= value <= most):
            bound = "up" if most == math.inf else f"to {most:g}"
            raise typer.BadParameter(f"{value:g} is no number from {least:g} {bound}")
        return value

    return check


def tensor_split(value: str | None) -> str | None:
    """Proportions with commas between them."""
    if value is None:
        return None
    try:
        shares = [float(part) for part in value.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a list of numbers such as 3,1") from None
    if not all(math.isfinite(share) and share >= 0 for share in shares) or sum(shares) <= 0:
        raise typer.BadParameter(f"{value!r}: shares are numbers from 0 up, and not all of them 0")
    return value


def devices(value: str | None) -> str | None:
    """Names of devices with commas between them, or ``none``."""
    names = [] if value is None else [name.strip() for name in value.split(",")]
    if "" in names:
        raise typer.BadParameter(f"{value!r} is no list of devices such as CUDA0,CUDA1; or none")
    if "none" in names and len(names) > 1:
        raise typer.BadParameter(f"{value!r}: none stands alone")
    return value


def spec_types(value: str | None) -> str | None:
    """Spec types with commas between them."""
    if value is not None:
        from gguf_spec.errors import UsageError
        from gguf_spec.profile import parse_spec_types

        try:
            parse_spec_types(value)
        except UsageError as error:
            raise typer.BadParameter(error.message) from None
    return value


def on_off_auto(value: str | None) -> str | None:
    """``on``, ``off`` or ``auto``."""
    if value is not None and value not in ("on", "off", "auto"):
        raise typer.BadParameter(f"{value!r} is none of on, off, auto")
    return value


def one_of(*words: str) -> Callable[[str], str]:
    """A check: one of some words."""

    def check(value: str) -> str:
        if value not in words:
            raise typer.BadParameter(f"{value!r} is none of {', '.join(words)}")
        return value

    return check


def verify_rule(value: str | None) -> str | None:
    """``match``, ``residual`` or ``auto``."""
    if value is not None and value not in ("match", "residual", "auto"):
        raise typer.BadParameter(f"{value!r} is none of match, residual, auto")
    return value


def texts(value: list[str] | None) -> list[str] | None:
    """Texts, none of them empty."""
    if value and "" in value:
        raise typer.BadParameter("an empty text would stop before the first token")
    return value


def assignments(value: list[str] | None) -> list[str] | None:
    """``KEY=VALUE`` each."""
    for item in value or []:
        if "=" not in item.lstrip("="):
            raise typer.BadParameter(f"{item!r} is not KEY=VALUE, as in target.n_ctx=4096")
    return value


def _number_or_word(value: str | None, words: tuple[str, ...], least: int, what: str) -> str | None:
    if value is None or value in words:
        return value
    digits = value.isascii() and value.isdigit() and len(value) <= 10
    if not digits or not least <= int(value) <= MAX_TOKENS:
        raise typer.BadParameter(f"{value!r} is neither {what} nor {' or '.join(words)}")
    return value
