"""GBNF is refused, with its place, where libllama would refuse it or break."""

from __future__ import annotations

import pytest

from gguf_spec.errors import InputError
from gguf_spec.grammars import check_gbnf
from gguf_spec.grammars.gbnf import MAX_CHARACTERS

GOOD = {
    "a literal": 'root ::= "a"',
    "comments": "root ::= a+ # one\n# two\na ::= [a-z]",
    "groups over lines": 'root ::= (b\n | c)\nb ::= ""\nc ::= "x"{2,3}',
    "windows line ends": 'root ::= a\r\na ::= "b"\r\n',
    "all escapes": r'root ::= "\n\r\t\\\"\[\]\-\x41\u00e9\U0001F600" [\]\-\\\x00-\x1F]',
    "repeated possibly empty groups": 'root ::= ("a"*)* "b"',
    "a large repetition": 'root ::= "a"{0,2000}',
    "more repetitions than libllama counts": 'root ::= "a"{3,100000}',
    "any character": "root ::= .{3}",
    "recursion in the middle": 'root ::= "(" root ")" | "x"',
    "recursion at the end": 'root ::= "a" root | ""',
    "hidden empty rules before a recursion at the end": 'root ::= e root | "x"\ne ::= f\nf ::= ""',
    "64 parentheses": "root ::= " + "(" * 64 + '"a"' + ")" * 64,
    "a name with digits": 'root ::= r-2\nr-2 ::= "a"',
}
BAD = {
    "nothing": ("", "has no rules"),
    "no root": ('a ::= "x"', "no rule named root"),
    "an undefined rule": ('root ::= "a" |\n  missing', ":2:3: the rule missing is not defined"),
    "no ::=": ('root = "a"', ":1:6: expected ::="),
    "an open parenthesis": ('root ::= ("a"', ":1:10: .*parenthesis is open"),
    "an open string": ('root ::= "a', ":1:10: this string is never closed"),
    "an open class": ("root ::= [a", ":1:10: this class is never closed"),
    "an empty class": ("root ::= []", "a class without characters"),
    "a negated empty class": ("root ::= [^]", "a class without characters"),
    "a backward range": ("root ::= [z-a]", ":1:13: a range that ends before it begins"),
    "an unknown escape": ('root ::= "\\q"', r":1:11: unknown escape \\q"),
    "a short escape": ('root ::= "\\x4"', ":1:11: .*2 hexadecimal digits"),
    "a code beyond Unicode": ('root ::= "\\U00110000"', "no text with the character"),
    "nothing to repeat": ("root ::= *", "nothing before this to repeat"),
    "an empty string repeated": ('root ::= ""*', "nothing before this to repeat"),
    "an alternative in a new line": ('root ::= "a"\n | "b"', ":2:2: expected the name of a rule"),
    "two rules in a line": ('root ::= "a" b ::= "c"', ":1:16: unexpected ':'"),
    "a rule twice": ('root ::= "a"\nroot ::= "b"', ":2:1: the rule root is defined twice"),
    "a NUL": ('root ::= "a\0"', ":1:12: a NUL"),
    "many repetitions": ('root ::= "a"{2001}', "the most is 2,000"),
    "a number that overflows": ('root ::= "a"{99999999999999999999}', "20 digits"),
    "repetitions of repetitions": ('root ::= "a"{100}{100}', "10,000 repetitions within"),
    "a long literal repeated": (f'root ::= "{"a" * 1000}"{{2000}}', "more than 100,000 elements"),
    "size": (f'root ::= "{"a" * MAX_CHARACTERS}"', "the most is 262,144"),
    "a chain of rules": (
        "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(5000)) + 'r5000 ::= "a"',
        "ways to begin|chain",
    ),
    "left recursion": ('root ::= root "a" | "b"', ":1:1: the rule root begins with itself"),
    # What follows overflows libllama's stack, or it never comes back.
    "fewer at most than at least": ('root ::= "a"{3,1}', "at least 3 and at most 1"),
    "deep nesting": ("root ::= " + "(" * 30_000, "more than 64 parentheses"),
    "left recursion behind what is empty through another rule": (
        'root ::= a root "x" | "y"\na ::= b\nb ::= ""',
        "the rule root begins with itself",
    ),
    "left recursion in a repetition": (
        'root ::= "x" r\nr ::= (e r "a")+ | "b"\ne ::= "c"*',
        "begins with itself",
    ),
    "exponentially many beginnings": (
        "root ::= r0\n"
        + "".join(f'r{i} ::= r{i + 1} r{i + 1} | ""\n' for i in range(30))
        + 'r30 ::= "a"',
        "more than 4,096 ways to begin",
    ),
    "the same choice twice, thirty times over": (
        "root ::= r0\n"
        + "".join(f"r{i} ::= r{i + 1} | r{i + 1}\n" for i in range(30))
        + 'r30 ::= "a"',
        "more than 4,096 ways to begin",
    ),
    # libllama lets tokens through that it then ends the process on.
    "a token by its text": ("root ::= <think>", "a reference to a token"),
    "a token by its number": ("root ::= <[7]> | !<[8]>", "a reference to a token"),
}


@pytest.mark.parametrize("name", GOOD)
def test_taken(name: str) -> None:
    check_gbnf(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_refused_with_the_place(name: str) -> None:
    text, message = BAD[name]
    with pytest.raises(InputError, match=message) as caught:
        check_gbnf(text, "file.gbnf")
    assert caught.value.message.startswith("file.gbnf:")
    assert caught.value.exit_code == 3
