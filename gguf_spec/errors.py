"""Every error that gguf-spec raises on purpose.

::

    GgufSpecError
    ├── UsageError            a wrong value on the command line             exit 2
    ├── InputError            an input cannot be used                       exit 3
    │   ├── HeaderError       not a GGUF file, damaged, or unknown version
    │   ├── RefError          a model reference that leads nowhere
    │   ├── HubError          a host on the network, or what it sent, that cannot be used
    │   ├── ProfileError      a profile with one or more problems
    │   ├── PairError         a draft that does not fit its target
    │   └── PromptError       a prompt that cannot be used
    ├── NoFitError            it does not fit into memory                   exit 4
    └── RunError              failed while running                          exit 1
        ├── BackendError      libllama refused or is not one we know
        └── ProbeError        libllama did not say what a model takes

The library raises; only ``gguf_spec.cli`` (and later the server) turns an error into text.
A message says what is wrong, with the numbers; ``hint`` says what to do about it.
"""

from __future__ import annotations


class GgufSpecError(Exception):
    """Base of all errors raised on purpose; ``exit_code`` is what the program exits with."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(GgufSpecError):
    """A wrong value on the command line."""

    exit_code = 2


class InputError(GgufSpecError):
    """An input (file, profile, network source) that cannot be used."""

    exit_code = 3


class HeaderError(InputError):
    """A file that is not GGUF, is damaged, or has a version that is not known."""


class RefError(InputError):
    """A model reference (REF) that leads to no usable file."""


class AmbiguousRefError(RefError):
    """A model reference that leads to several files."""


class HubError(InputError):
    """A host that cannot be reached, refuses, or sends what cannot be used.

    ``kind`` tells them apart: "offline", "connect" (nobody answers), "closed" (the answer breaks
    off), "token" (401), "gated" (403), "missing" (404), "limit" (429), "server" (5xx), "link" (a
    host refuses what another one has led to), "protocol" (an answer that cannot be right),
    "changed" (another file than was promised), "disk", "extra" (a package is not installed),
    "endpoint" (the address of the Hub is none).
    """

    def __init__(self, message: str, *, kind: str = "protocol", hint: str | None = None) -> None:
        later = "the server is at fault: try again later, or another mirror (HF_ENDPOINT)"
        super().__init__(message, hint=hint or (later if kind == "protocol" else None))
        self.kind = kind


class ProfileError(InputError):
    """A profile that cannot be used; ``problems`` lists every one of them."""

    def __init__(
        self, message: str, *, problems: tuple[str, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


class PairError(InputError):
    """A draft that cannot be used with its target."""


class PromptError(InputError):
    """A prompt that is empty or longer than the context."""


class NoFitError(GgufSpecError):
    """A model, context or buffer that does not fit into memory."""

    exit_code = 4


class RunError(GgufSpecError):
    """A failure while running."""


class BackendError(RunError):
    """libllama refused a call, or is a version that is not known."""


class ProbeError(RunError):
    """libllama did not say what a model takes.

    ``kind``: abort (a failed assertion), crash (a signal), timeout, memory, killed (from outside),
    refused (in libllama's own words), no-sparse-files, start (no child process), failed (other).
    """

    def __init__(self, kind: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
