"""Checks of a profile that need two of its keys, where ``profile_schema`` has those of one."""

from __future__ import annotations

from collections.abc import Iterator

from gguf_spec.profile_schema import Draft, Profile
from gguf_spec.profile_values import DRAFT_TYPES


def cross_problems(profile: Profile) -> Iterator[tuple[tuple[str, ...], str]]:
    """Name what two keys make impossible together, as (path of one key, message)."""
    spec, target = profile.spec, profile.target
    mod = spec.ngram_mod
    if mod.n_min > mod.n_max:
        path = ("spec", "ngram-mod", "n_min" if "n_min" in mod.model_fields_set else "n_max")
        yield path, f"n_min {mod.n_min} is greater than n_max {mod.n_max}: nothing would be drafted"
    if spec.n_max != "auto" and spec.n_min > spec.n_max > 0:
        yield ("spec", "n_min"), f"n_min {spec.n_min} is greater than n_max {spec.n_max}"
    for kind in ("draft", *DRAFT_TYPES):
        table: Draft = getattr(spec, kind.replace("-", "_"))
        if table.n_max != "auto" and table.n_min > table.n_max > 0:
            path = ("spec", kind, "n_min")
            yield path, f"n_min {table.n_min} is greater than n_max {table.n_max}"
    if spec.exact and spec.verify == "residual":
        yield (
            ("spec", "verify"),
            'verify "residual" does not keep the text, and exact is on',
        )
    if spec.exact and target.flash_attn == "off":
        yield ("target", "flash_attn"), 'flash_attn is "off", and spec.exact needs it'
    # llama_init_from_model refuses this pair, with a message in its log only. Drafts have the
    # target's flash_attn.
    caches: dict[tuple[str, ...], str] = {("target", "type_v"): target.type_v}
    for kind in ("draft", *DRAFT_TYPES):
        caches["spec", kind, "type_v"] = getattr(spec, kind.replace("-", "_")).type_v
    for where, type_v in caches.items():
        if target.flash_attn == "off" and type_v not in ("f32", "f16", "bf16"):
            key = "flash_attn" if where[0] == "target" else "target.flash_attn"
            yield where, f'type_v "{type_v}" is quantized and needs {key} "on" or "auto"'
