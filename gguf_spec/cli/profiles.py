"""``gguf-spec profiles``: list, show, check and write profiles."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gguf_spec.cli.options import DebugOpt, JsonOpt, examples
from gguf_spec.cli.output import Output, printable
from gguf_spec.errors import ProfileError

if TYPE_CHECKING:
    from gguf_spec.profile import FoundProfile

app = typer.Typer(
    rich_markup_mode=None,
    epilog=examples(
        "gguf-spec profiles list",
        "gguf-spec profiles show demo",
        "gguf-spec profiles new mine --model model.gguf",
        "gguf-spec profiles check mine.toml",
        "gguf-spec profiles schema > profile.schema.json",
    ),
)
NameArg = Annotated[
    str, typer.Argument(metavar="PROFILE", help="Name or .toml file.", show_default=False)
]


@app.callback(invoke_without_command=True)
def _profiles(ctx: typer.Context) -> None:
    """List, show, check and write profiles: TOML files that say what to run, and how.

    A name is looked up in ./profiles, in your own folder, and among those that came with the
    program, in this order.
    """
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


@app.command("list", epilog=examples("gguf-spec profiles list --json"))
def list_profiles(as_json: JsonOpt = False, debug: DebugOpt = False) -> None:
    """List all profiles that can be named."""
    from gguf_spec.profile import find_profiles

    found = find_profiles()
    out = Output.of(as_json=as_json, debug=debug)
    width = max((len(item.name) for item in found), default=0)
    lines = [printable(f"{item.name:<{width}}  {_described(item)}") for item in found]
    out.record({"profiles": [_record(item) for item in found]}, "\n".join(lines) or "none")


@app.command(epilog=examples("gguf-spec profiles show demo", "gguf-spec profiles show demo --json"))
def show(name: NameArg, as_json: JsonOpt = False, debug: DebugOpt = False) -> None:
    """Show a profile with all that it extends, as one file.

    Keys that nobody has set stand in comments, with their defaults. JSON has all keys.
    """
    from gguf_spec.cli.toml import finite, to_toml
    from gguf_spec.profile import load_profile

    profile = load_profile(name)
    written = profile.model_dump(mode="python", by_alias=True, exclude_unset=True)
    everything = profile.model_dump(mode="python", by_alias=True)
    Output.of(as_json=as_json, debug=debug).record(finite(everything), to_toml(written, everything))


@app.command(epilog=examples("gguf-spec profiles check", "gguf-spec profiles check mine.toml demo"))
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROFILE", help="Names or .toml files; none: all.", show_default=False
        ),
    ] = None,
    as_json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Check profiles and name every problem. Exit code 3 if there is one."""
    from gguf_spec.profile import find_profile, find_profiles, load_profile

    checked: list[str] = []
    problems: list[str] = []
    for name in names or [str(item.path) for item in find_profiles()]:
        try:
            load_profile(name)
        except ProfileError as error:
            if len(names or ()) == 1:
                raise
            problems += error.problems or (error.message,)
        else:
            checked.append(str(find_profile(name)))
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        listing = "\n".join(f"  {problem}" for problem in problems)
        raise ProfileError(f"{count}\n{listing}", problems=tuple(problems))
    Output.of(as_json=as_json, debug=debug).record(
        {"ok": True, "checked": checked}, "\n".join(f"{path}: ok" for path in checked)
    )


