"""The header behind any reference: of the file if it is here, else from where it is."""

from __future__ import annotations

from gguf_spec.demo import Progress
from gguf_spec.errors import AmbiguousRefError, RefError
from gguf_spec.header import ModelInfo, read_model
from gguf_spec.hub.header_cache import HeaderCache
from gguf_spec.hub.ladder import list_ladder, single
from gguf_spec.hub.local import elsewhere
from gguf_spec.hub.remote import address_parts, hub_folder, read_remote_model
from gguf_spec.hub.web import Web
from gguf_spec.refs import as_hub, parse_ref, resolve


def header_of(web: Web, text: str, *, progress: Progress | None = None) -> ModelInfo:
    """The header of the one model that ``text`` names. Nothing is downloaded but that (and the demo
    model, which has no address).

    Raises:
        RefError: nothing, or several models, go by that name.
        HubError: it cannot be had.
        HeaderError: it is not GGUF.
    """
    ref = parse_ref(text)
    try:
        return read_model(resolve(text, progress=progress))
    except AmbiguousRefError:
        raise
    except RefError:
        if ref.kind not in ("hf", "url"):
            raise
    ref = as_hub(ref) or ref
    found = elsewhere(ref)
    if found is not None:
        return read_model(found)
    if ref.kind == "url":
        return read_remote_model(web, HeaderCache(hub_folder()), address_parts(ref.name))
    ladder = list_ladder(web, ref)
    if ladder.note:
        web.tell(ladder.note)
    return ladder.header(single(ladder, ref))
