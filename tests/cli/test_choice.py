"""From options to a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_spec.cli.choice import make_profile, profile_name, split_draft
from gguf_spec.cli.options import SPEC_TYPES, ModelOptions
from gguf_spec.draft_choice import AVAILABLE_TYPES
from gguf_spec.profile import DRAFT_TYPES


def test_nothing_is_the_demo_profile() -> None:
    profile = make_profile(None, ModelOptions())
    assert profile == make_profile("demo", ModelOptions())
    assert profile.target.model == "demo"
    assert profile.target.n_ctx == 4096


def test_a_reference_starts_from_the_defaults() -> None:
    profile = make_profile("hf:owner/repo:Q4_K_M", ModelOptions())
    assert profile.target.model == "hf:owner/repo:Q4_K_M"
    assert profile.target.n_ctx is None
    assert profile == make_profile(None, ModelOptions(model="hf:owner/repo:Q4_K_M"))


def test_a_model_replaces_the_one_of_a_profile() -> None:
    profile = make_profile("demo", ModelOptions(model="x.gguf"))
    assert (profile.target.model, profile.target.n_ctx) == ("x.gguf", 4096)


def test_every_option_arrives() -> None:
    options = ModelOptions(
        spec_type="draft,ngram-simple", spec_draft_n_max=5, spec_draft_n_min=2,
        spec_draft_p_min=0.25, fixed=True, ctx_size="max", threads=3, threads_batch=4,
        gpu_layers="12", n_cpu_moe=6, device="none", tensor_split="3,1", temp=0.5, top_k=7,
        top_p=0.75, min_p=0.125, repeat_penalty=1.5, seed=9, stop=["a", "b"],
        system="S", think="off", draft=["x.gguf"], verify="auto",
    )  # fmt: skip
    profile = make_profile("demo", options)
    target, spec, sampling = profile.target, profile.spec, profile.sampling
    assert (target.n_ctx, target.n_threads, target.n_threads_batch) == ("max", 3, 4)
    assert (target.n_gpu_layers, target.tensor_split) == (12, (3.0, 1.0))
    assert (target.n_cpu_moe, target.devices) == (6, ("none",))
    assert sampling.repeat_penalty == 1.5
    assert spec.types == ("draft-simple", "ngram-simple")
    assert (spec.n_max, spec.n_min, spec.p_min, spec.control) == (5, 2, 0.25, False)
    assert spec.verify == "auto"
    assert spec.draft_simple.model == "x.gguf"
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 7, 0.75)
    assert (sampling.min_p, sampling.seed, sampling.stop) == (0.125, 9, ("a", "b"))
    assert (profile.chat.system, profile.chat.think) == ("S", "off")


def test_options_win_over_a_drafts_own_table(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("[spec.draft]\np_min = 0.5\n[spec.draft-simple]\nmodel = 'old.gguf'\n")
    profile = make_profile(str(file), ModelOptions(spec_draft_p_min=0.1, draft=["new.gguf"]))
    assert profile.spec.draft.p_min == 0.1
    assert profile.spec.draft_simple.model == "new.gguf"


@pytest.mark.parametrize("kind", ["draft", *DRAFT_TYPES])
def test_options_win_over_the_table_of_every_draft_type(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "p.toml"
    file.write_text(f"[spec.{kind}]\nn_max = 6\nn_min = 3\np_min = 0.5\n")
    options = ModelOptions(spec_draft_n_max=4, spec_draft_n_min=2, spec_draft_p_min=0.1)
    spec = make_profile(str(file), options).spec
    table = getattr(spec, kind.replace("-", "_"))
    assert (table.n_max, table.n_min, table.p_min) == (4, 2, 0.1)
    assert (spec.n_max, spec.n_min, spec.p_min) == (4, 2, 0.1)


@pytest.mark.parametrize(
    ("types", "draft", "expected"),
    [
        ('["auto"]', "x", ("auto",)),
        ('["none"]', "x", ("draft-simple",)),
        ('["ngram-simple"]', "x", ("ngram-simple", "draft-simple")),
        ('["draft-simple", "ngram-simple"]', "x", ("draft-simple", "ngram-simple")),
        ('["auto"]', "mtp=x", ("ngram-simple", "draft-mtp")),
    ],
)
def test_a_draft_joins_the_types_of_a_profile(
    tmp_path: Path, types: str, draft: str, expected: tuple[str, ...]
) -> None:
    file = tmp_path / "p.toml"
    file.write_text(f"[spec]\ntypes = {types}\n")
    assert make_profile(str(file), ModelOptions(draft=[draft])).spec.types == expected


def test_a_draft_does_not_join_types_that_were_chosen() -> None:
    assert make_profile(
        "demo", ModelOptions(draft=["x"], settings=['spec.types=["none"]'])
    ).spec.types == ("none",)


def test_split_draft() -> None:
    assert split_draft("a/b=c.gguf") == ("draft-simple", "a/b=c.gguf")
    assert split_draft("draft=a=b.gguf") == ("draft-simple", "a=b.gguf")
    assert split_draft("eagle3=hf:o/r") == ("draft-eagle3", "hf:o/r")
    Path("v=1").touch()
    assert split_draft("v=1") == ("draft-simple", "v=1")


def test_the_help_text_names_the_types_that_there_are() -> None:
    assert SPEC_TYPES == AVAILABLE_TYPES


def test_profile_names_keep_files_apart(tmp_path: Path) -> None:
    assert profile_name(None) == profile_name("demo") == "demo"
    assert profile_name(None, ModelOptions(model="x.gguf")) == ""
    assert profile_name("x.gguf") == profile_name("hf:owner/repo") == profile_name("nope") == ""
    for folder in ("home/profiles", "profiles", "other"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "mine.toml").touch()
    assert profile_name("home/profiles/mine.toml") == "mine"
    assert profile_name("mine") == str(tmp_path / "profiles" / "mine.toml")
    assert profile_name("other/mine.toml") == str(tmp_path / "other" / "mine.toml")
    (tmp_path / "profiles" / "mine.toml").unlink()
    assert profile_name("mine") == "mine"
    (tmp_path / "home/profiles" / "demo.toml").touch()
    assert profile_name("demo") == "demo"
