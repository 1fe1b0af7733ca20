"""JSON schemas as grammars, judged by libllama's own reading of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gguf_spec.backend import LlamaModel
from gguf_spec.backend.grammar import GrammarMask
from gguf_spec.errors import InputError
from gguf_spec.grammars import check_gbnf, schema_to_gbnf

Case = tuple[Any, list[str], list[str]]


def object_of(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


INT, TEXT = {"type": "integer"}, {"type": "string"}
NODE = object_of({"v": INT, "k": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "v", "k")

CASES: dict[str, Case] = {
    "anything": (
        {},
        ['{"a": [1,2.5e3,null,true,"x\\n\\u00e9"]}', '"a"', "-0.5", "[]", '{\n  "a": {}\n}'],
        ["{a}", "01", '"\n"', "[1,]", '"\\ud800"', "1 ", "+1", ".5", "1."],
    ),
    "a required and an optional property": (
        object_of({"a": INT, "b": TEXT}, "a"),
        ['{"a": 1}', '{"a":-12,"b":"x"}', '{\n  "a": 1\n}'],
        ["{}", '{"b":"x"}', '{"b":"x","a":1}', '{"a":1,"c":2}', '{"a":1} ', '{"a":1,}'],
    ),
    "optional properties": (
        object_of({"a": INT, "b": TEXT, "c": {}}),
        ["{}", '{"a":1}', '{"b":"x"}', '{"b":"","c":1}', '{"a":1,"c":[]}', '{"c":1}'],
        ['{"c":1,"b":""}', '{"a":1,}', '{,"a":1}'],
    ),
    "a required property behind an optional one": (
        object_of({"a": INT, "b": TEXT, "c": {}}, "b"),
        ['{"a":1,"b":"x"}', '{"b":"","c":1}', '{"b":""}'],
        ["{}", '{"a":1}', '{"a":1,"c":1}'],
    ),
    "other properties": (
        object_of({"a": INT, "ab": INT}, "a", additionalProperties={"type": "boolean"}),
        ['{"a":1}', '{"a":1,"x":true}', '{"a":1,"ab":2,"x":true,"abc":false,"":true}'],
        ['{"a":1,"a":true}', '{"a":1,"x":1}', '{"a":1,"ab":true}', '{"a":1,"\\u0061":true}'],
    ),
    "no property is declared": ({"type": "object"}, ["{}", '{"x":1,"y":[{}]}'], ["[]"]),
    "a map": ({"type": "object", "additionalProperties": INT}, ["{}", '{"x":1}'], ['{"x":"1"}']),
    "items": ({"type": "array", "items": INT}, ["[]", "[1]", "[1, 2,3]"], ['["a"]', "[1 2]"]),
    "two or three items": (
        {"type": "array", "items": INT, "minItems": 2, "maxItems": 3},
        ["[1,2]", "[1, 2, 3]"],
        ["[1]", "[]", "[1,2,3,4]"],
    ),
    "no item": ({"type": "array", "items": INT, "maxItems": 0}, ["[]"], ["[1]"]),
    "a tuple": (
        {"type": "array", "prefixItems": [INT, TEXT], "minItems": 1},
        ["[1]", '[1,"a"]'],
        ["[]", '["a"]', '[1,"a",2]'],
    ),
    "a tuple and more": (
        {"type": "array", "prefixItems": [INT, TEXT], "items": {"type": "null"}, "minItems": 3},
        ['[1,"a",null]', '[1,"a",null,null]'],
        ['[1,"a"]', '[1,"a",1]'],
    ),
    "values": (
        {"enum": ["a\\b", 'q"x', 1, None, True, "é\n"]},
        ['"a\\\\b"', '"q\\"x"', "1", "null", "true", '"é\\n"'],
        ['"a"', "2", "false"],
    ),
    "values of a type": ({"type": "integer", "enum": [1, "a"]}, ["1"], ['"a"']),
    "types": ({"type": ["integer", "null"]}, ["1", "null", "-3"], ["1.5", '"a"']),
    "lengths": (
        {"type": "string", "minLength": 1, "maxLength": 3},
        ['"a"', '"abc"', '"\\n\\n"'],
        ['""', '"abcd"'],
    ),
    "a pattern": (
        {"type": "string", "pattern": r"^[a-c]{2}\d+$"},
        ['"ab1"', '"cc123"'],
        ['"ab"', '"dd1"', '"ab1x"'],
    ),
    "a pattern without anchors": ({"pattern": "b+"}, ['"b"', '"abba"'], ['"a"', '""']),
    "a pattern with characters that are escaped": (
        {"pattern": '^(foo|bar)"\\\\\\.[^x]$'},
        ['"foo\\"\\\\.y"', '"bar\\"\\\\.\\n"'],
        ['"foo"', '"foo\\"\\\\.x"'],
    ),
    "anchors in alternatives": (
        {"pattern": r"^\w+@\w+\.(com|org)$|^none$"},
        ['"a_b@c.com"', '"none"'],
        ['"a@b.net"', '"nonex"'],
    ),
    "a date": ({"type": "string", "format": "date"}, ['"2024-02-28"'], ['"2024-13-01"', '"x"']),
    "a format that is an annotation": ({"type": "string", "format": "email"}, ['"x"'], ["1"]),
    "a recursive reference": (
        {"$defs": {"n": NODE}, "$ref": "#/$defs/n"},
        ['{"v":1,"k":[{"v":2,"k":[]}]}'],
        ['{"v":1}'],
    ),
    "a reference to the root": ({"type": "array", "items": {"$ref": "#"}}, ["[[],[[]]]"], ["[1]"]),
    "alternatives": (
        {"anyOf": [INT, object_of({"a": {"const": 3}}, "a")]},
        ["1", '{"a":3}'],
        ['"a"', '{"a":4}'],
    ),
    "alternatives with something in common": (
        object_of(
            {"z": {"type": "null"}}, "z", anyOf=[object_of({"a": INT}, "a"), {"required": ["z"]}]
        ),
        ['{"z":null,"a":3}', '{"z":null}'],
        ['{"a":3}'],
    ),
    "all of": (
        {
            "allOf": [{"$ref": "#/$defs/a"}, object_of({"y": INT}, "y")],
            "$defs": {"a": object_of({"x": INT}, "x")},
        },
        ['{"x":1,"y":2}'],
        ['{"x":1}'],
    ),
    "a reference and a bound": (
        {"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": INT}},
        ["5", "6"],
        ["4"],
    ),
}
NUMBERS: dict[str, Case] = {
    "from 0 to 1": ({"minimum": 0, "maximum": 1}, ["0", "0.5", "1.0"], ["1.01", "2", "-0.1"]),
    "above 0": ({"exclusiveMinimum": 0}, ["0.1", "12.75", "0.0001"], ["0", "0.0", "-1"]),
    "between 0 and 1": (
        {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        ["0.1", "0.99"],
        ["0", "0.0", "1", "1.0"],
    ),
    "up to 0": ({"maximum": 0}, ["0", "-0.5", "0.0", "-100.25"], ["0.1", "1"]),
    "below 0": ({"exclusiveMaximum": 0}, ["-1", "-0.5"], ["0", "-0.0", "1"]),
    "around 0": ({"minimum": -3, "maximum": 12}, ["-3", "-2.9", "12.0"], ["-3.1", "12.1", "-4"]),
}
ERRORS = {
    "{": "file:1:2: not JSON",
    '{"a": 1,\n  x}': "file:2:3: not JSON",
    "[" * 100_000: "not JSON that can be read",
    "false": "allows no value",
    "[]": "a schema is an object",
    '{"type":"foo"}': "#/type: unknown type",
    '{"properties":{"a":{"not":{}}}}': "#/properties/a: not is not supported",
    '{"uniqueItems":true}': "uniqueItems is not supported",
    '{"$ref":"http://host/x"}': "not in this file",
    '{"$ref":"#/$defs/q"}': "leads nowhere",
    '{"$ref":"#"}': "in a circle",
    '{"allOf":[{"$ref":"#"}]}': "in a circle",
    '{"enum":[]}': "no value is allowed",
    '{"type":"integer","minimum":5,"maximum":2}': "no whole number",
    '{"type":"number","minimum":0.5}': "has to be whole",
    '{"minimum":NaN}': "not a number",
    '{"pattern":"(?=x)"}': "not supported in a pattern",
    '{"pattern":"("}': "not a regular expression",
    '{"pattern":"(?i)x"}': "flags",
    '{"pattern":"a{9999}"}': "repetitions",
    '{"type":"string","maxLength":5000}': "too large",
    '{"items":' * 100 + "{}" + "}" * 100: "more than 64 schemas",
    '{"anyOf":[]}': "no alternatives",
    '{"required":"a"}': "required is a list",
    '{"required":[1]}': "list of names",
    '{"properties":3}': "properties is an object",
    '{"allOf":[{"properties":3}]}': "properties is an object",
    '{"type":"object","required":["a"],"additionalProperties":false}': "no such property",
    '{"description":"' + "x" * 300_000 + '"}': "the most is 262,144",
}


def accepts(mask: GrammarMask, model: LlamaModel, text: str) -> bool:
    """Whether the tokens of ``text``, and an end after them, are legal one after the other."""
    mask = mask.copy()
    for token in model.tokenize(text):
        if not mask.legal(np.array([token]))[0]:
            return False
        mask.advance(token)
    ends = np.array([token for token in range(model.n_vocab) if model.is_end(token)])
    return bool(mask.legal(ends).any())


def mask_of(schema: Any, model: LlamaModel) -> GrammarMask:
    return GrammarMask(model, schema_to_gbnf(json.dumps(schema)))


@pytest.mark.parametrize("name", CASES)
def test_valid_texts_are_legal_and_others_are_not(name: str, tiny_target: LlamaModel) -> None:
    schema, valid, invalid = CASES[name]
    mask = mask_of(schema, tiny_target)
    assert [text for text in valid if not accepts(mask, tiny_target, text)] == []
    assert [text for text in invalid if accepts(mask, tiny_target, text)] == []


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_within_bounds(name: str, tiny_target: LlamaModel) -> None:
    bounds, valid, invalid = NUMBERS[name]
    mask = mask_of({"type": "number", **bounds}, tiny_target)
    assert [text for text in valid if not accepts(mask, tiny_target, text)] == []
    assert [text for text in invalid if accepts(mask, tiny_target, text)] == []


@pytest.mark.parametrize("bounds", [(0, 9), (5, 5), (3, 27), (-5, 5), (-120, -7), (99, 101)])
def test_every_whole_number_within_bounds_and_no_other(
    bounds: tuple[int, int], tiny_target: LlamaModel
) -> None:
    low, high = bounds
    mask = mask_of({"type": "integer", "minimum": low, "maximum": high}, tiny_target)
    for number in range(low - 30, high + 31):
        legal = accepts(mask, tiny_target, str(number))
        assert legal == (low <= number <= high), number
    assert not accepts(mask, tiny_target, f"0{high}")
    assert not accepts(mask, tiny_target, f"{high}0000")


@pytest.mark.parametrize("text", ERRORS, ids=[text[:40] for text in ERRORS])
def test_what_cannot_be_expressed_is_an_error_with_its_place(text: str) -> None:
    with pytest.raises(InputError, match=ERRORS[text]) as caught:
        schema_to_gbnf(text, "file")
    assert caught.value.message.startswith("file:")
    assert len(caught.value.message) < 300


def test_large_schemas_are_taken() -> None:
    properties = {f"property_{i}": {"anyOf": [INT, TEXT, {"type": "null"}]} for i in range(300)}
    check_gbnf(schema_to_gbnf(json.dumps(object_of(properties, "property_7"))))
