"""``python -m gguf_spec``, and the ``gguf-spec`` command.

Nothing is imported at the top that takes time: until the program can answer Ctrl-C properly, it
ends at once.
"""

import os
import sys


def main() -> None:
    """Run the command line and exit."""
    # Even in the middle of an import, where an exception would be shown as a traceback. A shell
    # starts background jobs with SIGINT ignored; `kill -INT` is to work on them as well.
    # The C half of `signal` is there already; the other half takes milliseconds.
    from _signal import SIGINT, signal  # type: ignore[import-not-found]

    signal(SIGINT, _leave)
    from gguf_spec.cli.app import main as run

    run()


def _leave(number: int, frame: object) -> None:
    """End the process as one that was interrupted, without any cleaning up."""
    for stream, text in (
        (1, '{"error": {"type": "KeyboardInterrupt", "message": "interrupted", "hint": null}}\n'),
        (2, "error: interrupted\n"),
    ):
        if stream == 2 or "--json" in sys.argv:
            try:
                os.write(stream, text.encode())
            except OSError:  # closed
                continue
    os._exit(130)


if __name__ == "__main__":
    main()
