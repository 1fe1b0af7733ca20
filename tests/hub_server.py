"""A Hub and its store on loopback: the tree, resolve, LFS and Xet answers of huggingface.co.

Two servers on two ports are two hosts: the Hub, which redirects, and the store, which sends. Both
write down what they are asked. ``Faults`` make them break their word.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Asked:
    """A request: where, what, and its headers by small names."""

    host: str
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Faults:
    """What goes wrong. Numbers are bytes; None or False: nothing."""

    status: int | None = None  # of everything the Hub answers
    error_code: str | None = None
    answer_headers: dict[str, str] = field(default_factory=dict)
    times: int = 10**9  # how often ``status`` is answered before things are well again
    ignore_ranges: bool = False
    close_after: int | None = None  # of the bytes of each answer
    end_at: int | None = None  # of the file: no answer goes beyond
    wrong_total: int | None = None
    shift: int = 0  # ranges begin so much later than was asked for
    page: bool = False
    loop: bool = False
    expired: int = 0  # links that the store refuses
    single_use: bool = False  # a link is refused when it is followed again
    other_content: bytes | None = None  # sent instead, under the promised names
    new_etag: str | None = None
    compressed: bool = False


class HubServer:
    """A Hub with repositories, and a store."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.small: set[str] = set()  # paths that git keeps itself, without LFS
        self.plain: dict[str, bytes] = {}  # files at plain addresses of the store
        self.commit = COMMIT
        self.asked: list[Asked] = []
        self.faults = Faults()
        self.latency = 0.0
        self.page_size = 1000
        self.sent = 0
        self.used: set[str] = set()  # links that were followed
        self.require_token: str | None = None
        self.throttle: float = 0.0  # seconds between blocks of 64 KiB
        self.lock = threading.Lock()
        self.hub = _serve(self, "hub")
        self.store = _serve(self, "store")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.hub.server_port}"

    @property
    def store_url(self) -> str:
        return f"http://127.0.0.1:{self.store.server_port}"

    def close(self) -> None:
        for server in (self.hub, self.store):
            server.shutdown()
            server.server_close()

    def of(self, host: str) -> list[Asked]:
        return [one for one in self.asked if one.host == host]


