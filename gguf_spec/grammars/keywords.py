"""The keywords of JSON Schema: which there are, and how schemas that hold together become one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

#: Schemas within schemas.
MAX_DEPTH = 64

UNSUPPORTED = frozenset(
    {
        *("not", "if", "then", "else", "multipleOf", "$dynamicRef", "$recursiveRef"),
        *("dependentRequired", "dependentSchemas", "dependencies", "patternProperties"),
        *("propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"),
        *("unevaluatedItems", "contains", "minContains", "maxContains", "uniqueItems"),
    }
)
BY_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems"}),
    "string": frozenset({"pattern", "minLength", "maxLength", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
}
CONSTRAINING = frozenset({"type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf"}).union(
    *BY_TYPE.values()
) - {"format"}
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


class SchemaError(Exception):
    """What is wrong at a JSON pointer; the text of the error has both."""

    def __init__(self, at: str, what: str, hint: str | None = None) -> None:
        shown = at if len(at) <= 100 else f"{at[:50]}…{at[-40:]}"
        super().__init__(f"{shown}: {what}")
        self.hint = hint


def items_of(schema: Mapping[str, Any], key: str, at: str) -> list[Any]:
    """The list that ``key`` holds; empty if it is absent."""
    value = schema.get(key, [])
    if not isinstance(value, list):
        raise SchemaError(f"{at}/{key}", f"{key} is a list")
    return value


def resolved(document: Any, ref: Any, at: str) -> Any:
    """What the reference ``ref`` points to in ``document``."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        raise SchemaError(
            at, f"$ref {ref!r} is not in this file", "references begin with #, as in #/$defs/a"
        )
    if ref != "#" and not ref.startswith("#/"):
        raise SchemaError(at, f"$ref {ref}: anchors are not supported", "use a pointer: #/…")
    target = document
    for part in ref.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isdigit() and int(key) < len(target):
            target = target[int(key)]
        else:
            raise SchemaError(at, f"$ref {ref} leads nowhere: there is no {key!r}")
    return target


def merged(document: Any, schema: Mapping[str, Any], at: str) -> dict[str, Any]:
    """One schema that demands what ``schema``, its reference and its allOf demand together."""
    whole: dict[str, Any] = {}
    for part in _parts(document, schema, at, 0):
        for key, value in part.items():
            if key not in whole or whole[key] == value:
                whole[key] = value
            elif key == "properties" and isinstance(value, dict):
                whole[key] = _both_properties(whole[key], value)
            elif key in _COMBINED:
                whole[key] = _combined(key, whole[key], value, at)
            elif key in CONSTRAINING:
                raise SchemaError(at, f"two different {key} cannot be combined (allOf, $ref)")
    return whole


def is_of(value: Any, kind: str) -> bool:
    """Whether a value is of a JSON type."""
    if kind in ("integer", "number"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (kind == "number" or value % 1 == 0)
    python = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, python[kind])


_LARGER = ("minimum", "exclusiveMinimum", "minLength", "minItems")
_SMALLER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems")
_COMBINED = (*_LARGER, *_SMALLER, "required", "type", "enum")


def _parts(document: Any, schema: Any, at: str, depth: int) -> Iterable[Mapping[str, Any]]:
    """Schemas that together are ``schema``, without references and allOf at the top."""
    if depth > MAX_DEPTH:
        raise SchemaError(at, "allOf and $ref go in a circle, or too deep")
    if schema is True:
        return
    if not isinstance(schema, dict):
        raise SchemaError(at, "a schema in allOf is an object")
    for key, kind in (("properties", dict), ("required", list), ("enum", list)):
        if not isinstance(schema.get(key, kind()), kind):
            raise SchemaError(
                f"{at}/{key}", f"{key} is {'an object' if kind is dict else 'a list'}"
            )
    yield {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
    if "$ref" in schema:
        ref = schema["$ref"]
        yield from _parts(document, resolved(document, ref, at), ref, depth + 1)
    for i, part in enumerate(items_of(schema, "allOf", at)):
        yield from _parts(document, part, f"{at}/allOf/{i}", depth + 1)


def _both_properties(one: Any, other: Mapping[str, Any]) -> dict[str, Any]:
    whole = dict(one)
    for name, schema in other.items():
        known = whole.get(name, schema)
        whole[name] = known if known == schema else {"allOf": [known, schema]}
    return whole


def _combined(key: str, one: Any, other: Any, at: str) -> Any:
    """One value of ``key`` for two."""
    try:
        if key in _LARGER:
            return max(one, other)
        if key in _SMALLER:
            return min(one, other)
        if key == "required":
            return [*one, *(name for name in other if name not in one)]
        if key == "enum":
            return [item for item in one if item in other]
    except TypeError:
        raise SchemaError(
            f"{at}/{key}", f"{json.dumps([one, other])[:60]} do not go together"
        ) from None
    left, right = ([types] if isinstance(types, str) else list(types) for types in (one, other))
    common = [t for t in left if t in right or (t == "integer" and "number" in right)]
    common += [t for t in right if t == "integer" and "number" in left and t not in common]
    if not common:
        raise SchemaError(at, f"no value is of type {one} and of type {other}")
    return common
