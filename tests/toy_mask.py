"""A mask with a few states, for the toy model: what is legal depends on all that has come."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gguf_spec.errors import RunError
from tests.toy import END

N_STATES = 5


class ToyMask:
    """About 40% of the tokens are legal in each state; the end is in one of the five.

    It keeps what it was told, so that a test can see whether a draft has reached it.
    """

    def __init__(self, state: int = 0) -> None:
        self.state = state
        self.taken: list[int] = []
        self.asked = 0

    def legal(self, ids: NDArray[np.intp]) -> NDArray[np.bool_]:
        self.asked += len(ids)
        found: NDArray[np.bool_] = (ids * 7 + self.state) % N_STATES < 2
        found[ids == END] = self.state == 2
        return found

    def advance(self, token: int) -> None:
        if not self.legal(np.array([token]))[0]:
            raise RunError(f"token {token} is not legal in state {self.state}")
        self.taken.append(token)
        self.state = (self.state * 3 + token) % N_STATES

    def copy(self) -> ToyMask:
        twin = ToyMask(self.state)
        twin.taken = list(self.taken)
        return twin


def obeys(tokens: list[int]) -> bool:
    """Whether a text is legal from its first token on."""
    mask = ToyMask()
    try:
        for token in tokens:
            mask.advance(token)
    except RunError:
        return False
    return True
