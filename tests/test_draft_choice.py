"""Which types draft from which files: what is asked for, the target's own head, and siblings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gguf_spec.cli.choice import make_profile
from gguf_spec.cli.options import ModelOptions
from gguf_spec.errors import PairError, RefError, UsageError
from gguf_spec.generation import Generation
from gguf_spec.profile import Profile
from gguf_spec.session import Session
from gguf_spec.setup import Setup, prepare

MODELS = Path(__file__).parent / "models"


def put(folder: Path, **files: str) -> Path:
    """Copies of tiny models under other names; returns the target among them."""
    for name, model in files.items():
        shutil.copy(MODELS / f"tiny-{model}.gguf", folder / f"{name.replace('_', '-')}.gguf")
    return folder / "tiny.gguf"


def setup(model: Path, **spec: object) -> Setup:
    target = {"model": str(model), "n_ctx": 256, "n_threads": 1}
    return prepare(
        Profile.model_validate({"target": target, "spec": spec, "sampling": {"temperature": 0}})
    )


def answer(session: Session) -> Generation:
    prompt = session.raw_prompt("def read(self):\n    return self.file.read()\n\ndef write(")
    generation = session.generate(prompt, session.params(max_tokens=24))
    for _ in generation:
        pass
    return generation


def test_auto_takes_the_kind_that_llama_cpp_prefers(tmp_path: Path) -> None:
    target = put(tmp_path, tiny="target", eagle3_tiny="eagle3")
    for name, model, kind in (
        ("eagle3-tiny", "eagle3", "draft-eagle3"),
        ("dflash-tiny", "dflash", "draft-dflash"),
        ("dspark-tiny", "dspark", "draft-dspark"),
    ):
        put(tmp_path, **{name: model})
        made = setup(target)
        assert made.spec_types == ("ngram-simple", kind)
        assert made.siblings == (kind,)
        assert made.drafts[0].ref == str(tmp_path / f"{name}.gguf")
        assert made.remarks == (f"drafting with {name}.gguf beside the model ({kind})",)
        assert made.warnings == ()


def test_a_name_that_lies_does_not_change_the_order(tmp_path: Path) -> None:
    target = put(tmp_path, tiny="target", mtp_tiny="eagle3", eagle3_tiny="dspark")
    assert setup(target).spec_types == ("ngram-simple", "draft-dspark")


def test_what_is_named_or_inside_comes_before_a_sibling(tmp_path: Path) -> None:
    target = put(tmp_path, tiny="target", eagle3_tiny="eagle3", small="draft")
    named = setup(target, draft={"model": str(tmp_path / "small.gguf")})
    assert (named.spec_types, named.siblings) == (("ngram-simple", "draft-simple"), ())
    own = put(tmp_path, tiny="mtp")
    assert setup(own).spec_types == ("ngram-simple", "draft-mtp")
    assert setup(own).siblings == ()
    assert setup(own).drafts[0].inside


@pytest.mark.parametrize("types", [["none"], ["ngram-mod"], ["ngram-simple", "draft-simple"]])
def test_nothing_is_looked_for_where_no_head_is_asked_for(
    types: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked(target: object) -> None:
        raise AssertionError("the folder was searched")

    monkeypatch.setattr("gguf_spec.draft_choice.search", looked)
    target = put(tmp_path, tiny="target", small="draft")
    setup(target, types=types, draft={"model": str(tmp_path / "small.gguf")})


def test_auto_leaves_the_heads_of_other_models_alone(tmp_path: Path) -> None:
    target = put(tmp_path, tiny="target", other="target", eagle3_other="eagle3")
    assert setup(target).spec_types == ("ngram-simple",)
    asked = setup(target, types=["draft-eagle3"])
    assert asked.siblings == ("draft-eagle3",)


def test_types_that_are_asked_for_find_their_files(tmp_path: Path) -> None:
    target = put(tmp_path, tiny="target", eagle3_tiny="eagle3", dflash_tiny="dflash")
    made = setup(target, types=["ngram-mod", "draft-dflash", "draft-eagle3"])
    assert made.spec_types == ("ngram-mod", "draft-dflash", "draft-eagle3")
    assert made.siblings == ("draft-dflash", "draft-eagle3")
    # beside a file that was named without its type
    named = {"draft-simple": {"model": str(tmp_path / "eagle3-tiny.gguf")}}
    made = setup(target, types=["draft-simple", "draft-dflash"], **named)
    assert made.spec_types == ("draft-eagle3", "draft-dflash")
    assert made.siblings == ("draft-dflash",)


def test_settings_that_rule_a_file_out(tmp_path: Path) -> None:
    target = put(tmp_path, tiny="target", dflash_tiny="dflash", eagle3_tiny="eagle3")
    quantized = {"draft": {"type_k": "q8_0"}}
    assert setup(target, **quantized).spec_types == ("ngram-simple", "draft-eagle3")
    with pytest.raises(PairError, match="draft-dflash does not work with type_k q8_0"):
        setup(target, types=["draft-dflash"], **quantized)


def test_why_no_file_is_used_is_said_where_the_type_was_asked_for(tmp_path: Path) -> None:
    target = put(tmp_path, tiny="target", dspark_tiny="othervocab-draft", mtp_tiny="eagle3")
    (tmp_path / "dspark-b.gguf").write_bytes(b"nothing")
    assert setup(target).spec_types == ("ngram-simple", "draft-eagle3")
    with pytest.raises(PairError) as caught:
        setup(target, types=["draft-dspark"])
    message = caught.value.message
    assert "dspark-tiny.gguf: tiny-othervocab-draft is a whole model" in message
    assert "dspark-b.gguf: is not a GGUF file" in message
    assert "1 named for other types" in message
    assert "dspark- in its name" in str(caught.value.hint)
    with pytest.raises(PairError, match=r"has no MTP head; beside the model: mtp-tiny\.gguf: it is "
                       "for draft-eagle3") as caught:  # fmt: skip
        setup(target, types=["draft-mtp"])
    assert "qwen3 models can have, with a file (-d/--draft REF): draft-simple, draft-eagle3" in str(
        caught.value.hint
    )
    alone = tmp_path / "alone" / "here"
    alone.mkdir(parents=True)
    with pytest.raises(UsageError, match="draft-eagle3 needs a draft model"):
        setup(put(alone, tiny="target"), types=["draft-eagle3"])


def test_a_named_file_that_is_not_here_says_how_to_go_on(tmp_path: Path) -> None:
    target = put(tmp_path, tiny="target")
    with pytest.raises(RefError, match="draft-eagle3: no such file") as caught:
        setup(target, types=["draft-eagle3"], **{"draft-eagle3": {"model": "/gone/head.gguf"}})
    assert "-d draft-eagle3=FILE" in str(caught.value.hint)
    # A file that is named on the command line, without its type, replaces that of the profile.
    given = {"draft-simple": {"model": str(MODELS / "tiny-eagle3.gguf")}}
    made = setup(
        target,
        types=["draft-eagle3", "draft-simple"],
        **{"draft-eagle3": {"model": "/gone/head.gguf"}},
        **given,
    )
    assert made.spec_types == ("draft-eagle3",)
    assert made.drafts[0].ref == str(MODELS / "tiny-eagle3.gguf")


def test_a_sibling_drafts_and_the_report_says_where_it_is(tmp_path: Path) -> None:
    target = put(tmp_path, tiny="target", eagle3_tiny="eagle3")
    with Session(setup(target)) as session:
        report = answer(session).report()["spec"]
    assert report["drafts"] == [
        {
            "type": "draft-eagle3",
            "ref": str(tmp_path / "eagle3-tiny.gguf"),
            "origin": "sibling",
        }
    ]
    assert report["by_type"]["draft-eagle3"]["num_accepted_tokens"] > 0
    with Session(setup(MODELS / "tiny-mtp.gguf")) as session:
        assert answer(session).report()["spec"]["drafts"] == [
            {"type": "draft-mtp", "ref": None, "origin": "inside"}
        ]


def test_a_sibling_that_does_not_load_costs_the_target_nothing(tmp_path: Path) -> None:
    target = put(tmp_path, tiny="target", eagle3_tiny="eagle3")
    made, asked = setup(target), setup(target, types=["draft-eagle3"])
    (tmp_path / "alone").mkdir()
    plain = setup(put(tmp_path / "alone", tiny="target"))
    (tmp_path / "eagle3-tiny.gguf").write_bytes(b"GGUF and then nothing")  # between look and load
    with Session(made) as session, Session(plain) as alone:
        assert session.spec_types == ("ngram-simple",)
        assert "no draft-eagle3: " in session.warnings[0]
        assert "eagle3-tiny.gguf" in session.warnings[0]
        assert session.setup.max_width == plain.max_width
        assert session.setup.layers == ()
        assert answer(session).report()["spec"]["drafts"] == []
        assert answer(session).tokens == answer(alone).tokens
    with pytest.raises(Exception, match="eagle3-tiny"):
        Session(asked)


@pytest.mark.parametrize("kind", ["draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark"])
@pytest.mark.parametrize("typed", [False, True])
def test_a_draft_of_the_command_line_wins_over_every_table_of_a_profile(
    kind: str, typed: bool, tmp_path: Path
) -> None:
    short = kind.removeprefix("draft-").replace("simple", "draft")
    target = put(tmp_path, tiny="target", old=short, new=short)
    new = str(tmp_path / "new.gguf")
    draft = f"{kind}={new}" if typed else new
    for table in {"draft", "draft-simple", kind}:
        for old in ("old.gguf", "missing.gguf") if table == kind or not typed else ("old.gguf",):
            file = tmp_path / "p.toml"
            file.write_text(
                f"[target]\nmodel = 'tiny.gguf'\nn_ctx = 256\n[spec.{table}]\nmodel = '{old}'\n"
            )
            made = prepare(make_profile(str(file), ModelOptions(draft=[draft], model=str(target))))
            assert [(d.spec_type, d.ref) for d in made.drafts] == [(kind, new)], (table, old)
            assert made.warnings == ()
