"""A whole measurement: warm up, run all rounds, and keep what is finished if it is interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from gguf_spec.bench.document import Measured
from gguf_spec.bench.memory import peak_bytes, reset_peak
from gguf_spec.bench.peer import LlamaServer
from gguf_spec.bench.runner import Runner
from gguf_spec.bench.setups import PLAIN, BenchSetup, plain_setup, synthetic_setup
from gguf_spec.errors import GgufSpecError, UsageError
from gguf_spec.profile import Profile, apply_values
from gguf_spec.session import Session
from gguf_spec.setup import DEFAULT_DRAFT_N_MAX


def bench_profile(profile: Profile) -> Profile:
    """``profile`` as it is measured: texts of earlier runs stay out of the drafts, and the drafts'
    texts out of what is kept for later runs."""
    return apply_values(profile, {"spec.pool": "request"})


def synthetic_length(profile: Profile) -> int:
    """How many tokens synthetic drafts have."""
    n_max = profile.spec.n_max
    return n_max if isinstance(n_max, int) else DEFAULT_DRAFT_N_MAX


def setups_for(
    session: Session, *, each: bool, synthetic: float | None, drafting: bool = True
) -> list[BenchSetup]:
    """Plain decoding, and what is compared with it: all of the session's spec types together, or
    ``each`` alone; without ``drafting`` only the ``synthetic`` drafts.

    Raises:
        UsageError: there is nothing to compare.
    """
    profile, types = session.setup.profile, session.spec_types
    control = profile.spec.control
    setups = [plain_setup()]
    if drafting and each and len(types) > 1:
        suffix = "" if control else " fixed"
        setups += [BenchSetup(f"{kind}{suffix}", (kind,), control) for kind in types]
    elif drafting and types:
        setups.append(BenchSetup("auto" if control else "fixed", types, control))
    if synthetic is not None:
        setups.append(synthetic_setup(synthetic, synthetic_length(profile)))
    if len(setups) == 1:
        raise UsageError(
            "there is nothing to compare: the spec type is none",
            hint="--spec-type auto, or a list of types; or --synthetic 0.8",
        )
    return setups


def start_peers(program: str, session: Session, setups: Sequence[BenchSetup]) -> list[LlamaServer]:
    """A llama-server for each of ``setups`` that one can do. None is left running on an error."""
    servers: list[LlamaServer] = []
    try:
        for setup in setups:
            if setup.synthetic is None:
                servers.append(LlamaServer(program, session, setup))
    except BaseException:
        for server in servers:
            server.close()
        raise
    return servers


def measure(runner: Runner, n_rounds: int) -> Measured:
    """All rounds. An interrupt or an error, as of a peer that ends, ends them; what is finished is
    kept.

    Raises:
        KeyboardInterrupt, GgufSpecError: before there was a pair.
    """
    measured = Measured(runner)
    begun = perf_counter()
    try:
        runner.warm_up()
        reset_peak()
        for run in runner.rounds(n_rounds):
            measured.runs.append(run)
        measured.complete = True
    except (KeyboardInterrupt, GgufSpecError) as error:
        if not _has_pair(measured):
            raise
        measured.error = error if isinstance(error, GgufSpecError) else None
    measured.seconds = perf_counter() - begun
    _note_peaks(measured)
    measured.peers = [peer.record() for peer in runner.peers]
    return measured


def _note_peaks(measured: Measured) -> None:
    own = peak_bytes()
    if own is not None:
        measured.peak_bytes["gguf-spec"] = own
    for peer in measured.runner.peers:
        peak = peer.peak_bytes()
        if peak is not None:
            measured.peak_bytes[peer.name] = peak


def _has_pair(measured: Measured) -> bool:
    plain = {(run.round, run.workload) for run in measured.runs if run.setup == PLAIN}
    return any((run.round, run.workload) in plain for run in measured.runs if run.setup != PLAIN)
