"""Which hidden states of a target its drafters may read, by architecture.

The lists follow the graphs of llama.cpp (src/models/): where a graph does not name a state,
libllama aborts the process when it is asked for (``extract_layer_inputs`` and
``get_embeddings_layer_inp`` in llama-context.cpp), or hands out memory that was never written.
"""

from __future__ import annotations

from collections.abc import Sequence

#: In place of a layer id: the state that the target's own head reads (llama.cpp's ``h_nextn``),
#: one row for every token. Which side of the last norm it is taken from, the architecture decides.
NEXTN = -1

#: Architectures whose graph names the input of every layer (``t_layer_inp``). qwen4exp names
#: several streams per token, of which libllama's buffer holds one: it aborts.
LAYER_INPUT_ARCHS = frozenset([
    "llama", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "gemma4", "gpt-oss", "lfm2",
    "lfm2moe", "nemotron_h", "nemotron_h_moe", "mimo2", "minimax-01", "minimax-m2", "hunyuan_vl",
    "hunyuan-dense", "nanbeige", "bailingmoe3", "deepseek4", "muse-glimmer",
])  # fmt: skip
#: Of these, the ones that also name the output of the last layer (id ``n_layer``).
LAST_OUTPUT_ARCHS = frozenset(["deepseek4", "mimo2", "nemotron_h", "nemotron_h_moe"])
#: Architectures whose graph names ``t_h_nextn``.
NEXTN_ARCHS = frozenset([
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "gemma4", "glm-dsa",
    "glm4moe", "glm5-next", "gpt-oss", "hy_v3", "mimo2", "nemotron_h", "nemotron_h_moe", "qwen35",
    "qwen35moe", "qwen3next", "step35",
])  # fmt: skip
#: Architectures with a graph for the head that predicts further tokens (``graph_mtp``).
MTP_ARCHS = frozenset([
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe",
    "hy_v3", "mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35",
])  # fmt: skip
#: Of these, the ones whose graph computes any of several heads, one after the other
#: (``nextn_layer_offset``); the others assert that there is one, or look at the first alone.
CHAIN_ARCHS = frozenset(["hy_v3", "mimo2", "step35"])
#: Architectures that carry the tensors of a head along and have no graph for it. That of glm5-next
#: throws "not implemented yet".
STORED_ARCHS = frozenset([
    "bailingmoe2", "dots3note", "exaone-moe", "exaone4", "glm4", "glm5-next",
])  # fmt: skip
#: An assistant attends to the cache of its target, which llama.cpp takes for one of this kind
#: without looking (``create_memory`` in llama-model.cpp).
ASSISTANT_ARCH, ASSISTED_ARCH = "gemma4-assistant", "gemma4"
#: Architectures of draft heads in files of their own, which compute on a target's states.
HEAD_ARCHS = frozenset(["eagle3", "dflash", ASSISTANT_ARCH])


def state_problem(arch: str, n_layer: int, layers: Sequence[int]) -> str | None:
    """Why the states ``layers`` of a target of ``n_layer`` layers cannot be read; None if they can.

    An id is the index of a layer whose input is meant, ``n_layer`` the output of the last one, or
    ``NEXTN``.
    """
    # A layer that is not there comes first: it says that the file was made for a deeper target.
    for layer in layers:
        if layer != NEXTN and not 0 <= layer <= n_layer:
            return f"layer {layer} is wanted, the target has {n_layer} layers"
    for layer in layers:
        if layer == NEXTN:
            if arch not in NEXTN_ARCHS:
                return f"llama.cpp does not hand out the last hidden state of {arch} models"
        elif arch not in LAYER_INPUT_ARCHS:
            return f"llama.cpp does not hand out the layer inputs of {arch} models"
        elif layer == n_layer and arch not in LAST_OUTPUT_ARCHS:
            return f"llama.cpp does not hand out the output of the last layer of {arch} models"
    return None
