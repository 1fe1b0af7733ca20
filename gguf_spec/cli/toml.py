"""Writing TOML: as much of it as a profile needs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(table: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> str:
    """``table`` as TOML. What only ``defaults`` has follows in comments, table by table."""
    lines: list[str] = []
    _write(table, defaults or {}, "", lines)
    return "\n".join(lines).strip("\n")


def _write(
    table: Mapping[str, Any], defaults: Mapping[str, Any], path: str, lines: list[str]
) -> None:
    every = {**defaults, **table}
    plain = {k: v for k, v in every.items() if v is not None and not _is_table(k, v, path)}
    if path and plain:
        lines.append(f"\n[{path}]" if any(k in table for k in plain) else f"\n# [{path}]")
    for key, value in plain.items():
        lines.append(f"{'' if key in table else '# '}{_key(key)} = {_value(value)}")
    for key, value in every.items():
        if _is_table(key, value, path):
            below = f"{path}.{_key(key)}" if path else _key(key)
            _write(table.get(key, {}), defaults.get(key, {}), below, lines)


def _is_table(key: str, value: object, path: str) -> bool:
    """Free tables (template arguments, biases) are written inline, so that they can be empty."""
    return isinstance(value, Mapping) and path in ("", "spec")


def _key(key: object) -> str:
    text = str(key)
    return text if _BARE.fullmatch(text) else json.dumps(text)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, except that TOML wants DEL escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return str(value)


def finite(value: Any) -> Any:
    """``value`` with infinities as texts, which JSON has no numbers for."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