@functools.lru_cache(maxsize=256)
def oid(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@functools.lru_cache(maxsize=256)
def blob_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _serve(owner: HubServer, host: str) -> ThreadingHTTPServer:
    class Handler(_Handler):
        pass

    Handler.owner, Handler.host = owner, host
    server = _Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what is tested."""


class _Handler(BaseHTTPRequestHandler):
    owner: HubServer
    host: str
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        with self.owner.lock:
            self.owner.asked.append(Asked(self.host, self.command, self.path, headers))
        if self.owner.latency:
            time.sleep(self.owner.latency)
        try:
            self._hub() if self.host == "hub" else self._store()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, document: Any, **headers: str) -> None:
        self._answer(200, json.dumps(document).encode(), Content_Type="application/json", **headers)

    def _hub(self) -> None:
        owner, faults = self.owner, self.owner.faults
        if faults.status is not None and faults.times > 0:
            faults.times -= 1
            extra = {key.replace("-", "_"): value for key, value in faults.answer_headers.items()}
            if faults.error_code:
                extra["X_Error_Code"] = faults.error_code
            return self._answer(faults.status, **extra)
        token = owner.require_token
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            return self._answer(401, X_Error_Code="RepoNotFound")
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
            return self._api(found[1], found[2], found[3], parse_qs(parts.query))
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(found[1], found[2], found[3])
        return self._answer(404)

    def _api(self, repo: str, what: str, revision: str, query: dict[str, list[str]]) -> None:
        owner = self.owner
        if repo not in owner.repos:
            return self._answer(404, X_Error_Code="RepoNotFound")
        if revision not in ("main", owner.commit):
            return self._answer(404, X_Error_Code="RevisionNotFound")
        files = owner.repos[repo]
        if what == "revision":
            return self._json({"id": repo, "sha": owner.commit, "siblings": []})
        rows: list[dict[str, Any]] = [{"type": "directory", "path": "sub", "oid": "0" * 40}]
        for path, data in sorted(files.items()):
            row = {"type": "file", "path": path, "size": len(data), "oid": blob_oid(data)}
            if path not in owner.small:
                row["lfs"] = {"oid": oid(data), "size": len(data), "pointerSize": 134}
                row["xetHash"] = oid(data)[::-1]
            rows.append(row)
        start = int(query.get("cursor", ["0"])[0])
        page = rows[start : start + owner.page_size]
        after = start + owner.page_size
        link = {}
        if after < len(rows):
            link["Link"] = f'<{owner.url}{urlsplit(self.path).path}?cursor={after}>; rel="next"'
        return self._json(page, **link)

    def _resolve(self, repo: str, revision: str, path: str) -> None:
        owner, faults = self.owner, self.owner.faults
        if repo not in owner.repos:
            return self._answer(404, X_Error_Code="RepoNotFound")
        data = owner.repos[repo].get(path)
        if data is None or revision not in ("main", owner.commit):
            return self._answer(404, X_Error_Code="EntryNotFound")
        if faults.loop:
            return self._answer(302, Location=self.path)
        if path in owner.small:
            return self._send(data, ETag=f'"{blob_oid(data)}"', X_Repo_Commit=owner.commit)
        digest = faults.new_etag or oid(data)
        return self._answer(
            302,
            Location=f"{owner.store_url}/{oid(data)}?repo={repo}&signature=secret{len(owner.asked)}",
            X_Linked_Etag=f'"{digest}"',
            X_Linked_Size=str(len(data)),
            X_Repo_Commit=owner.commit,
            X_Xet_Hash=oid(data)[::-1],
            ETag='"of-the-redirect"',
        )

    def _store(self) -> None:
        owner, faults = self.owner, self.owner.faults
        if faults.expired > 0:
            faults.expired -= 1
            return self._answer(403, b"<Error>expired</Error>", Content_Type="application/xml")
        if faults.single_use and self.path in owner.used:
            return self._answer(403, b"<Error>used</Error>", Content_Type="application/xml")
        owner.used.add(self.path)
        name = unquote(urlsplit(self.path).path).lstrip("/")
        if name in owner.plain:
            data = owner.plain[name]
            return self._send(data, ETag=faults.new_etag or f'"{oid(data)[:20]}"')
        every = (data for files in owner.repos.values() for data in files.values())
        data = next((data for data in every if oid(data) == name), None)
        if data is None:
            return self._answer(404)
        return self._send(data, ETag=f'"{oid(data)[:20]}"')

    def _send(self, data: bytes, **headers: str) -> None:
        owner, faults = self.owner, self.owner.faults
        if faults.page:
            page = b"<!DOCTYPE html><title>Sign in</title>"
            return self._answer(200, page, Content_Type="text/html; charset=utf-8")
        if faults.other_content is not None:
            data = faults.other_content
        if faults.compressed:
            headers["Content_Encoding"] = "gzip"
        total = len(data) if faults.wrong_total is None else faults.wrong_total
        start, end, status = 0, len(data), 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        if condition is not None and condition != headers.get("ETag"):
            asked = None
        if asked and not faults.ignore_ranges:
            start = int(asked[1]) + faults.shift
            end = min(int(asked[2]) + 1, len(data)) if asked[2] else len(data)
            if start >= len(data):
                return self._answer(416, Content_Range=f"bytes */{total}")
            status = 206
            headers["Content_Range"] = f"bytes {start}-{end - 1}/{total}"
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Accept-Ranges", "bytes")
        length = end - start if status == 206 or faults.wrong_total is None else total
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command == "HEAD":
            return None
        stop = end
        if faults.close_after is not None:
            stop = min(stop, start + faults.close_after)
        if faults.end_at is not None:
            stop = min(stop, max(faults.end_at, start))
        for at in range(start, stop, 65536):
            block = data[at : min(at + 65536, stop)]
            self.wfile.write(block)
            with owner.lock:
                owner.sent += len(block)
            if owner.throttle:
                time.sleep(owner.throttle)
        if stop - start < length:
            self.close_connection = True
        return None


@contextmanager
def hub_server() -> Iterator[HubServer]:
    server = HubServer()
    try:
        yield server
    finally:
        server.close()
