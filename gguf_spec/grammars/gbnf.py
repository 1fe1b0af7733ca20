"""GBNF, llama.cpp's notation for grammars, read before libllama reads it.

libllama's parser recurses without a limit, its repetitions multiply, and its check for left
recursion overlooks rules that are empty through other rules: a grammar of a few bytes can overflow
its stack, fill the memory, or never come back. So a grammar is parsed here by the same rules
(``llama_grammar_parser`` in llama-grammar.cpp), and refused with the line and the column.

The limits are far above what grammars of programming languages and large JSON schemas need.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gguf_spec.errors import InputError
from gguf_spec.grammars.beginnings import MAX_CHAIN, MAX_WAYS, Alternative, Rules, beginnings

MAX_CHARACTERS = 256 * 1024
#: Parentheses within each other.
MAX_DEPTH = 64
#: What repetitions unfold to: literals, classes and references, counted by their characters.
MAX_ELEMENTS = 100_000
#: llama.cpp's MAX_REPETITION_THRESHOLD.
MAX_REPETITIONS = 2000

_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdefABCDEF")
_ESCAPES = {"x": 2, "u": 4, "U": 8}
_LITERAL_ESCAPES = frozenset('trn\\"[]-')


def check_gbnf(text: str, name: str = "grammar", root: str = "root") -> None:
    """Raise an InputError, with line and column in ``name``, unless libllama can take ``text``."""
    parser = _Parser(text, name)
    parser.parse()
    if root not in parser.ids or parser.ids[root] not in parser.places_defined:
        raise InputError(
            f"{name}: there is no rule named {root}",
            hint=f"the grammar begins with it: {root} ::= …",
        )
    for rule, place in parser.used.items():
        if rule not in parser.places_defined:
            raise parser.error(f"the rule {parser.names[rule]} is not defined", place)
    _check_beginnings(parser)


def _check_beginnings(parser: _Parser) -> None:
    """Refuse rules that begin with themselves, and those with too many beginnings."""
    found = beginnings(parser.rules)
    if found is None:
        return
    shown = parser.names[found.rule].split("_")[0]
    what = {
        "itself": f"the rule {shown} begins with itself (left recursion)",
        "ways": f"the rule {shown} has more than {MAX_WAYS:,} ways to begin",
        "chain": f"the rule {shown} begins a chain of more than {MAX_CHAIN:,} rules",
    }[found.problem]
    error = parser.error(what, parser.places_defined[found.rule])
    if found.problem == "itself":
        error.hint = "write the repetition with * or +, or put what is read first in front"
    raise error


@dataclass
class _Parser:
    """Reads the rules, and unfolds repetitions as libllama does."""

    text: str
    name: str
    at: int = 0
    ids: dict[str, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    rules: Rules = field(default_factory=dict)
    places_defined: dict[int, int] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    n_elements: int = 0

    def error(self, what: str, at: int | None = None) -> InputError:
        """The error for the place ``at`` in the text, or the current one."""
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        return InputError(
            f"{self.name}:{line}:{column}: {what}",
            hint="the notation: https://github.com/ggml-org/llama.cpp/tree/master/grammars",
        )

    def parse(self) -> None:
        """All rules."""
        text = self.text
        if len(text) > MAX_CHARACTERS:
            raise InputError(
                f"{self.name}: the grammar has {len(text):,} characters, the most is "
                f"{MAX_CHARACTERS:,}"
            )
        if "\0" in text:
            raise self.error("a NUL character ends the grammar here", text.index("\0"))
        self._space(newlines=True)
        while self.at < len(text):
            self._rule()
        if not self.rules:
            raise InputError(f"{self.name}: the grammar has no rules", hint="root ::= …")

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _space(self, *, newlines: bool) -> None:
        text, at = self.text, self.at
        while at < len(text) and (text[at] in " \t#" or (newlines and text[at] in "\r\n")):
            if text[at] == "#":
                while at < len(text) and text[at] not in "\r\n":
                    at += 1
            else:
                at += 1
        self.at = at

    def _word(self) -> str:
        start = self.at
        while self._peek() in _NAME and self._peek():
            self.at += 1
        return self.text[start : self.at]

    def _id(self, name: str) -> int:
        if name not in self.ids:
            self.ids[name] = len(self.names)
            self.names.append(name)
        return self.ids[name]

    def _new_rule(self, name: str, alternatives: list[Alternative]) -> int:
        """A rule of libllama's own making; no name that can be written has an underscore."""
        rule = self._id(f"{name}_{len(self.names)}")
        self.places_defined[rule] = self.at
        self.rules[rule] = alternatives
        return rule

    def _rule(self) -> None:
        start = self.at
        name = self._word()
        if not name:
            raise self.error("expected the name of a rule (letters, digits and -)")
        rule = self._id(name)
        self._space(newlines=False)
        if not self.text.startswith("::=", self.at):
            raise self.error(f"expected ::= after the rule name {name}")
        if rule in self.places_defined:
            raise self.error(f"the rule {name} is defined twice", start)
        self.at += 3
        self._space(newlines=True)
        self.places_defined[rule] = start
        self.rules[rule] = self._alternatives(name, 0)
        if self._peek() not in ("", "\r", "\n"):
            raise self.error(f"unexpected {self._peek()!r}")
        self._space(newlines=True)

    def _alternatives(self, name: str, depth: int) -> list[Alternative]:
        found = [self._sequence(name, depth)]
        while self._peek() == "|":
            self.at += 1
            self._space(newlines=True)
            found.append(self._sequence(name, depth))
        return found

    def _sequence(self, name: str, depth: int) -> Alternative:
        items: Alternative = []
        last: int | None = None  # where the item begins that a repetition would repeat
        factor = 1  # libllama's n_prev_rules
        while char := self._peek():
            if char in "*+?{":
                low, high = self._bounds(nested=depth > 0)
                if last is None or last == len(items):
                    raise self.error("there is nothing before this to repeat")
                factor = self._repeat(name, items, last, low, high, factor)
                continue
            start, n_rules = len(items), len(self.names)
            if not self._item(name, depth, items):
                break
            last = start
            factor = max(1, len(self.names) - n_rules) if char == "(" else 1
            self._space(newlines=depth > 0)
        return items

    def _item(self, name: str, depth: int, items: Alternative) -> bool:
        """Read one item, if one begins here."""
        char, start = self._peek(), self.at
        if char == '"':
            if n := self._literal():
                self._add(items, [-1] * n)
        elif char == "[":
            self._add(items, [-self._class()])
        elif char == ".":
            self.at += 1
            self._add(items, [-1])
        elif char in _NAME:
            rule = self._id(self._word())
            self.used.setdefault(rule, start)
            self._add(items, [rule])
        elif char == "(":
            self._add(items, [self._group(name, depth)])
        elif char in "<!":
            raise self.error(
                "a reference to a token (<…>) cannot be used: libllama may end the program on a "
                "token that such a grammar allows; write the token's text in quotes"
            )
        else:
            return False
        return True

    def _group(self, name: str, depth: int) -> int:
        if depth >= MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} parentheses within each other")
        start = self.at
        self.at += 1
        self._space(newlines=True)
        rule = self._new_rule(name, [])
        self.rules[rule] = self._alternatives(name, depth + 1)
        if self._peek() != ")":
            what = f"unexpected {self._peek()!r}" if self._peek() else "the grammar ends"
            raise self.error(
                f"{what}, but a parenthesis is open", self.at if self._peek() else start
            )
        self.at += 1
        return rule

    def _literal(self) -> int:
        start, n = self.at, 0
        self.at += 1
        while self._peek() != '"':
            self._character(start, "string")
            n += 1
        self.at += 1
        return n

    def _class(self) -> int:
        start, n = self.at, 0
        self.at += 1
        if self._peek() == "^":
            self.at += 1
        while self._peek() != "]":
            low = self._character(start, "class")
            n += 1
            if self._peek() == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                at = self.at
                if self._character(start, "class") < low:
                    raise self.error("a range that ends before it begins", at)
                n += 1
        if not n:
            raise self.error("a class without characters", start)
        self.at += 1
        return n

    def _character(self, start: int, what: str) -> int:
        """One character of a string or a class that began at ``start``."""
        char = self._peek()
        if not char:
            raise self.error(f"this {what} is never closed", start)
        if char != "\\":
            self.at += 1
            return ord(char)
        escape = self.text[self.at + 1 : self.at + 2]
        n_hex = _ESCAPES.get(escape, 0)
        digits = self.text[self.at + 2 : self.at + 2 + n_hex]
        if n_hex and (len(digits) < n_hex or not set(digits) <= _HEX):
            raise self.error(f"\\{escape} is followed by {n_hex} hexadecimal digits")
        if not n_hex and (not escape or escape not in _LITERAL_ESCAPES):
            raise self.error(
                f'unknown escape \\{escape}; there are \\n \\r \\t \\\\ \\" \\[ \\] \\- \\x \\u \\U'
            )
        self.at += 2 + n_hex
        if n_hex:
            code = int(digits, 16)
            if code > 0x10FFFF:
                raise self.error(f"there is no text with the character {code:#x}", self.at - n_hex)
            return code
        return ord({"t": "\t", "r": "\r", "n": "\n"}.get(escape, escape))

    def _bounds(self, *, nested: bool) -> tuple[int, int | None]:
        """A repetition: from how many to how many (None: any number)."""
        char, start = self._peek(), self.at
        self.at += 1
        self._space(newlines=nested)
        if char != "{":
            return (int(char == "+"), 1 if char == "?" else None)
        high: int | None = (low := self._count(nested))
        if self._peek() == ",":
            self.at += 1
            self._space(newlines=nested)
            high = self._count(nested) if self._peek() in _DIGITS and self._peek() else None
        if self._peek() != "}":
            raise self.error("expected } at the end of a repetition")
        self.at += 1
        self._space(newlines=nested)
        if low > MAX_REPETITIONS:
            raise self.error(f"{low:,} repetitions, the most is {MAX_REPETITIONS:,}", start)
        if high is not None and high < low:
            raise self.error(f"a repetition of at least {low} and at most {high}", start)
        # So many more are any number, to libllama too.
        return low, high if high is None or high <= MAX_REPETITIONS else None

    def _count(self, nested: bool) -> int:
        start = self.at
        while self._peek() in _DIGITS and self._peek():
            self.at += 1
        digits = self.text[start : self.at]
        if not digits:
            raise self.error("expected a number", start)
        if len(digits) > 9:
            raise self.error(f"{len(digits)} digits are too many for a repetition", start)
        self._space(newlines=nested)
        return int(digits)

    def _repeat(
        self, name: str, items: Alternative, last: int, low: int, high: int | None, factor: int
    ) -> int:
        """Repeat ``items[last:]``. What comes of it: S{m,n} is m times S and then n - m rules, each
        S and the next, or nothing; S{m,} is m times S and a rule: S and itself, or nothing."""
        unit = items[last:]
        factor *= max(high if high is not None else low, 1)
        if factor > MAX_REPETITIONS:
            raise self.error(
                f"{factor:,} repetitions within each other, the most is {MAX_REPETITIONS:,}"
            )
        n_rules = 1 if high is None else high - low
        self._count_elements((n_rules + max(low - 1, 0)) * (_size(unit) + 2))
        items[last:] = unit * low
        rule: int | None = None
        for _ in range(n_rules):
            following = rule
            rule = self._new_rule(name, [])
            if high is None:
                following = rule
            tail = [] if following is None else [following]
            self.rules[rule] = [unit + tail, []]
        if rule is not None:
            items.append(rule)
        return factor

    def _add(self, items: Alternative, new: Alternative) -> None:
        self._count_elements(_size(new))
        items += new

    def _count_elements(self, n: int) -> None:
        self.n_elements += n
        if self.n_elements > MAX_ELEMENTS:
            raise self.error(f"the grammar unfolds to more than {MAX_ELEMENTS:,} elements")


def _size(items: Alternative) -> int:
    return sum(-item if item < 0 else 1 for item in items)
