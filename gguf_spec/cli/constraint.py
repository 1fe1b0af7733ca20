"""``--grammar`` and ``--json-schema``: files that say what an answer may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gguf_spec.cli.options import GrammarOptions
from gguf_spec.cli.prompts import read_text
from gguf_spec.errors import InputError, UsageError
from gguf_spec.grammars import check_gbnf, schema_to_gbnf

if TYPE_CHECKING:
    from gguf_spec.profile import Profile
    from gguf_spec.sampling import Mask
    from gguf_spec.session import Session


@dataclass(frozen=True)
class Constraint:
    """A grammar that was read and checked before any model is loaded."""

    text: str
    name: str

    @classmethod
    def of(cls, options: GrammarOptions) -> Constraint | None:
        """What the options say; None if they say nothing.

        Raises:
            UsageError: both are given.
            InputError: the file cannot be read or used.
        """
        if options.grammar is not None and options.json_schema is not None:
            raise UsageError(
                "--grammar and --json-schema cannot be combined", hint="leave one of them out"
            )
        if options.grammar is not None:
            text = read_text(options.grammar, "--grammar")
            check_gbnf(text, options.grammar)
            return cls(text, options.grammar)
        if options.json_schema is not None:
            schema = read_text(options.json_schema, "--json-schema")
            text = schema_to_gbnf(schema, options.json_schema)
            return cls(text, options.json_schema)
        return None

    def mask(self, session: Session, profile: Profile, *, raw: bool = False) -> Mask:
        """The mask for an answer. With ``chat.think`` on it begins behind the reasoning.

        Raises:
            InputError: libllama refuses the grammar, or it is not known how the reasoning ends.
        """
        trigger = ""
        if profile.chat.think == "on" and not raw:
            marked = session.thinking.format
            if marked is None:
                raise InputError(
                    "with --think on the grammar begins behind the reasoning, but this model's "
                    "chat template does not say how that ends",
                    hint="leave --think on out",
                )
            trigger = marked.answer_mark
        return session.grammar(self.text, name=self.name, trigger=trigger)
