"""Commands of a chat that reach beyond its messages: files, profiles, drafting, reasoning."""

from __future__ import annotations

import os
from pathlib import Path

from gguf_spec.cli.answer import warn_about_thinking
from gguf_spec.cli.chat_file import SavedChat, load_chat, save_chat
from gguf_spec.cli.choice import is_utf8, profile_name
from gguf_spec.cli.output import visible
from gguf_spec.cli.status import why_not
from gguf_spec.cli.turns import Turns
from gguf_spec.errors import GgufSpecError, InputError, UsageError
from gguf_spec.profile import (
    Profile,
    apply_values,
    find_profiles,
    load_profile,
    parse_spec_types,
)


def reload(turns: Turns, profile: Profile, name: str = "") -> None:
    """Load ``profile`` in place of what is loaded; the conversation goes on.

    Raises:
        GgufSpecError: it does not load; the chat goes on with what was loaded before.
    """
    turns.loaded.reload(profile, name)
    turns.profile = profile
    turns.predicted = ()
    warn_about_thinking(turns.session, profile, turns.out)


def spec(turns: Turns, rest: str) -> None:
    """``/spec [TYPE|off|auto]``: off and on again at once, other types by loading again."""
    session, say = turns.session, turns.out.say
    loaded = ", ".join(session.spec_types) or "none"
    if not rest:
        state = "" if session.drafting else " (off)"
        say(f"drafting: {loaded}{state}")
        if session.spec_types and session.drafting:
            say(f"last: {why_not(session)}" if not session.sequence.stack.draft.tokens else "")
        return
    if rest in ("off", "none"):
        session.drafting = False
        say("(drafting is off; /spec on turns it on again)")
        return
    if rest == "on":
        session.drafting = True
        say(f"(drafting: {loaded})")
        return
    types = parse_spec_types(rest)
    if types == turns.profile.spec.types and session.spec_types:
        session.drafting = True
        say(f"(drafting: {loaded})")
        return
    changed = apply_values(turns.profile, {"spec.types": list(types)})
    say(f"(loading the model again, to draft with {', '.join(types)})")
    reload(turns, changed)
    say(f"(drafting: {', '.join(turns.session.spec_types) or 'none'})")


def use_profile(turns: Turns, rest: str) -> None:
    """``/profile [NAME]``: another profile, or a list of them."""
    say = turns.out.say
    if not rest:
        for found in find_profiles():
            say(f"{found.name}  {found.path}")
        return
    profile = load_profile(rest)
    say(f"(loading {rest}; the conversation goes on with it)")
    had_own = turns.system != turns.profile.chat.system
    reload(turns, profile, profile_name(rest))
    if not had_own:
        turns.system = profile.chat.system


def think(turns: Turns, rest: str) -> None:
    """``/think``: whether to reason, how long, and what of it is shown."""
    say, chat, screen = turns.out.say, turns.profile.chat, turns.screen
    if not rest:
        limit = "no limit" if chat.think_budget < 0 else f"at most {chat.think_budget} tokens"
        say(f"reasoning: {chat.think}, {limit}")
        return
    if rest == "show":
        text = _last_reasoning(turns)
        if not text:
            say("there is no reasoning to show")
        elif screen is not None:
            screen.show_reasoning(text)
        else:
            say(visible(text))
        return
    if rest in ("expand", "fold"):
        if screen is not None:
            screen.expanded = rest == "expand"
        say("(reasoning is shown whole)" if rest == "expand" else "(reasoning is folded)")
        return
    if rest in ("on", "off", "auto"):
        key, value = "chat.think", rest
    elif rest.removeprefix("-").isdecimal() and rest.isascii():
        key, value = "chat.think_budget", rest
    else:
        raise UsageError(f"/think {rest}: neither on, off, auto, a number, show, expand nor fold")
    number = int(value) if key.endswith("budget") else value
    turns.profile = apply_values(turns.profile, {key: number}, "/think")
    say(f"({'reasoning' if key == 'chat.think' else 'most tokens of reasoning'}: {value})")
    warn_about_thinking(turns.session, turns.profile, turns.out)


def _last_reasoning(turns: Turns) -> str:
    return next((m["reasoning_content"] for m in reversed(turns.messages)
                 if "reasoning_content" in m), "")  # fmt: skip


def color(turns: Turns, rest: str) -> None:
    """``/color [on|off]``: accepted draft tokens in a colour of their own."""
    screen, say = turns.screen, turns.out.say
    if screen is None:
        say("there are no colours here: the output is no terminal, or NO_COLOR is set")
        return
    if rest not in ("", "on", "off"):
        raise UsageError(f"/color {rest}: neither on nor off")
    if rest:
        screen.colored = rest == "on"
    how = "are green, markdown is not rendered" if screen.colored else "have no colour"
    say(f"(tokens of accepted drafts {how})")


def save(turns: Turns, rest: str) -> None:
    """``/save [--state] FILE``."""
    words = rest.split()
    with_state = "--state" in (*words[:1], *words[-1:])
    if with_state:
        option_first = words[0] == "--state"
        rest = (rest.removeprefix if option_first else rest.removesuffix)("--state").strip()
    path = _path(rest, "/save")
    if path.exists():
        try:
            load_chat(path)
        except InputError:
            raise InputError(
                f"{path} exists and is no conversation", hint="choose another name"
            ) from None
    setup = turns.session.setup
    chat = SavedChat(turns.system, turns.messages, setup.ref)
    more = {"arch": setup.target.arch, "quant": setup.target.quant}
    save_chat(path, chat, more)
    turns.out.say(f"(saved {len(turns.messages) // 2} messages with their answers to {path})")
    if with_state:
        from gguf_spec.session_state import save_state

        n = save_state(turns.session, _state_path(path))
        turns.out.say(f"(and the cache of {n} tokens to {_state_path(path)})")


def load(turns: Turns, rest: str) -> None:
    """``/load FILE``: in place of the conversation; the cache, too, where it was saved."""
    path = _path(rest, "/load")
    chat = load_chat(path)
    turns.messages, turns.system = chat.messages, chat.system
    say = turns.out.say
    say(f"(loaded {len(chat.messages) // 2} messages with their answers)")
    ref = turns.session.setup.ref
    if chat.model and chat.model != ref:
        say(f"(they were written with {visible(chat.model)}; this is {ref})")
    state = _state_path(path)
    if not state.exists():
        return
    from gguf_spec.session_state import load_state

    try:
        say(f"(the cache has their {load_state(turns.session, state)} tokens)")
    except GgufSpecError as error:
        say(f"warning: the cache was not loaded: {error.message}")


def _state_path(path: Path) -> Path:
    return path.with_name(path.name + ".state")


def _path(name: str, command: str) -> Path:
    if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
        name = name[1:-1]
    if not name:
        raise UsageError(f"{command} needs a FILE")
    if not is_utf8(name) or "\0" in name:
        raise UsageError(f"{command}: {name!r} is no name of a file")
    return Path(os.path.expanduser(name))
