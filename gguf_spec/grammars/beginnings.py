"""How the rules of a grammar begin: with themselves, or in how many ways.

libllama follows every way to a first character at a time, so that a few rules, each of which may be
left out, make it follow more than memory holds. And a rule that begins with itself behind something
that may be empty makes it follow longer and longer ones: its own check overlooks rules that are
empty through other rules.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

#: Ways to go from a rule to a first character.
MAX_WAYS = 4096
#: Rules that begin with one another in a chain.
MAX_CHAIN = 4096

#: Elements in a row: the number of another rule, or -n for a match that libllama stores as n.
Alternative: TypeAlias = list[int]
Rules: TypeAlias = dict[int, list[Alternative]]


class Problem(NamedTuple):
    """The first rule that libllama must not see."""

    rule: int
    problem: Literal["itself", "ways", "chain"]


def beginnings(rules: Rules) -> Problem | None:
    """What is wrong with how ``rules`` begin, if anything is.

    A rule may come back to itself as the last element of an alternative, as in a repetition of what
    may be empty: libllama recognises that it has been there.
    """
    empty = _empty_rules(rules)
    begins: dict[int, list[tuple[int, bool]]] = {}
    for rule, alternatives in rules.items():
        edges = begins[rule] = []
        for items in alternatives:
            for i, item in enumerate(items):
                if item >= 0:
                    edges.append((item, i + 1 == len(items)))
                if item < 0 or item not in empty:
                    break
    order, component = _components(begins)
    for rule, edges in begins.items():
        if any(component[to] == component[rule] and not is_last for to, is_last in edges):
            return Problem(rule, "itself")
    ways: dict[int, int] = {}
    chain: dict[int, int] = {}
    for rule in order:  # what a rule begins with comes before it
        later = [to for to, _ in begins[rule] if component[to] != component[rule]]
        n_first = sum(1 for items in rules[rule] if items and items[0] < 0)
        ways[rule] = 1 + n_first + sum(ways[to] for to in later)
        chain[rule] = 1 + max((chain[to] for to in later), default=0)
        if ways[rule] > MAX_WAYS:
            return Problem(rule, "ways")
        if chain[rule] > MAX_CHAIN:
            return Problem(rule, "chain")
    return None


def _empty_rules(rules: Rules) -> set[int]:
    """The rules that may stand for nothing."""
    users: dict[int, list[int]] = {}
    for rule, alternatives in rules.items():
        for items in alternatives:
            for item in items:
                if item >= 0:
                    users.setdefault(item, []).append(rule)
    empty: set[int] = set()
    todo = [rule for rule, alternatives in rules.items() if [] in alternatives]
    while todo:
        rule = todo.pop()
        if rule in empty:
            continue
        empty.add(rule)
        todo += [
            user
            for user in users.get(rule, ())
            if user not in empty
            and any(all(item in empty for item in items) for items in rules[user])
        ]
    return empty


def _components(edges: dict[int, list[tuple[int, bool]]]) -> tuple[list[int], dict[int, int]]:
    """Rules in an order in which what a rule begins with comes first, and the strongly connected
    component of each (Tarjan's algorithm, without recursion)."""
    order: list[int] = []
    component: dict[int, int] = {}
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    open_rules: list[int] = []
    for start in edges:
        if start in index:
            continue
        work = [(start, 0)]
        while work:
            rule, i = work.pop()
            if i == 0:
                index[rule] = low[rule] = len(index)
                open_rules.append(rule)
            if i < len(edges[rule]):
                work.append((rule, i + 1))
                to = edges[rule][i][0]
                if to not in index:
                    work.append((to, 0))
                elif to not in component:
                    low[rule] = min(low[rule], index[to])
                continue
            for to, _ in edges[rule]:
                if to not in component:
                    low[rule] = min(low[rule], low[to])
            if low[rule] == index[rule]:
                while True:
                    member = open_rules.pop()
                    component[member] = rule
                    order.append(member)
                    if member == rule:
                        break
    return order, component
