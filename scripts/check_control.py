"""What the controller loses to bad drafts, how soon it notices good ones, and what it takes itself.

    scripts/check_control.py [MODEL] [--pairs 7] [--tokens 1024] [-t 2] [--only TEXT] [-o FILE]

    random      MODEL (default: demo) decodes 1,024 tokens plainly and with a drafter of random
                tokens, in turn: one that takes time, as a model does, and one that takes none, as
                n-grams do. At most 3 % and 8 tokens of time may be lost.
    good again  The first 512 tokens are drafted at random, what follows is known. It has to be
                drafted within 512 tokens: of that model, and in simulation on other costs.
    own time    Recorded texts are said again. A round takes the controller 20 us at most, and the
                same text gives the same drafts.
    simulated   Drafters of constant acceptance on the costs of a GPU (c(4) = 1.1) and of a mixture
                of experts (c(4) = 1.6): at least 0.9 of the speed of the best fixed length.

Nothing else may run meanwhile. Prints what was found; the exit code is 1 if a limit is exceeded.
With -o the result is written as JSON, too.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from control_alone import TURN, WITHIN, own_time, simulated, simulated_turn
from sweep_record import check_file, count, run_main, write_file

from gguf_spec.bench.document import machine, ref_name, versions
from gguf_spec.bench.setups import Recorder
from gguf_spec.bench.statistics import estimate
from gguf_spec.context import ModelContext, Run
from gguf_spec.control import AdaptiveController, Round
from gguf_spec.control.base import Controller, FixedPolicy
from gguf_spec.drafters.base import Draft, Drafter
from gguf_spec.history import History
from gguf_spec.loading import drafter_facts
from gguf_spec.profile import Profile, apply_values
from gguf_spec.sampling import Sampler
from gguf_spec.session import Session
from gguf_spec.setup import prepare

PROMPT = (
    "The ferry left the harbour at six in the morning. On board were a carpenter, two sisters on "
    "their way to a wedding, and a man who counted gulls. The carpenter said:"
)
LONGEST = 8
N_CTX = 4096
SHARE, TOKENS = 0.03, 8.0  # of the time, and plain tokens, that may be lost


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "good again, simulated": simulated_turn,
    "own time": own_time,
    "simulated": simulated,
}


def main() -> int:
    """Run all of it; 1 if a limit is exceeded."""
    options = parse()
    return run_main(lambda: check(options))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--pairs", type=count(1), default=7)
    parser.add_argument("--tokens", type=count(64, N_CTX - 96), default=1024)
    parser.add_argument("-t", "--threads", type=count(1, 512), default=2)
    parser.add_argument("--only", default="", help="parts whose name has this in it")
    parser.add_argument("-o", "--output", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    names = ("random", "good again", *PARTS)
    if not any(options.only in name for name in names):
        parser.error(f"--only {options.only}: no part has that in its name: {', '.join(names)}")
    return options


def check(options: argparse.Namespace) -> int:
    """Run the parts that are wanted, and keep the result after each of them; the exit code."""
    record: dict[str, Any] = {
        "what": "the controller's losses, reactions and time",
        "command": f"scripts/check_control.py {ref_name(options.model)} -t {options.threads}",
        "date": date.today().isoformat(),
        "machine": machine(),
    }
    done: list[dict[str, Any]] = []
    if options.output:
        check_file(options.output)

    def keep(name: str, rows: list[dict[str, Any]]) -> None:
        record[name] = tell(name, rows)
        done.extend(rows)
        if options.output:
            write_file(options.output, json.dumps(record, indent=1) + "\n")

    models = [name for name in ("random", "good again") if options.only in name]
    if models:
        with open_session(options) as session:
            record["versions"] = versions(session)
            record["model"] = session.setup.path.name
            for name, part in (("random", losses), ("good again", good_again)):
                if name in models:
                    keep(name, part(session, options))
    for name, measured in PARTS.items():
        if options.only in name:
            keep(name, measured())
    missed = [row for row in done if not row["met"]]
    print(f"{len(missed)} of {len(done)} limits are exceeded" if missed else "all limits are kept")
    return int(bool(missed))


def tell(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print the rows of a part."""
    for row in rows:
        shown = ", ".join(f"{k} {_short(v)}" for k, v in row.items() if not isinstance(v, list))
        print(f"{name}: {shown}", flush=True)
    return rows


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


# --------------------------------------------------------------- with a model


class Scripted:
    """A drafter of random tokens, or from position ``turn`` of the answer on, of its true tokens.

    ``seconds`` is what each drafted token takes. It claims to have two tokens in common with a
    place that it copies from, and with true ones, as many more as have been said since.
    """

    def __init__(
        self, kind: str, n_vocab: int, seconds: float, text: Sequence[int], turn: int
    ) -> None:
        self.spec_type = kind
        self._n_vocab, self._seconds = n_vocab, seconds
        self._text, self._turn = text, turn
        self._history = History()
        self._n_prompt = 0
        self._numbers = random.Random(7)

    def begin(self, history: History) -> None:
        """The answer starts at the end of ``history``."""
        self._history, self._n_prompt = history, len(history)

    def observe(self, target: ModelContext, run: Run) -> None:
        """Nothing to learn."""

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        """See the class."""
        end = perf_counter() + self._seconds * limit
        done = len(self._history) - self._n_prompt
        if done >= self._turn:
            tokens = list(self._text[done : done + limit])
        else:
            tokens = [self._numbers.randrange(self._n_vocab) for _ in range(limit)]
        while perf_counter() < end:
            pass
        return Draft(tokens, self.spec_type, 2 + max(done - self._turn, 0))

    def accept(self, n_accepted: int) -> None:
        """Nothing to learn."""

    def close(self) -> None:
        """Nothing to give back."""


