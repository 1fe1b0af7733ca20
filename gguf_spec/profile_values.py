"""The kinds of values a profile holds: sizes, spec types, and the checks they share.

Everything here is pure. :func:`parse_size` and :func:`parse_spec_types` serve the command line too
and therefore raise :class:`~gguf_spec.errors.UsageError`; inside a profile the same message becomes
one of the profile's problems.
"""

from __future__ import annotations

import difflib
import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from gguf_spec.errors import UsageError
from gguf_spec.profile_numbers import MOST

T = TypeVar("T")

#: A finite bias beyond this, added to a logit and to penalties, would leave float32. It is as good
#: as infinite anyway.
MOST_BIAS = 1e30
#: Proportions of devices; libllama takes float32.
MOST_SHARE = 1e9
#: What llama-cpp-python's chat formatter hands to every template.
RESERVED = frozenset([
    "messages", "bos_token", "eos_token", "add_generation_prompt", "raise_exception",
    "strftime_now", "functions", "function_call", "tools", "tool_choice", "self",
])  # fmt: skip

# ---------------------------------------------------------------------------- sizes

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(?:([KMGT])(?:I?B)?|B)?", re.ASCII)
_BINARY = {None: 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MAX_SIZE = 2**63 - 1
_LEAST_MEMORY = 2**20


def parse_size(value: str | int) -> int:
    """Read a SIZE and return bytes.

    A plain number is bytes. K, M, G, T, with or without B or iB, are all powers of 1024: a card
    sold as "24GB" has 24 GiB. A fraction needs a unit ("1.5GiB") and is rounded down to a byte.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UsageError(f'{value!r} is not a size; write bytes or for instance "1.5GiB"')
    text = str(value).strip().upper() if isinstance(value, str) or abs(value) < 2**64 else ""
    match = _SIZE.fullmatch(text) if len(text) <= 40 else None
    if match is None:
        raise UsageError(f'{brief(value)} is not a size; write bytes or for instance "1.5GiB"')
    number, unit = match.groups()
    if unit is None and "." in number:
        raise UsageError(
            f'{brief(value)} is not a whole number of bytes; add a unit as in "1.5GiB"'
        )
    size = int(Decimal(number) * _BINARY[unit])
    if size > _MAX_SIZE:
        raise UsageError(f"{brief(value)} is larger than any memory")
    return size


def parse_memory(value: str | int) -> int:
    """Read the SIZE of a memory. A number without a unit that would be a few bytes is refused: who
    writes 24 means 24GiB."""
    size = parse_size(value)
    if 0 < size < _LEAST_MEMORY:
        number = str(value).strip().rstrip("bB ") if isinstance(value, str) else str(value)
        meant = f"; did you mean {number}GiB?" if number.isdigit() else ""
        raise UsageError(
            f"{brief(value)} is {size} bytes, which is no memory to plan with{meant}",
            hint="a number without a unit is bytes; K, M, G, T are powers of 1024",
        )
    return size


def parse_memories(value: str) -> tuple[int, ...]:
    """Read SIZE[,SIZE…], the memory of one device after the other."""
    return tuple(parse_memory(part) for part in value.split(","))


def brief(value: object) -> str:
    """Show a value in a message without letting it fill the screen."""
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a number of that length"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


# ----------------------------------------------------------------------- spec types

#: As llama.cpp spells them (common/speculative.cpp), in its order of preference.
SPEC_TYPES: tuple[str, ...] = (
    "none", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache",
    "draft-simple", "draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark",
)  # fmt: skip
#: What may be written instead.
SHORT_TYPES: dict[str, str] = {
    "ngram": "ngram-mod",
    "draft": "draft-simple",
    "mtp": "draft-mtp",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
}
#: Choices that stand for a whole list and so cannot be combined.
ALONE = ("auto", "none")
#: Types that need a draft model or a head.
DRAFT_TYPES: tuple[str, ...] = tuple(name for name in SPEC_TYPES if name.startswith("draft-"))

# Methods known from papers and other programs; a spelling hint would mislead.
_ELSEWHERE: dict[str, str] = {
    "medusa": "draft-mtp or draft-eagle3",
    "hydra": "draft-mtp or draft-eagle3",
    "eagle": "draft-eagle3",
    "eagle2": "draft-eagle3",
    "layerskip": "draft-mtp, or draft-simple with a small model of the same family",
    "selfspeculative": "draft-mtp, or draft-simple with a small model of the same family",
    "lookahead": "ngram-mod or ngram-map-k",
    "promptlookup": "ngram-simple",
    "pld": "ngram-simple",
    "suffix": "ngram-map-k4v",
    "suffixdecoding": "ngram-map-k4v",
}


def parse_spec_types(value: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Read a list of spec types (a comma-separated text or a sequence), in order of preference.

    Short forms become the full names, repetitions are dropped. ``("auto",)`` and ``("none",)`` can
    only stand alone.
    """
    if not isinstance(value, str | list | tuple):
        raise UsageError(f"spec types are an array of texts, got {brief(value)}")
    parts: Iterable[object] = value.split(",") if isinstance(value, str) else value
    names = tuple(dict.fromkeys(_spec_type(part) for part in parts))
    if not names:
        raise UsageError("the list of spec types is empty", hint='write "none" for no drafting')
    for name in names:
        if name in ALONE and len(names) > 1:
            raise UsageError(
                f"`{name}` cannot be combined with other spec types: {', '.join(names)}"
            )
    return names


def _spec_type(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"a spec type is a text, got {brief(value)}")
    name = value.strip().lower().replace("_", "-")
    if name in SPEC_TYPES or name == "auto":
        return name
    if name in SHORT_TYPES:
        return SHORT_TYPES[name]
    if nearest := _ELSEWHERE.get(re.sub(r"[-\s]", "", name)):
        raise UsageError(f"`{name}` is not in llama.cpp; what comes nearest is {nearest}")
    best = nearest_name(name, [*SPEC_TYPES, *SHORT_TYPES, "auto"])
    raise UsageError(f"unknown spec type {brief(value)}; did you mean `{best}`?")


def nearest_name(name: str, names: Sequence[str]) -> str:
    """Return the one of ``names`` that is spelled most like ``name`` (there is always one)."""
    return (difflib.get_close_matches(name[:100], names, n=1, cutoff=0.0) or list(names))[0]


# --------------------------------------------------------------- checks for pydantic


def _in_profile(parse: Callable[[Any], T]) -> Callable[[Any], T]:
    """Turn a parser's UsageError into the ValueError that pydantic collects."""

    def check(value: Any) -> T:
        try:
            return parse(value)
        except UsageError as error:
            raise ValueError(error.message) from None

    return check


def _as_list(*, split: bool = False) -> BeforeValidator:
    """Accept an array; a lone text is an array of one, or is cut at its commas (``split``)."""

    def check(value: object) -> object:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")] if split else [value]
        if not isinstance(value, list | tuple):
            raise ValueError("must be an array")
        if any(item == "" for item in value):
            raise ValueError("must not hold an empty text")
        return tuple(value)

    return BeforeValidator(check)


def _vram(value: object) -> Literal["auto"] | tuple[int, ...]:
    if value == "auto":
        return "auto"
    parts: list[Any] | tuple[Any, ...]
    if isinstance(value, list | tuple):
        parts = value
    else:
        parts = value.split(",") if isinstance(value, str) else [value]
    if not parts:
        raise UsageError('must be "auto", a size or an array of sizes, one per device')
    return tuple(parse_memory(part) for part in parts)


def _tensor_split(value: object) -> tuple[float, ...]:
    if isinstance(value, str):
        value = [_float(part) for part in value.split(",")]
    if not isinstance(value, list | tuple):
        raise ValueError("must be an array of numbers, one per device")
    numbers = all(isinstance(item, int | float) and not isinstance(item, bool) for item in value)
    if not numbers or not all(math.isfinite(item) and item >= 0 for item in value):
        raise ValueError("must be an array of numbers from 0 up, one per device")
    if max(value, default=0) > MOST_SHARE or 0 < max(value, default=1) < 1 / MOST_SHARE:
        raise ValueError(f"must be an array of proportions up to {MOST_SHARE:g}")
    if value and sum(value) <= 0:
        raise ValueError("gives no device a share: every number is 0")
    return tuple(float(item) for item in value)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"must be numbers with commas between them, got {brief(text)}") from None


