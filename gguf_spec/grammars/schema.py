"""From a JSON schema to a GBNF grammar of the JSON texts that are valid by it.

Every text of the grammar is JSON and valid by the schema; not every valid text is one of the
grammar. Where a schema leaves freedom, it is used to keep grammars small and models on track:

- properties come in the order of the schema, and an object that declares some has no others unless
  ``additionalProperties`` says so (llama.cpp's converter decides likewise);
- white space is at most a blank, or a line break with indentation, and there is none at the end;
- numbers have at most 16 digits before and 15 behind the point.

``oneOf`` is read as ``anyOf``: which alternative a value came from cannot be seen in the value.
Annotations (``title``, ``description``, ``default``, ``format`` of other kinds …) change nothing.
Keywords that constrain, and cannot be expressed, are errors: nothing is silently left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from gguf_spec.errors import InputError
from gguf_spec.grammars.gbnf import MAX_REPETITIONS
from gguf_spec.grammars.keywords import (
    BY_TYPE,
    CONSTRAINING,
    MAX_DEPTH,
    TYPES,
    UNSUPPORTED,
    SchemaError,
    is_of,
    items_of,
    merged,
    resolved,
)
from gguf_spec.grammars.numbers import integers, numbers
from gguf_spec.grammars.pattern import CHARACTER, pattern_rule

MAX_BYTES = 256 * 1024

_COMMON = {
    "ws": r'| " " | "\n" [ \t]{0,20}',
    "comma": 'ws "," ws',
    "char": CHARACTER,
    "string": r'"\"" char* "\""',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" ws ( member ( comma member )* ws )? "}"',
    "member": 'string ws ":" ws value',
    "array": '"[" ws ( value ( comma value )* ws )? "]"',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "number": numbers(None, None),
    "integer": integers(None, None),
    "date": r'[0-9]{4} "-" ( "0" [1-9] | "1" [0-2] ) "-" ( "0" [1-9] | "1" [0-9] | "2" [0-8] )',
    "time": '( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9] ":" [0-5] [0-9] ( "." [0-9]{1,9} )? '
    '( "Z" | [-+] ( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9] )',
    "uuid": '[0-9a-fA-F]{8} ( "-" [0-9a-fA-F]{4} ){3} "-" [0-9a-fA-F]{12}',
}
_FORMATS = {
    "date": r'"\"" date "\""',
    "time": r'"\"" time "\""',
    "date-time": r'"\"" date "T" time "\""',
    "uuid": r'"\"" uuid "\""',
}
_USES = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|([A-Za-z0-9-]+)')


def schema_to_gbnf(text: str, name: str = "schema") -> str:
    """The grammar for the JSON schema in ``text``; ``name`` is what errors call it.

    Raises:
        InputError: it is not JSON, not a schema, beyond a limit, or needs what cannot be expressed.
    """
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_BYTES:
        raise InputError(f"{name}: the schema has {size:,} bytes, the most is {MAX_BYTES:,}")
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{name}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{name}: not JSON that can be read: {error}") from None
    try:
        return _Converter(schema).grammar()
    except SchemaError as error:
        raise InputError(f"{name}: {error}", hint=error.hint) from None


class _Converter:
    """Rules for one schema document."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._rules: dict[str, str] = {}
        self._by_ref: dict[str, str] = {}

    def grammar(self) -> str:
        """All rules, the root first."""
        root = self._visit(self._document, "#", "root", 0)
        rules = {"root": root, **self._rules}
        self._check_circles()
        todo, used = ["root"], {"root": None}
        while todo:
            for match in _USES.finditer(rules[todo.pop()]):
                rule = match[1]
                # Bounds of repetitions are digits, and look like names.
                if rule and not rule.isdigit() and rule not in used:
                    used[rule] = None
                    rules.setdefault(rule, _COMMON.get(rule, ""))
                    todo.append(rule)
        return "".join(f"{rule} ::= {rules[rule]}\n" for rule in used)

    def _check_circles(self) -> None:
        for ref, rule in self._by_ref.items():
            seen = set()
            while rule in self._rules and rule not in seen:
                seen.add(rule)
                rule = self._rules[rule]
            if rule in seen:
                raise SchemaError(ref, "the $ref goes in a circle")

    def _add(self, hint: str, body: str) -> str:
        """A rule with a name like ``hint``."""
        name = self._reserve(hint)
        self._rules[name] = body
        return name

    def _reserve(self, hint: str) -> str:
        base = re.sub(r"[^A-Za-z0-9]+", "-", hint)[:40].strip("-") or "x"
        name, n = base, 2
        while name in self._rules or name in _COMMON or name == "root" or name.isdigit():
            name, n = f"{base}-{n}", n + 1
        self._rules[name] = ""
        return name

    def _visit(self, schema: Any, at: str, hint: str, depth: int) -> str:
        """An expression, safe in a sequence, for the values of ``schema``, which stands at the JSON
        pointer ``at``."""
        if depth > MAX_DEPTH:
            raise SchemaError(at, f"more than {MAX_DEPTH} schemas within each other")
        if schema is True or schema == {}:
            return "value"
        if schema is False:
            raise SchemaError(at, "the schema false allows no value")
        if not isinstance(schema, dict):
            raise SchemaError(at, f"a schema is an object, not {json.dumps(schema)[:40]}")
        if bad := sorted(UNSUPPORTED & {key for key in schema if schema[key] not in (False, None)}):
            raise SchemaError(
                at,
                f"{bad[0]} is not supported",
                "a grammar cannot express it; leave it out, and check the answer afterwards",
            )
        if set(schema) & CONSTRAINING == {"$ref"}:
            return self._ref(schema["$ref"], at, depth)
        if "$ref" in schema or "allOf" in schema:
            return self._visit(merged(self._document, schema, at), at, hint, depth + 1)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._any_of(schema, key, at, hint, depth)
        return self._plain(schema, at, hint, depth)

    def _ref(self, ref: Any, at: str, depth: int) -> str:
        rule = self._by_ref.get(ref) if isinstance(ref, str) else None
        if rule is None:
            target = resolved(self._document, ref, at)
            self._by_ref[ref] = rule = self._reserve(ref.rsplit("/", 1)[-1])
            self._rules[rule] = self._visit(target, ref, rule, depth + 1)
        return rule

    def _any_of(self, schema: dict[str, Any], key: str, at: str, hint: str, depth: int) -> str:
        options = items_of(schema, key, at)
        if not options:
            raise SchemaError(f"{at}/{key}", "there are no alternatives")
        base = {k: v for k, v in schema.items() if k != key}
        constrained = bool(set(base) & CONSTRAINING)
        found = []
        for i, option in enumerate(options):
            where = f"{at}/{key}/{i}"
            whole = {"allOf": [base, option]} if constrained else option
            found.append(self._visit(whole, where, f"{hint}-{i}", depth + 1))
        return self._choice(found)

    def _plain(self, schema: dict[str, Any], at: str, hint: str, depth: int) -> str:
        """A schema that is a type with its constraints, or a list of values."""
        types = self._types(schema, at)
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else items_of(schema, "enum", at)
            if "const" in schema and schema["const"] not in schema.get("enum", values):
                values = []
            values = [v for v in values if any(is_of(v, t) for t in types)]
            if not values:
                raise SchemaError(at, "no value is allowed (enum, const and type)")
            return self._choice([literal(json.dumps(v, ensure_ascii=False)) for v in values])
        if set(schema) & (CONSTRAINING | {"format"}) == set():
            return "value"
        found = [self._typed(kind, schema, at, hint, depth) for kind in types]
        return self._choice(found)

    def _types(self, schema: dict[str, Any], at: str) -> Sequence[str]:
        """The types that a schema allows; without ``type``, what its keywords are about."""
        given = schema.get("type")
        if given is None:
            about = [kind for kind, keys in BY_TYPE.items() if keys & set(schema)]
            return TYPES if "enum" in schema or "const" in schema else about
        types: list[Any] = [given] if isinstance(given, str) else given
        if not isinstance(types, list) or not types or any(t not in TYPES for t in types):
            raise SchemaError(
                f"{at}/type", f"unknown type {json.dumps(given)}", f"types: {', '.join(TYPES)}"
            )
        return types

    def _typed(self, kind: str, schema: dict[str, Any], at: str, hint: str, depth: int) -> str:
        if kind == "object":
            return self._object(schema, at, hint, depth)
        if kind == "array":
            return self._array(schema, at, hint, depth)
        if kind == "string":
            return self._string(schema, at, hint)
        if kind in ("number", "integer") and BY_TYPE["number"] & set(schema):
            return self._number(kind, schema, at, hint)
        return kind

    def _object(self, schema: dict[str, Any], at: str, hint: str, depth: int) -> str:
        properties = schema.get("properties", {})
        required = items_of(schema, "required", at)
        if not all(isinstance(name, str) for name in required):
            raise SchemaError(f"{at}/required", "required is a list of names")
        other = schema.get("additionalProperties", not (properties or required))
        if not isinstance(properties, dict):
            raise SchemaError(f"{at}/properties", "properties is an object")
        members: list[tuple[str, bool]] = []
        for name in (*properties, *(n for n in required if n not in properties)):
            if name not in properties and other is False:
                raise SchemaError(at, f"{name!r} is required, but no such property is allowed")
            inner = properties.get(name, other)
            where = f"{at}/properties/{name}"
            value = self._visit(inner, where, f"{hint}-{name}", depth + 1)
            key = literal(json.dumps(name, ensure_ascii=False))
            members.append((f'{key} ws ":" ws {value}', name in required))
        if not members and other is True:
            return "object"
        rest, first = "", ""
        if other is not False:
            where = f"{at}/additionalProperties"
            value = self._visit(other, where, f"{hint}-other", depth + 1)
            key = self._other_key([*properties, *required], hint)
            more = self._add(f"{hint}-more", f'{key} ws ":" ws {value}')
            rest, first = f"( comma {more} )*", f"{more} ( comma {more} )*"
        n_leading = next((i for i, (_, needed) in enumerate(members) if needed), len(members))
        for i in range(len(members) - 1, -1, -1):
            member, needed = members[i]
            if i >= n_leading:
                first = f"{member} {rest}"
            else:
                rule = self._add(f"{hint}-after", rest) if rest else ""
                others = f" | {first}" if first else ""
                first = self._add(f"{hint}-from", f"{member} {rule}{others}")
                rest = rule
            if i:
                rest = f"comma {member} {rest}" if needed else f"( comma {member} )? {rest}"
        if not first.strip():
            return self._add(hint, '"{" ws "}"')
        body = f"( {first} ws )?" if n_leading == len(members) else f"{first} ws"
        return self._add(hint, f'"{{" ws {body} "}}"')

    def _other_key(self, names: Sequence[str], hint: str) -> str:
        """A key that is none of ``names``. It has no escapes, which could spell one of them."""
        if not names:
            return "string"
        plain = r'"\\\x7F\x00-\x1F'
        tree: dict[str, Any] = {}
        for name in names:
            node = tree
            for char in name:
                node = node.setdefault(char, {})
            node["end"] = True

        def rule(node: dict[str, Any]) -> str:
            chars = [c for c in node if c != "end"]
            found = [f"[^{plain}{''.join(map(in_class, chars))}] [^{plain}]*"]
            found += [f"{literal(c)} {rule(node[c])}" for c in chars]
            body = " | ".join(found)
            return self._add(f"{hint}-key", body if "end" in node else f"| {body}")

        try:
            return rf'"\"" {rule(tree)} "\""'
        except RecursionError:
            raise SchemaError("#", "a property has a name that is too long") from None

    def _array(self, schema: dict[str, Any], at: str, hint: str, depth: int) -> str:
        items = schema.get("items", True)
        prefix = items_of(schema, "prefixItems", at)
        if isinstance(items, list):  # before 2020-12
            prefix, items = items, schema.get("additionalItems", False)
        elif prefix and "items" not in schema:
            items = False
        low = self._whole(schema, "minItems", at) or 0
        high = self._whole(schema, "maxItems", at)
        if items is False:
            high = min(len(prefix), len(prefix) if high is None else high)
        if high is not None and high < low:
            raise SchemaError(at, f"at least {low} items and at most {high}")
        parts = [
            self._visit(item, f"{at}/prefixItems/{i}", f"{hint}-{i}", depth + 1)
            for i, item in enumerate(prefix[: len(prefix) if high is None else high])
        ]
        item = ""
        if items is not False and (high is None or high > len(parts)):
            item = self._add(
                f"{hint}-item", self._visit(items, f"{at}/items", f"{hint}-item", depth + 1)
            )
        # Items that may be missing, from the last one on.
        tail = ""
        if item:
            least = max(low - max(len(parts), 1), 0)
            most = "" if high is None else str(high - max(len(parts), 1))
            tail = f"( comma {item} ){{{least},{most}}}"
            parts = parts or [item]
        for i in range(len(parts) - 1, 0, -1):
            tail = f"comma {parts[i]} {tail}" if i < low else f"( comma {parts[i]} {tail} )?"
        body = f"{parts[0]} {tail} ws" if parts else ""
        if body and low == 0:
            body = f"( {body} )?"
        return self._add(hint, f'"[" ws {body} "]"')

    def _string(self, schema: dict[str, Any], at: str, hint: str) -> str:
        low = self._whole(schema, "minLength", at)
        high = self._whole(schema, "maxLength", at)
        if "pattern" in schema:
            if low is not None or high is not None:
                raise SchemaError(at, "pattern cannot be combined with minLength or maxLength")
            try:
                return self._add(hint, rf'"\"" {pattern_rule(schema["pattern"])} "\""')
            except ValueError as error:
                raise SchemaError(f"{at}/pattern", str(error)) from None
        if low is None and high is None:
            return (
                self._add(hint, _FORMATS[f])
                if (f := schema.get("format")) in _FORMATS
                else "string"
            )
        if high is not None and high < (low or 0):
            raise SchemaError(at, f"at least {low} characters and at most {high}")
        most = "" if high is None else high
        return self._add(hint, rf'"\"" char{{{low or 0},{most}}} "\""')

    def _number(self, kind: str, schema: dict[str, Any], at: str, hint: str) -> str:
        for key in BY_TYPE["number"] & set(schema):
            value = schema[key]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value):
                raise SchemaError(f"{at}/{key}", f"{json.dumps(value)[:40]} is not a number")
        low, high = schema.get("minimum"), schema.get("maximum")
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        make = integers if kind == "integer" else numbers
        try:
            return self._add(hint, make(low, high, above=above, below=below))
        except ValueError as error:
            raise SchemaError(at, str(error)) from None

    def _whole(self, schema: dict[str, Any], key: str, at: str) -> int | None:
        value = schema.get(key)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise SchemaError(f"{at}/{key}", f"{json.dumps(value)[:40]} is not a count")
        if value > MAX_REPETITIONS:
            raise SchemaError(f"{at}/{key}", f"{value} is too large: at most {MAX_REPETITIONS}")
        return value

    @staticmethod
    def _choice(found: Sequence[str]) -> str:
        unique = list(dict.fromkeys(found))
        return unique[0] if len(unique) == 1 else f"( {' | '.join(unique)} )"


def literal(text: str) -> str:
    """``text`` as a GBNF string."""
    escaped = (
        f"\\{c}" if c in '"\\' else c if c.isprintable() else f"\\U{ord(c):08X}" for c in text
    )
    return f'"{"".join(escaped)}"'


def in_class(char: str) -> str:
    """``char`` inside a GBNF class."""
    return char if char.isalnum() and char.isascii() else f"\\U{ord(char):08X}"
