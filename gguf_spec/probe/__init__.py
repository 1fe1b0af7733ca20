"""What does libllama itself say that a model takes? Asked in a child process, without the weights.

From a header alone, in a file that is as long as the real one and holds nothing else, libllama
builds the model, its contexts and its graphs with ``no_alloc``, and counts the bytes of every
buffer. It may abort on the way: therefore the child.
"""

from gguf_spec.errors import ProbeError
from gguf_spec.probe.parent import probe
from gguf_spec.probe.request import ContextBytes, ProbeDraft, ProbeModel, ProbeResult

__all__ = [
    "ContextBytes",
    "ProbeDraft",
    "ProbeError",
    "ProbeModel",
    "ProbeResult",
    "probe",
]