def _override_tensor(value: tuple[str, ...]) -> tuple[str, ...]:
    for item in value:
        pattern, equals, buffer = item.rpartition("=")
        if not (pattern and equals and buffer):
            raise ValueError(f"needs PATTERN=BUFFER, as in 'ffn_.*_exps=CPU', got {brief(item)}")
        if (why := _pattern_problem(pattern)) is not None:
            raise ValueError(f"needs a regular expression, got {brief(pattern)}: {why}")
    return value


def _pattern_problem(pattern: str) -> str | None:
    """Why libllama's std::regex (ECMAScript) would refuse a pattern; None if it will do.

    Python's rules are nearly those; what only Python takes is refused besides.
    """
    try:
        with warnings.catch_warnings():  # of sets that Python may read otherwise one day
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    plain = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "x", pattern, flags=re.DOTALL)
    if re.search(r"\(\?(?![:=!])", plain):
        return "of the groups with a question mark there are (?:, (?= and (?! only"
    if re.search(r"[*+?}]\+", plain):
        return "multiple repeat"
    if re.search(r"\{(?!\d+(?:,\d*)?\})|^\{", plain):
        return "a brace without a number of repeats; \\{ is the character"
    return None


def _logit_bias(value: object) -> object:
    """TOML keys are texts; llama.cpp biases token ids. ``-inf`` forbids a token."""
    if not isinstance(value, dict):
        raise ValueError("must be a table of token id = bias")
    result: dict[int, float] = {}
    for key, bias in value.items():
        if not re.fullmatch(r"[0-9]{1,9}", str(key), re.ASCII):
            raise ValueError(f"needs token ids as keys, got {brief(key)}")
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not is_number or math.isnan(bias) or bias == math.inf:
            raise ValueError(f"needs a number or -inf for token {key}, got {brief(bias)}")
        if math.isfinite(bias) and abs(bias) > MOST_BIAS:
            raise ValueError(
                f"needs at most {MOST_BIAS:g} either way for token {key}, got {brief(bias)}"
            )
        result[int(key)] = float(bias)
    return result


