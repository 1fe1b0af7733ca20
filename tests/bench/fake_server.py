"""Stands in for llama-server: answers with what a file says, after the times that it says.

Run as a program with llama-server's options; ``FAKE_SERVER`` names a JSON file with ``mode``,
``answers`` (prompt ids joined with spaces -> ids), ``props`` and ``meta``. ``raw`` has texts that
are sent as they are, by path; ``lasts`` is the number of completions after which it ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = json.loads(Path(os.environ["FAKE_SERVER"]).read_text())


class Handler(BaseHTTPRequestHandler):
    """/health, /props, /v1/models, /completion, /slots. Logs what is posted, and by which process
    it was read."""

    def do_GET(self) -> None:
        if self.path in SETTINGS.get("raw", {}):
            self._send(200, SETTINGS["raw"][self.path])
        elif self.path == "/health":
            self._send(503 if SETTINGS["mode"] == "loading" else 200, {"status": "ok"})
        elif self.path == "/props":
            path = sys.argv[sys.argv.index("-m") + 1]
            self._send(200, {"model_path": path, "build_info": "b1-fake"} | SETTINGS["props"])
        elif self.path == "/v1/models" and SETTINGS["meta"] is not None:
            self._send(200, {"data": [{"meta": SETTINGS["meta"]}]})
        else:
            self._send(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with Path(SETTINGS["log"]).open("a") as file:
            file.write(json.dumps(body | {"pid": os.getpid()}) + "\n")
        if "lasts" in SETTINGS:
            SETTINGS["lasts"] -= 1
            if SETTINGS["lasts"] < 0:
                os._exit(9)
        if self.path in SETTINGS.get("raw", {}):
            self._send(200, SETTINGS["raw"][self.path])
            return
        if self.path.startswith("/slots"):
            self._send(200, {"id_slot": 0})
            return
        if SETTINGS["mode"] == "nonsense":
            self._send(200, {"content": "hello"})
            return
        key = " ".join(str(token) for token in body["prompt"])
        tokens = SETTINGS["answers"][key]
        tokens = tokens[: body["n_predict"]] if body["n_predict"] > 0 else tokens
        timings = {"prompt_ms": 50.0, "predicted_ms": 10.0 * (len(tokens) - 1)}
        timings["prompt_n"] = len(body["prompt"])
        timings |= {"draft_n": 10, "draft_n_accepted": 7}
        self._send(200, {"tokens": tokens, "timings": timings})

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Nothing."""

    def _send(self, code: int, document: dict[str, Any] | str) -> None:
        data = (document if isinstance(document, str) else json.dumps(document)).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    """Serve, or fail as told."""
    if "--version" in sys.argv:
        print("version: 1 (fake)", file=sys.stderr)
        return
    if SETTINGS["mode"] == "die":
        print("loading\nerror: failed to load the model\nbye", file=sys.stderr)
        sys.exit(7)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = HTTPServer(("127.0.0.1", port), Handler)
    if SETTINGS["mode"] == "slow":
        time.sleep(60)
    server.serve_forever()


if __name__ == "__main__":
    main()
