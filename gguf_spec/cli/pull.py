"""``gguf-spec pull``: have a model here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gguf_spec.cli.options import DebugOpt, JsonOpt, QuietOpt, examples
from gguf_spec.cli.output import Output, printable

if TYPE_CHECKING:
    from gguf_spec.hub.pull import Pulled

EPILOG = examples(
    "gguf-spec pull hf:owner/repo:Q4_K_M",
    "gguf-spec pull hf:owner/repo/path/in/repo.gguf@main",
    "gguf-spec pull https://host/model.gguf",
)

RefArg = Annotated[str, typer.Argument(metavar="REF", help="A model.", show_default=False)]


def pull(
    ref: RefArg, as_json: JsonOpt = False, quiet: QuietOpt = False, debug: DebugOpt = False
) -> None:
    """Download a model, or see that it is here and up to date. Prints the path of its file.

    An interrupted download goes on where it stopped. Models of hf: references are kept in the
    Hugging Face cache, which hf, llama.cpp and others share; HF_TOKEN, HF_ENDPOINT and HF_HOME are
    honoured.
    """
    from gguf_spec.hub.pull import pull as download
    from gguf_spec.hub.web import Web

    out = Output.of(as_json=as_json, quiet=quiet, debug=debug)
    with out.wait(f"looking for {ref}") as wait, Web(tell=out.remark) as web:
        done = download(web, ref, wait.stage)
    show(done, out)


def show(done: Pulled, out: Output) -> None:
    """Print what is here now: the path to use is the answer, the rest a remark."""
    from gguf_spec.cli.summary import bytes_text

    record = {
        "ref": done.ref,
        "path": str(done.path),
        "files": [str(path) for path in done.files],
        "bytes": done.bytes,
        "revision": done.revision,
        "fresh": done.fresh,
    }
    out.record(record, printable(str(done.path)))
    if out.mode == "human":
        at = f" at revision {done.revision[:12]}" if done.revision else ""
        how = "downloaded" if done.fresh else "already here"
        out.note(f"{how}: {bytes_text(done.bytes)}{at}")