def _template_arguments(value: object) -> object:
    """Names that the program itself gives to every chat template are taken."""
    if isinstance(value, dict) and (taken := sorted(RESERVED & {str(key) for key in value})):
        raise ValueError(f"{', '.join(taken)} cannot be set: every template is given its own")
    return _json_table(value)


def _json_table(value: object) -> object:
    """Let pass what a chat template can be given; a date, for instance, is not in JSON."""
    if not isinstance(value, dict):
        raise ValueError("must be a table")
    items: list[object] = [value]
    for item in items:  # grows while it is walked
        if isinstance(item, dict):
            items.extend(item.values())
        elif isinstance(item, list | tuple):
            items.extend(item)
        elif not (item is None or isinstance(item, str | int) or _is_finite(item)):
            kinds = "texts, finite numbers, booleans, arrays and tables"
            raise ValueError(f"must hold {kinds} only, got {brief(str(item))}")
    return value


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _n_ctx(value: object) -> object:
    """ "auto" says the same as leaving the key out, so that a profile can undo its base."""
    if value is None or value == "auto":
        return None
    if value == "max" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        if isinstance(value, int) and value > MOST:
            raise ValueError(f"must be at most {MOST}")
        return value
    raise ValueError('must be "max", "auto" or a whole number from 1 up')


def _quant(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{1,31}", value, re.ASCII):
        raise ValueError("must be a quantization such as Q4_K_M")
    return value


def parse_lora(text: str) -> tuple[str, float]:
    """Split ``file.gguf:0.5`` into file and scale; without a scale it is 1.0."""
    path, colon, scale = text.rpartition(":")
    if colon and path and re.fullmatch(r"-?[0-9]+(\.[0-9]*)?|-?\.[0-9]+", scale, re.ASCII):
        return path, float(scale)
    return text, 1.0


_SIZE_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}
_TYPE_SCHEMA = {"type": "string", "enum": ["auto", *SPEC_TYPES, *SHORT_TYPES]}


def _list_schema(item: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "array", "items": item}, {"type": "string"}]})


Text = Annotated[str, Field(min_length=1)]
QuantName = Annotated[str, AfterValidator(_quant)]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
ContextLength = Annotated[
    Literal["max"] | int | None,
    BeforeValidator(_n_ctx),
    WithJsonSchema({"anyOf": [{"enum": ["max", "auto"]}, {"type": "integer", "minimum": 1}]}),
]
Size = Annotated[int, BeforeValidator(_in_profile(parse_size)), WithJsonSchema(_SIZE_SCHEMA)]
Vram = Annotated[
    Literal["auto"] | tuple[int, ...],
    BeforeValidator(_in_profile(_vram)),
    WithJsonSchema({"anyOf": [*_SIZE_SCHEMA["anyOf"], {"type": "array", "items": _SIZE_SCHEMA}]}),
]
SpecTypes = Annotated[
    tuple[str, ...], BeforeValidator(_in_profile(parse_spec_types)), _list_schema(_TYPE_SCHEMA)
]
Texts = Annotated[tuple[str, ...], _as_list(), _list_schema({"type": "string"})]
Devices = Annotated[tuple[str, ...], _as_list(split=True), _list_schema({"type": "string"})]
OverrideTensors = Annotated[
    tuple[str, ...],
    _as_list(),
    AfterValidator(_override_tensor),
    _list_schema({"type": "string", "pattern": "="}),
]
TensorSplit = Annotated[
    tuple[float, ...],
    BeforeValidator(_tensor_split),
    _list_schema({"type": "number", "minimum": 0}),
]
LogitBias = Annotated[
    dict[int, Annotated[float, Field(allow_inf_nan=True)]],
    BeforeValidator(_logit_bias),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}}),
]
TemplateArguments = Annotated[dict[str, Any], BeforeValidator(_template_arguments)]
