"""How many tokens a text has at least, told without tokenizing it, which takes minutes for some.

Every byte of a text is in some token, so there are no fewer tokens than the longest one of the
vocabulary goes into the text. White space is not counted, because tokenizers and chat templates
drop some of it; nor are bytes that the vocabulary has no token for, because llama.cpp leaves those
out (``llm_tokenizer_bpe_session::tokenize`` in llama-vocab.cpp).
"""

from __future__ import annotations

from gguf_spec.errors import PromptError
from gguf_spec.header import ModelInfo
from gguf_spec.loadable import token_texts

#: Tokenizers that put all that they know into tokens; others have one for a whole unknown word.
_WHOLE = frozenset(["llama", "gpt2", "gemma4"])
_QUICK = 64  # bytes for each token of the context: so many are tokenized at once
_SPACES = str.maketrans("", "", " \t\n\r\v\f\u0120\u010a\u0109\u010d\u2581")  # as tokens spell them


def check_size(info: ModelInfo, n_ctx: int, text: str) -> None:
    """Raise PromptError where ``text`` cannot fit into a context of ``n_ctx`` tokens by its size.

    One that passes may be too long all the same, which is known when it is tokenized.
    """
    if len(text) <= _QUICK * n_ctx:
        return
    least = least_tokens(info, text)
    if least > n_ctx:
        raise PromptError(
            f"the prompt has at least {least} tokens, the context holds {n_ctx}",
            hint="raise -c/--ctx-size, or shorten the prompt",
        )


def least_tokens(info: ModelInfo, text: str) -> int:
    """A number of tokens that ``text`` has at the least; 0 where nothing is known."""
    if info.tokenizer.model not in _WHOLE:
        return 0
    pieces = [piece.decode("utf-8", "replace") for piece in token_texts(info)]
    known = set(pieces)
    letters = [c for c in range(0x21, 0x7F) if chr(c) in known or f"<0x{c:02X}>" in known]
    other = bytes(c for c in range(256) if c not in letters)
    counted = len(text.encode("utf-8", "replace").translate(None, other))
    longest = max((len(piece.translate(_SPACES).encode()) for piece in pieces), default=0)
    return -(-counted // longest) if longest else 0
