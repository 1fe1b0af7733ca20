"""Profiles: schema, lines in messages, extends, overrides, precedence."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_spec import profile as profile_module
from gguf_spec.errors import ProfileError, UsageError
from gguf_spec.profile import (
    Profile,
    apply_overrides,
    apply_values,
    draft_settings,
    find_profile,
    find_profiles,
    load_profile,
    sampling_settings,
)
from gguf_spec.profile_text import key_lines
from tests.profile_files import flat, in_tmp, load, problems, write  # noqa: F401

# ------------------------------------------------------------------- lines and hints


def test_all_problems_are_reported_at_once_with_lines_and_nearest_keys() -> None:
    text = """
[target]
model = "demo"
n_gpu_layer = 3          # line 4
note = \"\"\"
n_batch = 5
\"\"\"
n_batch = "many"         # line 8
temperature = 0.5        # line 9
[modle]
a = 1
[spec.mtp]               # line 12
n_max = 1
[spec]
types = [                # line 15
  "ngram",
  "medusa",
]
[sampling]
"temp" = 0.1             # line 20
logit_bias = { 5 = 1, "x" = 2 }
"""
    found = problems(text)
    assert found[0] == (
        "p.toml:4: unknown key `n_gpu_layer` in [target]; did you mean `n_gpu_layers`?"
    )
    assert found[1].startswith("p.toml:5: unknown key `note` in [target]; did you mean `")
    assert found[2:4] == (
        'p.toml:8: `n_batch` in [target] must be a whole number, got "many"',
        "p.toml:9: unknown key `temperature` in [target]; "
        "did you mean `temperature` in [sampling]?",
    )
    assert found[4].startswith("p.toml:10: unknown table `modle`; did you mean `")
    assert found[5:] == (
        "p.toml:12: unknown table `mtp` in [spec]; did you mean `draft-mtp`?",
        "p.toml:15: `types` in [spec]: `medusa` is not in llama.cpp; "
        "what comes nearest is draft-mtp or draft-eagle3",
        "p.toml:20: unknown key `temp` in [sampling]; did you mean `temperature`?",
        "p.toml:21: `logit_bias` in [sampling] needs token ids as keys, got 'x'",
    )


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a = 1\nb = = 2\n", "p.toml:2: "),
        ("[target\n", "p.toml:1: "),
        ("a = 1\na = 2\n", "p.toml:2: "),
        ("a = '''\nx\n", "p.toml:2: "),
        ("a = " + "[" * 5000 + "]" * 5000, "p.toml: "),
        ("chat.template." + "a." * 60 + "a = 1", "p.toml: "),
    ],
)
def test_syntax_errors_have_a_line(text: str, start: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(start), problem


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    Path("latin.toml").write_bytes(b"a = 1\nb = '\xff'\n")
    Path("huge.toml").write_bytes(b"#" * (2**20 + 1))
    Path("folder.toml").mkdir()
    for name, message in {
        "latin.toml": "latin.toml:2: is not UTF-8",
        "huge.toml": "larger than",
        "folder.toml": "is a folder",
        "absent.toml": "no such file",
        "a/b": "no such file",
        str(tmp_path): "is a folder",
        "x" * 5000 + ".toml": "cannot be read",
        "a\0b.toml": "cannot be read",
    }.items():
        with pytest.raises(ProfileError, match=message) as info:
            load_profile(name)
        assert info.value.exit_code == 3


def test_byte_order_mark_and_windows_line_ends() -> None:
    Path("p.toml").write_bytes(b"\xef\xbb\xbf[target]\r\nmodel = 'demo'\r\n")
    assert load_profile("p.toml").target.model == "demo"


def test_line_locator_knows_all_ways_to_write_a_key() -> None:
    text = 'a.b = 1\n"c d".e = [\n  "]",\n  {f = 1},\n]\n[x."y.z"]\ng = {h = {i = 2}}\n[[t]]\nu=1'
    lines = key_lines(text)
    for path, line in {
        ("a", "b"): 1,
        ("c d", "e"): 2,
        ("c d", "e", "f"): 4,
        ("x", "y.z"): 6,
        ("x", "y.z", "g", "h", "i"): 7,
        ("t", "u"): 9,
    }.items():
        assert lines[path] == line


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(st.binary(max_size=300), st.text("[]{}=.,\"'#\n\\ ax1-", max_size=80)))
def test_garbage_never_raises_anything_else(garbage: bytes | str) -> None:
    data = garbage.encode() if isinstance(garbage, str) else garbage
    Path("g.toml").write_bytes(data)
    with contextlib.suppress(ProfileError):
        load_profile("g.toml", search=[])


_KEYS = sorted(flat(Profile().model_dump(by_alias=True)))
_VALUES = st.sampled_from(
    ["1", "-1", "1.5", "nan", "inf", "true", '""', '"auto"', "[]", "[1]", "{}", "{a=1}", "[[{}]]",
     "0x" + "F" * 20, "2024-01-01", '["auto"]', "'''\n'''"]
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(_KEYS), _VALUES)
def test_any_value_for_any_key_loads_or_is_a_problem(key: str, value: str) -> None:
    Path("k.toml").write_text(f"{key} = {value}\n")
    try:
        load_profile("k.toml", search=[])
    except ProfileError as error:
        assert error.message.startswith("k.toml")  # noqa: PT017
    try:
        apply_overrides(Profile(), {key: value})
    except UsageError as error:
        assert "command line: " in error.message  # noqa: PT017


# ------------------------------------------------------------------ names and extends


def test_lookup_order_path_profiles_user_shipped(tmp_path: Path) -> None:
    shipped = find_profile("demo")
    assert shipped is not None
    assert shipped.parent == Path(profile_module.__file__).parent.parent / "profiles"
    user = write(str(tmp_path / "home/profiles/demo.toml"), "description = 'user'")
    assert find_profile("demo") == user
    write("profiles/demo.toml", "description = 'local'")
    assert load_profile("demo").description == "local"
    assert load_profile("demo.toml").description == "local"
    write("demo", "description = 'path'")
    assert load_profile("demo").description == "path"
    assert load_profile(user).description == "user"
    assert load_profile(str(user.with_suffix(""))).description == "user"


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ProfileError, match="no profile named 'dmo'") as info:
        load_profile("dmo")
    assert "`demo`" in str(info.value.hint)


def test_find_profiles_marks_shadowed_and_broken_ones() -> None:
    write("one/a.toml", "description = 'first'\ntarget.model = 'demo'\nspec.types = ['ngram']")
    write("two/a.toml", "description = 'second'")
    write("two/b.toml", "[target]\nmodell = 1")
    first, second, broken = find_profiles(search=[Path("one"), Path("two"), Path("none")])
    assert (first.name, first.description, first.shadowed_by) == ("a", "first", None)
    assert (first.model, first.spec_types) == ("demo", ("ngram-mod",))
    assert second.shadowed_by == first.path
    assert broken.name == "b"
    assert "did you mean `model`" in str(broken.error)


def test_extends_merges_tables_and_replaces_arrays() -> None:
    write("base.toml", "description='b'\n[target]\nn_ctx=1024\ndevices=['A','B']\n"
          "[sampling]\ntop_k=5\nlogit_bias={1=1.0}\n[chat.template]\nx=1\n")  # fmt: skip
    profile = load("extends='base'\n[target]\ndevices=['C']\n[sampling]\nlogit_bias={2=2.0}\n"
                   "[chat.template]\ny=2\n")  # fmt: skip
    assert profile.target.n_ctx == 1024
    assert profile.target.devices == ("C",)
    assert profile.sampling.logit_bias == {1: 1.0, 2: 2.0}
    assert profile.chat.template == {"x": 1, "y": 2}
    assert profile.extends == "base"
    assert profile.sampling.model_fields_set == {"top_k", "logit_bias"}
    assert "memory" not in profile.model_fields_set


def test_extends_looks_beside_the_file_first_then_in_the_folders() -> None:
    write("profiles/base.toml", "description='folder'")
    write("sub/p.toml", "extends='base'")
    assert load_profile("sub/p.toml").description == "folder"
    write("sub/base.toml", "description='beside'")
    assert load_profile("sub/p.toml").description == "beside"
    write("up.toml", "description='up'")
    write("sub/q.toml", "extends='../up.toml'")
    assert load_profile("sub/q.toml").description == "up"


def test_a_profile_may_extend_its_namesake_further_on() -> None:
    write("profiles/demo.toml", "extends='demo'\nsampling.seed=3")
    profile = load_profile("demo")
    assert (profile.target.model, profile.sampling.seed) == ("demo", 3)


def test_cycles_name_the_chain() -> None:
    write("a.toml", "extends='b'")
    write("b.toml", "\nextends='a'")
    with pytest.raises(ProfileError, match=r"b\.toml:2: .*a\.toml -> b\.toml -> a\.toml"):
        load_profile("a.toml")
    with pytest.raises(ProfileError, match=r"self\.toml -> self\.toml"):
        load_profile(write("self.toml", "extends='self'"))


def test_problems_of_all_files_in_the_chain() -> None:
    write("base.toml", "\n[target]\nn_bach=1\n")
    found = problems("extends='base'\n[sampling]\ntop_q=1\n")
    assert [item.split(":")[:2] for item in found] == [["p.toml", "3"], ["base.toml", "3"]]
    (missing,) = problems("\nextends='nothing-like-it'\n")
    assert missing.startswith("p.toml:2: `extends`: there is no profile named")


def test_two_keys_that_do_not_go_together() -> None:
    write("base.toml", "[spec.ngram-mod]\nn_min=10\n[target]\nflash_attn='off'\n")
    assert load("extends='base'\nspec.ngram-mod.n_max=20").spec.ngram_mod.n_max == 20
    found = problems("extends='base'\nspec.ngram-mod.n_max=9\ntarget.type_v='q8_0'\n")
    assert "n_min 10 is greater than n_max 9" in found[0]
    assert found[1].startswith("p.toml:3: [target] type_v")


def test_relative_paths_start_at_the_file_that_has_them(tmp_path: Path) -> None:
    write("deep/base.toml", "[target]\nmodel='m.gguf'\nlora=['l.gguf:0.5','hf:o/r']\n"
          "[spec.draft-mtp]\nmodel='../d.gguf'\n[spec.ngram-cache]\nlookup_cache_static='s'\n"
          "[spec.draft]\nmodel='~/x.gguf'\n")  # fmt: skip
    profile = load("extends='deep/base.toml'\n[spec.draft-simple]\nmodel='e.gguf'")
    deep = tmp_path / "deep"
    assert profile.target.model == str(deep / "m.gguf")
    assert profile.target.lora == (f"{deep / 'l.gguf'}:0.5", "hf:o/r")
    assert profile.spec.draft_mtp.model == str(deep / "../d.gguf")
    assert profile.spec.draft_simple.model == str(tmp_path / "e.gguf")
    assert profile.spec.ngram_cache.lookup_cache_static == str(deep / "s")
    assert profile.spec.draft.model == str(Path("~/x.gguf").expanduser())


@pytest.mark.parametrize("ref", ["demo", "hf:o/r:Q4_0", "https://h/f.gguf", "ollama:x", "/a/b"])
def test_references_are_left_alone(ref: str) -> None:
    assert load(f"target.model = '{ref}'").target.model == ref


# -------------------------------------------------------------------------- overrides


def test_overrides_are_parsed_as_toml_or_text() -> None:
    changed = apply_overrides(
        load("sampling.logit_bias = {1 = 2.0}"),
        {
            "target.flash_attn": "on",
            "target.tensor_split": "3,1",
            "target.devices": "CUDA0,CUDA1",
            "target.model": "m.gguf",
            "spec.ngram-mod.n_match": "12",
            "spec.types": "ngram,mtp",
            "spec.draft": "{n_max = 4}",
            "sampling.stop": "42",
            "sampling.logit_bias.15": "-1",
            "chat.system": "2024-01-01",
            "chat.template.enable_thinking": "false",
            "memory.reserve": "2GiB",
        },
    )
    assert changed.target.flash_attn == "on"
    assert changed.target.tensor_split == (3.0, 1.0)
    assert changed.target.devices == ("CUDA0", "CUDA1")
    assert changed.target.model == "m.gguf"
    assert changed.spec.ngram_mod.n_match == 12
    assert changed.spec.types == ("ngram-mod", "draft-mtp")
    assert changed.spec.draft.n_max == 4
    assert changed.sampling.stop == ("42",)
    assert changed.sampling.logit_bias == {1: 2.0, 15: -1.0}
    assert changed.chat.system == "2024-01-01"
    assert changed.chat.template == {"enable_thinking": False}
    assert changed.memory.reserve == 2 * 2**30
    assert changed.target.model_fields_set == {"flash_attn", "tensor_split", "devices", "model"}


def test_typed_values() -> None:
    base = load("[target]\nn_ctx = 10\n[sampling]\ntop_k = 1")
    changed = apply_values(base, {"target.n_ctx": None, "sampling.stop": ["a"]})
    assert (changed.target.n_ctx, changed.sampling.stop) == (None, ("a",))
    assert changed.sampling.model_fields_set == {"top_k", "stop"}
    assert base.target.n_ctx == 10


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("target.n_gpu_layer", "3", "did you mean `n_gpu_layers`"),
        ("targt.n_ctx", "3", "did you mean `target`"),
        ("target.n_ctx", "zero", "must be"),
        ("target.n_batch", "0", "must be at least 1"),
        ("spec.types", "ngram-mdo", "did you mean `ngram-mod`"),
        ("target", "3", "must be a table"),
        ("extends", "demo", "not a key"),
        ("", "3", "not a key"),
        ("a b", "3", "not a key"),
        ("target.n_ctx.x", "3", "must be"),
        ("spec.ngram-mod.n_max", "3", "n_min 48 is greater than n_max 3"),
    ],
)
def test_wrong_overrides_are_usage_errors(key: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as info:
        apply_overrides(Profile(), {key: value}, source="--set")
    assert info.value.message.startswith("--set: ")


# --------------------------------------------------------------------------- precedence


def test_sampling_precedence() -> None:
    gguf = {"general.sampling.temp": 0.6000000238418579, "top_k": 20, "penalty_repeat": 1.1}
    profile = apply_overrides(load("sampling.top_k = 40"), {"sampling.min_p": "0.1"})
    resolved = sampling_settings(profile, gguf)
    assert resolved["temperature"] == 0.6  # the model's, as llama.cpp would read it
    assert resolved["top_k"] == 40  # the profile's, though it equals our default
    assert resolved["repeat_penalty"] == 1.1
    assert resolved["min_p"] == 0.1
    assert resolved["top_p"] == 0.95
    assert set(resolved) == set(type(profile.sampling).model_fields)


def test_unusable_model_defaults_are_passed_over() -> None:
    odd = {"temp": math.nan, "top_p": 7.0, "sequence": 3, "mirostat": 9, "top_k": math.inf}
    assert sampling_settings(Profile(), odd) == sampling_settings(Profile())


def test_draft_settings_resolve_by_type() -> None:
    spec = load("[spec]\nn_max=9\np_min=0.2\n[spec.draft]\nmodel='demo'\ntype_k='q8_0'\nn_max=5\n"
                "[spec.draft-mtp]\nn_max=2\n").spec  # fmt: skip
    simple, mtp = draft_settings(spec, "draft-simple"), draft_settings(spec, "draft-mtp")
    assert (simple.n_max, simple.p_min, simple.model, simple.type_k) == (5, 0.2, "demo", "q8_0")
    assert (mtp.n_max, mtp.p_min, mtp.type_k) == (2, 0.2, "q8_0")


def test_shipped_demo() -> None:
    demo = load_profile("demo")
    assert demo.target.model == "demo"
    assert demo.target.n_ctx == 4096
    assert demo.spec.types == ("auto",)
    assert sampling_settings(demo, {"temp": 0.8})["temperature"] == 0.0
