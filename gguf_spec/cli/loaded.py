"""The session of a chat, which may be exchanged for another one while the chat goes on."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from gguf_spec.cli.answer import open_session, prepare_setup
from gguf_spec.cli.output import Output

if TYPE_CHECKING:
    from gguf_spec.profile import Profile
    from gguf_spec.session import Session
    from gguf_spec.setup import Setup


class Loaded:
    """A session that is always there, until it is closed."""

    def __init__(self, setup: Setup, out: Output) -> None:
        self._out = out
        self.lost = False
        """Whether a reload has failed, and going back too: there is nothing to go on with."""
        self.session = self._opened(setup)

    def reload(self, profile: Profile, name: str = "") -> None:
        """Load ``profile`` in place of what is loaded. If that fails the old one is loaded again:
        two models at a time may be more than fits.

        Raises:
            GgufSpecError: it cannot be loaded; the session is as before, with empty caches.
            If the old one cannot be loaded again either, it is ``lost``.
        """
        setup = prepare_setup(profile, self._out, name=name)
        before = self.session.setup
        self.session.close()
        try:
            self.session = self._opened(setup)
        except BaseException:
            self._out.say("(going back to what was loaded)")
            self.lost = True
            self.session = self._opened(before)
            self.lost = False
            raise

    def _opened(self, setup: Setup) -> Session:
        """A session for a conversation, which goes back at times."""
        session = open_session(setup, self._out)
        session.sequence.checkpoints.enabled = True
        return session

    def __enter__(self) -> Loaded:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.session.close()