#: Kind, and the time of drafting a token in plain steps.
KINDS = {"a model": ("draft-simple", 0.1), "n-grams": ("ngram-simple", 0.0)}


def open_session(options: argparse.Namespace) -> Session:
    """The model as ``auto`` has it, with the curve of its costs measured."""
    values = {
        "target.model": options.model,
        "target.n_ctx": N_CTX,
        "target.n_threads": options.threads,
        "spec.pool": "request",
    }
    return Session(prepare(apply_values(Profile(), values)), least_width=LONGEST + 1)


@contextmanager
def arranged(session: Session, drafters: Sequence[Drafter]) -> Iterator[Recorder]:
    """The session with these drafters and a new controller; without any, plain decoding."""
    stack = session.sequence.stack
    before = stack.drafters, stack.controller, session.controller
    inner: Controller = FixedPolicy(())
    if drafters:
        ceilings, floors = [LONGEST] * len(drafters), [1] * len(drafters)
        inner = AdaptiveController(drafter_facts(drafters, ceilings, floors), session.curve)
    recorder = Recorder(inner)
    stack.drafters, stack.controller = tuple(drafters), recorder
    session.controller = inner
    try:
        yield recorder
    finally:
        stack.drafters, stack.controller, session.controller = before


def decode(
    session: Session, drafters: Sequence[Drafter], n_tokens: int
) -> tuple[list[int], float, list[Round]]:
    """Tokens, seconds from the first to the last, and the rounds."""
    params = session.params(
        apply_values(session.setup.profile, {"sampling.temperature": 0.0}),
        max_tokens=n_tokens,
        ignore_end=True,
    )
    # The drafters are new and the controller, too: they have the whole prompt to read.
    session.sequence.consistent = False
    with arranged(session, drafters) as recorder:
        generation = session.generate(session.raw_prompt(PROMPT), params)
        for _ in generation:
            pass
        seconds = session.sequence.timings().decode_seconds
        return generation.tokens, seconds, list(recorder.rounds)


def losses(session: Session, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What random drafts cost, in plain tokens, by kind of drafter."""
    decode(session, (), 32)
    pairs: dict[str, list[dict[str, float]]] = {name: [] for name in KINDS}
    for number in range(options.pairs):
        for name in KINDS if number % 2 else reversed(KINDS):
            pairs[name].append(loss(session, name, options.tokens, plain_first=not number % 2))
    rows = []
    allowed = SHARE * (options.tokens - 1) + TOKENS
    for name, found in pairs.items():
        lost = estimate([one["lost_tokens"] for one in found])
        assert lost is not None
        rows.append(
            {
                "drafter": name,
                "tokens": options.tokens,
                "lost": lost.median,
                "low": lost.low,
                "high": lost.high,
                "accounted": median(one["accounted_tokens"] for one in found),
                "allowed": allowed,
                "met": lost.median <= allowed,
                "pairs": found,
            }
        )
    return rows


def loss(session: Session, name: str, n_tokens: int, *, plain_first: bool) -> dict[str, float]:
    """One pair. ``lost_tokens`` is by the clock; ``accounted_tokens`` is what the rounds with
    drafts took beyond the plain steps of the same run, which noise of the machine hardly moves."""
    kind, cost = KINDS[name]
    step = session.curve.base or 0.01
    drafter = Scripted(kind, session.model.n_vocab, cost * step, (), n_tokens)
    seconds: dict[bool, float] = {}
    rounds: list[Round] = []
    for plain in (plain_first, not plain_first):
        _, seconds[plain], found = decode(session, () if plain else (drafter,), n_tokens)
        rounds = rounds if plain else found
    unit = seconds[True] / (n_tokens - 1)
    single = median(r.decode_seconds for r in rounds if not r.n_drafted)
    extra = sum(
        r.draft_seconds + (r.decode_seconds - len(r.tokens) * single if r.n_drafted else 0.0)
        for r in rounds
    )
    return {
        "plain_seconds": seconds[True],
        "seconds": seconds[False],
        "drafted": sum(r.n_drafted for r in rounds),
        "lost_tokens": (seconds[False] - seconds[True]) / unit,
        "accounted_tokens": extra / single,
    }


def good_again(session: Session, options: argparse.Namespace) -> list[dict[str, Any]]:
    """How many tokens after the drafts have become good they are used."""
    n_tokens = TURN + WITHIN + 256
    text, plain_seconds, _ = decode(session, (), n_tokens)
    rows = []
    for name, (kind, cost) in KINDS.items():
        step = plain_seconds / (n_tokens - 1)
        drafter = Scripted(kind, session.model.n_vocab, cost * step, text, TURN)
        tokens, seconds, rounds = decode(session, (drafter,), n_tokens)
        at, first, late = 1, None, []
        for one in rounds:
            if one.n_accepted and at >= TURN and first is None:
                first = at - TURN
            if at >= TURN + WITHIN:
                late.append(one)
            at += len(one.tokens)
        drafted = sum(one.n_drafted > 0 for one in late) / max(len(late), 1)
        rows.append(
            {
                "drafter": name,
                "same_text": tokens == text,
                "used_after": first,
                "drafted_rounds_after_512": drafted,
                "times_plain": plain_seconds / seconds,
                "met": tokens == text and first is not None and first <= WITHIN and drafted > 0.8,
            }
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
