"""Grammars: GBNF, read before libllama reads it, and JSON schemas that become GBNF.

| module | what it does |
|---|---|
| ``gbnf`` | parses a grammar as libllama does, and refuses what would hurt it |
| ``beginnings`` | rules that begin with themselves, or in too many ways |
| ``schema`` | a JSON schema becomes a grammar |
| ``keywords`` | the keywords of JSON Schema, references, and schemas that hold together |
| ``numbers``, ``pattern`` | numbers within bounds, and regular expressions, as GBNF |
"""

from gguf_spec.grammars.gbnf import check_gbnf
from gguf_spec.grammars.schema import schema_to_gbnf

__all__ = ["check_gbnf", "schema_to_gbnf"]
