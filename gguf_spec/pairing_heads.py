"""Can a draft head compute on this target? Told from the two headers alone.

A head is a drafter that takes hidden states of the target: an MTP head, EAGLE-3, DFlash, DSpark.
llama.cpp looks at the widths when it is too late and ends the process
(``common_speculative_impl_draft_*`` in common/speculative.cpp, ``GGML_ASSERT``s in src/models/).
"""

from __future__ import annotations

import struct

from gguf_spec.gguf_reader import TensorInfo
from gguf_spec.header import ModelInfo
from gguf_spec.hidden_states import NEXTN, state_problem

_I64 = "I64"


def wanted_states(kind: str, target: ModelInfo, draft: ModelInfo) -> tuple[int, ...]:
    """The target's hidden states that a drafter of type ``kind`` reads (ids as in
    ``hidden_states``); none for drafters that are models of their own."""
    if kind == "draft-mtp":
        return (NEXTN,)
    if kind not in ("draft-eagle3", "draft-dflash", "draft-dspark"):
        return ()
    ids = tuple(int(i) for i in draft.read_numbers(f"{draft.arch}.target_layers"))
    if kind == "draft-eagle3":
        # speculative.cpp takes "the input of the head" from another buffer than layer inputs.
        return tuple(NEXTN if i == target.n_layer else i for i in ids)
    return ids


def eagle3_problem(target: ModelInfo, head: ModelInfo) -> str | None:
    """Why the EAGLE-3 head ``head`` cannot draft for ``target``; None if it can."""
    layers = wanted_states("draft-eagle3", target, head)
    if len(layers) != 3:
        return f"{head.name} reads {len(layers)} layers of its target, EAGLE-3 reads 3"
    problem = state_problem(target.arch or "", target.n_layer or 0, layers)
    if problem is not None:
        return problem
    width = head.arch_uint("target_hidden_size")
    if width != target.n_embd:
        return f"the states differ in width: target {target.n_embd}, head made for {width}"
    if head.n_layer != 1:
        return f"{head.name} has {head.n_layer} layers, EAGLE-3 has 1"
    keys = head.arch_uint("attention.key_length")
    values = head.arch_uint("attention.value_length")
    if keys != values:
        return f"{head.name} has keys of {keys} values and values of {values}"
    return shared_problem(target, head)


def shared_problem(target: ModelInfo, head: ModelInfo) -> str | None:
    """Whether a head without embeddings or output of its own can use the target's, and a reduced
    vocabulary fits (``build_arch_graph`` in eagle3.cpp and dflash.cpp)."""
    tensors = {tensor.name: tensor for tensor in head.tensors}
    lent = [name for name in ("token_embd.weight", "output.weight") if name not in tensors]
    if lent and head.n_embd != target.n_embd:
        return (
            f"{head.name} has no {lent[0]}, and the target's has another width: target "
            f"{target.n_embd}, head {head.n_embd}"
        )
    reduced = tensors.get("d2t")
    if reduced is None:
        return None
    output = tensors.get("output.weight")
    n = reduced.shape[0]
    if reduced.type != _I64 or output is None or output.shape[1] != n:
        return f"{head.name} has a reduced vocabulary of {n} tokens without an output for it"
    return _d2t_problem(head, reduced, n)


def _d2t_problem(head: ModelInfo, tensor: TensorInfo, n: int) -> str | None:
    """libllama writes logits to the rows that ``d2t`` names, and aborts outside of them."""
    if head.split_count > 1:
        return f"{head.name} is a split file, which draft heads cannot be"
    order = "<" if head.byte_order == "little" else ">"
    raw = head.source.read(head.data_offset + tensor.offset, 8 * n)
    ids = struct.unpack(f"{order}{n}q", raw)
    size = head.vocab_size or 0
    wrong = next((i for i in ids if not 0 <= i < size), None)
    if wrong is not None:
        return f"{head.name} drafts token {wrong}, its vocabulary has {size} tokens"
    if len(set(ids)) != n:
        return f"{head.name} names a token twice in its reduced vocabulary"
    return None
