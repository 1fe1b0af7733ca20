"""What a context may be asked for before libllama aborts the process."""

from __future__ import annotations

from gguf_spec.header import ModelInfo
from gguf_spec.memory.facts import facts

MAX_SNAPSHOTS = 16  # of a recurrent state: each costs as much memory as the state itself

#: Graph nodes for each tensor of the model, without snapshots: of the architectures whose budget
#: is 8 nodes a tensor. Measured: nemotron_h 4.4 to 4.7, lfm2 3.5 to 3.8; experts take more.
_NODES = {"nemotron_h": 4.7, "lfm2": 4.7, "nemotron_h_moe": 6.0, "lfm2moe": 6.0}
_NODES_OF_A_SNAPSHOT = 3  # two views and a copy, for each recurrent layer (mamba-base.cpp:186-195)


def most_snapshots(info: ModelInfo) -> int | None:
    """The most snapshots (``n_rs_seq``) that the graph of ``info`` has room for.

    None: as many as one likes, or none, because states cannot be rolled back at all. A graph has
    room for 8 nodes a tensor (``graph_max_nodes``, llama-context.cpp:2396-2445); on more, libllama
    aborts in ggml_new_object. The architectures of Qwen 3.5 have room for 32.
    """
    known = facts(info)
    layers = sum(known.recurrent[: known.n_layer])
    if info.arch not in _NODES or not layers:
        return None
    n_tensors = len(info.tensors)
    room = max(1024, 8 * n_tensors) - _NODES[info.arch] * n_tensors
    return max(int(room / (_NODES_OF_A_SNAPSHOT * layers)) - 1, 0)


def fitting_snapshots(wanted: int, n_ubatch: int) -> int:
    """How many of ``wanted`` snapshots a context may have that computes ``n_ubatch`` tokens a time.

    A physical batch takes more than the 1 + n_rs_seq rows that it keeps together, or libllama
    aborts (llama-batch.cpp:641). What loads a context and what plans one both ask here.
    """
    return max(min(wanted, n_ubatch - 2), 0)


def snapshots(info: ModelInfo, longest: int) -> int:
    """How many snapshots to ask for, where drafts have up to ``longest`` tokens."""
    most = most_snapshots(info)
    return min(longest, MAX_SNAPSHOTS if most is None else min(most, MAX_SNAPSHOTS))
