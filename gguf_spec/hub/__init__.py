"""Models on the network and in other programs' folders: lists, headers, downloads, candidates.

Only this package asks hosts. Its packages (httpx, huggingface_hub, filelock) are an extra: they are
imported when a host is really asked, and what is cached or local needs none of them.
"""

from gguf_spec.hub.ladder import Ladder, LadderFile, list_ladder
from gguf_spec.hub.web import Web

__all__ = ["Ladder", "LadderFile", "Web", "list_ladder"]