@app.command(
    epilog=examples("gguf-spec profiles path", '"$EDITOR" "$(gguf-spec profiles path demo)"')
)
def path(
    name: Annotated[
        str | None, typer.Argument(metavar="PROFILE", help="Name.", show_default=False)
    ] = None,
    as_json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Print the file of a profile, or without a name the folders that are searched."""
    from gguf_spec.profile import find_profile, load_profile, profile_folders

    out = Output.of(as_json=as_json, debug=debug)
    if name is None:
        folders = list(dict.fromkeys(str(folder.absolute()) for folder in profile_folders()))
        out.record({"folders": folders}, "\n".join(folders))
        return
    found = find_profile(name)
    if found is None:
        load_profile(name)  # says what is wrong, and which names there are
        raise ProfileError(f"there is no profile named {name!r}")
    out.record({"path": str(found.absolute())}, str(found.absolute()))


@app.command(
    epilog=examples(
        "gguf-spec profiles new mine --model model.gguf",
        "gguf-spec profiles new ./mine.toml --model hf:owner/repo:Q4_K_M --draft hf:owner/small",
    )
)
def new(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A name, for a file in your own folder; or a path that ends in .toml.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option("-m", "--model", metavar="REF", help="Target model; without it: demo."),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option("-d", "--draft", metavar="[TYPE=]REF", help="Draft model for the target."),
    ] = None,
    force: Annotated[
        bool, typer.Option("-f", "--force", help="Overwrite a file that is there.")
    ] = False,
    as_json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Write a commented profile for this machine, and print where it is.

    It extends the shipped settings for this class of memory (base-8gb … base-48gb, base-mac,
    base-cpu). Models that are named are looked at first, and planned: they have to be here, to fit
    each other, and the target has to fit into memory. Their weights are not loaded.
    """
    from gguf_spec.cli.new_profile import (
        Machine,
        exists_error,
        look_at,
        new_path,
        profile_text,
        settled,
        wanted,
        write_profile,
    )

    out = Output.of(as_json=as_json, debug=debug)
    file = new_path(name)
    if not force and os.path.lexists(file):
        raise exists_error(file)
    machine = Machine.here()
    profile, setup, why = wanted(model, draft, machine.base), None, ""
    if model is not None or draft is not None:
        setup = look_at(profile, out)
        profile, setup, why = settled(profile, setup, chosen=draft is not None)
    write_profile(file, profile_text(name, profile, setup, machine, why), force=force)
    if setup is not None:
        they = "both models are here, fit each other" if draft else "the model is here"
        out.say(f"{they} and can be loaded")
    _say_what_name_means(name, file, out)
    record = {
        "name": file.stem,
        "path": str(file.absolute()),
        "model": profile.target.model,
        "spec_types": list(profile.spec.types),
    }
    out.record(record, str(file.absolute()))
    out.note(f"next: gguf-spec chat {name}")


def _say_what_name_means(name: str, file: Path, out: Output) -> None:
    """Warn where the new file is not the only one of its name."""
    from gguf_spec.profile import find_profile
    from gguf_spec.profile_find import shipped_folder

    found = find_profile(name)
    if found is not None and found.resolve() != file.resolve():
        out.warning(f"here `{name}` means {found}, which is found before {file}")
    elif (shipped_folder() / f"{name}.toml").is_file():
        out.warning(f"`{name}` now means this file, no longer the profile that came along")


@app.command(epilog=examples("gguf-spec profiles forget mine"))
def forget(
    where: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE",
            help='Name or .toml file; or the model reference that was run with pool = "profile".',
            show_default=False,
        ),
    ],
    as_json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Delete the texts that a profile keeps for later drafts (pool = "profile")."""
    from gguf_spec.cli import pools
    from gguf_spec.cli.summary import counted

    record = pools.forget(where)
    lines = []
    for item in record["deleted"]:
        kept = "it was damaged"
        if item["texts"] is not None:
            kept = f"{counted(item['texts'], 'text')}, {counted(item['tokens'], 'token')}"
        lines.append(printable(f"deleted {item['path']} ({kept})"))
    nothing = printable(f"nothing is kept for {record['profile']}")
    Output.of(as_json=as_json, debug=debug).record(record, "\n".join(lines) or nothing)


@app.command(epilog=examples("gguf-spec profiles schema > profile.schema.json"))
def schema(as_json: JsonOpt = False, debug: DebugOpt = False) -> None:
    """Print the JSON Schema of a profile, for editors."""
    from gguf_spec.profile import json_schema

    document = json_schema()
    out = Output.of(as_json=as_json, debug=debug)
    out.record(document, json.dumps(document, indent=2, ensure_ascii=False))


def _record(item: FoundProfile) -> dict[str, Any]:
    return {
        "name": item.name,
        "path": str(item.path.absolute()),
        "description": item.description,
        "model": item.model,
        "spec_types": list(item.spec_types),
        "shadowed_by": str(item.shadowed_by.absolute()) if item.shadowed_by else None,
        "error": item.error,
    }


def _described(item: FoundProfile) -> str:
    if item.error is not None:
        return f"cannot be used: {item.error.splitlines()[0]}"
    hidden = f" (hidden by {item.shadowed_by})" if item.shadowed_by else ""
    return (item.description or item.model or str(item.path)) + hidden
