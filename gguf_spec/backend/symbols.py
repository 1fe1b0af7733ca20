"""Functions of libllama that have no C interface: found by the names that compilers give them.

They are declared in llama.cpp's llama-ext.h, a staging area that promises nothing. Each is looked
up by its plain name, by its Itanium name (Linux, macOS) and by its MSVC name. Where one is absent,
the drafters that need it are not available; everything else goes on.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_CONTEXT = _MODEL = ctypes.c_void_p
_ADDRESS = ctypes.c_void_p  # of floats, as an integer: pointer objects cost more than the call
_I32S = ctypes.POINTER(ctypes.c_int32)
_I32, _U32, _BOOL = ctypes.c_int32, ctypes.c_uint32, ctypes.c_bool

_NEXTN = "drafting with MTP heads, EAGLE-3, DFlash and DSpark"
_LAYERS = "drafting with EAGLE-3, DFlash and DSpark"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A C++ function: its mangled names, types, and the ``feature`` that is off without it."""

    itanium: str
    msvc: str
    result: Any
    arguments: tuple[Any, ...]
    feature: str


class MapObject(ctypes.Structure):
    """Room for a ``std::map`` that is returned by value; 48 bytes are the most that one takes."""

    _fields_ = (("words", ctypes.c_size_t * 6),)


SYMBOLS = {
    "llama_set_embeddings_nextn": Symbol(
        "_Z26llama_set_embeddings_nextnP13llama_contextbb",
        "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
        None,
        (_CONTEXT, _BOOL, _BOOL),
        _NEXTN,
    ),
    "llama_get_embeddings_nextn": Symbol(
        "_Z26llama_get_embeddings_nextnP13llama_context",
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
        _ADDRESS,
        (_CONTEXT,),
        _NEXTN,
    ),
    "llama_get_embeddings_nextn_ith": Symbol(
        "_Z30llama_get_embeddings_nextn_ithP13llama_contexti",
        "?llama_get_embeddings_nextn_ith@@YAPEAMPEAUllama_context@@H@Z",
        _ADDRESS,
        (_CONTEXT, _I32),
        _NEXTN,
    ),
    "llama_set_nextn_layer_offset": Symbol(
        "_Z28llama_set_nextn_layer_offsetP13llama_contexti",
        "?llama_set_nextn_layer_offset@@YAXPEAUllama_context@@H@Z",
        None,
        (_CONTEXT, _I32),
        "drafting with several MTP heads one after the other",
    ),
    "llama_set_embeddings_layer_inp": Symbol(
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
        "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
        None,
        (_CONTEXT, _U32, _BOOL),
        _LAYERS,
    ),
    "llama_get_embeddings_layer_inp": Symbol(
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
        _ADDRESS,
        (_CONTEXT, _U32),
        _LAYERS,
    ),
    "llama_model_target_layer_ids": Symbol(
        "_Z28llama_model_target_layer_idsPK11llama_model",
        "?llama_model_target_layer_ids@@YAPEBHPEBUllama_model@@@Z",
        _I32S,
        (_MODEL,),
        _LAYERS,
    ),
    "llama_model_target_layer_ids_n": Symbol(
        "_Z30llama_model_target_layer_ids_nPK11llama_model",
        "?llama_model_target_layer_ids_n@@YAIPEBUllama_model@@@Z",
        _U32,
        (_MODEL,),
        _LAYERS,
    ),
    "llama_model_dflash_selector_top_k": Symbol(
        "_Z33llama_model_dflash_selector_top_kPK11llama_model",
        "?llama_model_dflash_selector_top_k@@YAHPEBUllama_model@@@Z",
        _I32,
        (_MODEL,),
        "drafting with DFlash files that have a selector",
    ),
    "llama_get_memory_breakdown": Symbol(
        "_Z26llama_get_memory_breakdownPK13llama_context",
        "?llama_get_memory_breakdown@@YA?AV?$map@PEAUggml_backend_buffer_type@@"
        "Ullama_memory_breakdown_data@@U?$less@PEAUggml_backend_buffer_type@@@std@@"
        "V?$allocator@U?$pair@QEAUggml_backend_buffer_type@@Ullama_memory_breakdown_data@@@std@@@4@"
        "@std@@PEBUllama_context@@@Z",
        MapObject,
        (_CONTEXT,),
        "comparing planned with allocated memory",
    ),
}


def find(api: ModuleType, name: str) -> Any:
    """The function ``name``, ready to be called; None if this libllama does not have it."""
    symbol = SYMBOLS[name]
    library = getattr(api, "_lib", None)
    for exported in (name, symbol.itanium, symbol.msvc):
        try:
            # Indexing, unlike attribute access, gives a function object of our own: other users of
            # the library may have declared other types for theirs.
            function = library[exported]  # type: ignore[index]
        except (AttributeError, KeyError, TypeError):
            continue
        function.restype, function.argtypes = symbol.result, list(symbol.arguments)
        return function
    return None


def absent(api: ModuleType) -> dict[str, str]:
    """The functions that this libllama does not have, with the features that are off for it."""
    return {name: symbol.feature for name, symbol in SYMBOLS.items() if find(api, name) is None}
