"""The chat template of a model, run by llama-cpp-python's sandboxed Jinja formatter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gguf_spec.backend.lib import load_lib
from gguf_spec.backend.model import LlamaModel
from gguf_spec.prompt import Message, template_error

# What llama.cpp falls back to for a model without a template (common/chat.cpp).
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ChatTemplate:
    """Renders messages with a Jinja template. ``source`` None falls back to ChatML.

    Raises (constructor and ``render``):
        InputError: the template does not compile, or refuses the messages.
    """

    def __init__(self, source: str | None, model: LlamaModel) -> None:
        load_lib()
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        self.is_fallback = source is None
        self._source = CHATML if source is None else source
        try:
            self._formatter = Jinja2ChatFormatter(
                template=self._source,
                eos_token=model.special_text(model.eos),
                bos_token=model.special_text(model.bos),
            )
        except Exception as error:  # whatever Jinja raises on a broken template
            raise template_error(error) from error

    @property
    def arguments(self) -> frozenset[str]:
        """Names that the template looks up: what it is given, ``messages`` among it."""
        from jinja2 import Environment, meta
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        extensions = [Jinja2ChatFormatter.IgnoreGenerationTags, "jinja2.ext.loopcontrols"]
        parsed = Environment(extensions=extensions).parse(self._source)
        return frozenset(meta.find_undeclared_variables(parsed))

    def render(self, messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
        """The prompt text; see ``gguf_spec.prompt.Template``."""
        try:
            response = self._formatter(messages=[dict(m) for m in messages], **arguments)
        except Exception as error:  # the template's own code raises what it likes
            raise template_error(error) from error
        return str(response.prompt)
