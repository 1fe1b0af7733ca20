"""One way to ask a host for bytes: streamed, redirects followed by hand, every refusal told apart.

Redirects are followed here and not by the client, because two things hang on them: a token is for
the host that the user named, never for the one that it points to, and the first answer of a Hub
says what the last one may not know (``X-Linked-Etag``, ``X-Linked-Size``, ``X-Repo-Commit``).
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from gguf_spec import __version__
from gguf_spec.errors import HubError

if TYPE_CHECKING:
    import httpx

DEFAULT_ENDPOINT = "https://huggingface.co"
MAX_REDIRECTS = 8
MAX_JSON = 64 * 1024 * 1024  # bytes of an answer that is no file
MAX_WAIT = 300.0  # seconds that a host may ask for: the Hub counts requests in windows of so long
RETRIES = 3  # of a request that a host was too busy for
TIMEOUTS = {"connect": 10.0, "read": 10.0, "write": 30.0, "pool": 60.0}  # seconds
HURRY = 3.0  # seconds for an answer that is nice to have
INSTALL = "pip install 'gguf-spec[hub]'"
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, its body not read yet. Names of headers are in small letters.

    ``first`` are the headers of the host that was asked, ``headers`` those of the one that sends.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    first: Mapping[str, str]
    chunks: Iterator[bytes] = field(repr=False)

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def length(self) -> int | None:
        """Bytes that the body has by its own account."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdigit() else None

    @property
    def is_page(self) -> bool:
        """Whether the body is for a browser."""
        return self.headers.get("content-type", "").lower().startswith("text/html")


@dataclass(slots=True)
class Web:
    """Hosts on the network. Safe to use from several threads.

    ``hub`` is the address of the Hub, None the user's (``HF_ENDPOINT``). ``token`` None: the user's
    (``HF_TOKEN``, or as ``hf auth login`` has kept it), "" none; it is sent to the Hub alone.
    ``tell`` is called with a line when there is something to wait for, or to know.
    """

    hub: str | None = None
    offline: bool = field(default_factory=lambda: offline_by(os.environ))
    token: str | None = None
    sleep: Callable[[float], None] = time.sleep
    tell: Callable[[str], None] = lambda text: None
    patience: float = MAX_WAIT  # seconds for a host to connect, to answer, or to be less busy
    _client: httpx.Client | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _told: set[str] = field(default_factory=set, repr=False)

    @property
    def endpoint(self) -> str:
        """The address of the Hub, looked up when somebody wants to know: what is here is planned
        and run without it. Raises HubError where it is none."""
        if self.hub is None:
            self.hub = endpoint_of(os.environ)
        return self.hub

    def is_hub(self, url: str) -> bool:
        """Whether an address is on the Hub that the user named, who gave the token for it."""
        try:
            return _origin(url) == _origin(self.endpoint)
        except HubError:
            return False

    def tell_once(self, about: str, text: str) -> None:
        """``tell``, and never again of the same thing."""
        with self._lock:
            known = about in self._told
            self._told.add(about)
        if not known:
            self.tell(text)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def hurried(self) -> Web:
        """The same hosts, asked for what one can do without. It has to be closed, too."""
        return replace(self, patience=HURRY, _client=None, _lock=threading.Lock())

    @contextlib.contextmanager
    def open(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[Reply]:
        """Ask for ``url``; the body may be left unread.

        Raises HubError for every answer but 200, 206 and 416, and for what is no answer.
        """
        httpx = self._httpx(url)
        try:
            response, first = self._ask(url, dict(headers or {}))
        except httpx.HTTPError as error:
            raise _unreachable(url, error) from error
        except (httpx.InvalidURL, ValueError) as error:
            raise HubError(f"{_short(url)}: not an address that can be asked: {error}") from error
        try:
            yield Reply(
                str(response.url),
                response.status_code,
                _small(response.headers),
                first,
                _chunks(response, httpx),
            )
        finally:
            response.close()

    def json(self, url: str) -> tuple[Any, Mapping[str, str]]:
        """A document, and the headers it came with. Raises HubError."""
        with self.open(url, {"Accept": "application/json"}) as reply:
            body = bytearray()
            for chunk in reply.chunks:
                body += chunk
                if len(body) > MAX_JSON:
                    raise HubError(f"{_short(url)}: the answer has more than {MAX_JSON} bytes")
            if reply.length is not None and reply.length != len(body):
                raise HubError(
                    f"{_short(url)}: the answer ended after {len(body)} of {reply.length} bytes",
                    kind="closed",
                )
            try:
                return json.loads(body), reply.headers
            except (ValueError, RecursionError) as error:
                what = "a web page" if reply.is_page else f"{bytes(body[:40])!r}"
                raise HubError(f"{_short(url)}: {what} instead of JSON", hint=_no_hub()) from error

    def _httpx(self, url: str) -> ModuleType:
        if self.offline:
            raise HubError(
                f"{_short(url)} was not asked: offline",
                kind="offline",
                hint="leave --offline out and unset HF_HUB_OFFLINE, or name a file that is here",
            )
        try:
            import httpx
        except ImportError as error:
            raise HubError(
                "reading from the network needs packages that are not installed",
                kind="extra",
                hint=INSTALL,
            ) from error
        with self._lock:
            if self._client is None:
                limits = {what: min(limit, self.patience) for what, limit in TIMEOUTS.items()}
                self._client = httpx.Client(
                    timeout=httpx.Timeout(**limits),
                    headers={
                        "User-Agent": f"gguf-spec/{__version__}",
                        "Accept-Encoding": "identity",  # a range of a compressed body is no range
                    },
                )
        return httpx

    def _ask(self, url: str, headers: dict[str, str]) -> tuple[httpx.Response, Mapping[str, str]]:
        """The response after redirects and waits, and the headers of the first host's."""
        busy = 0
        while True:
            response, first, sent_token = self._follow(url, headers)
            status = response.status_code
            if status in (200, 206, 416):
                return response, first
            body = _read_some(response)
            at = str(response.url)
            if _origin(at) != _origin(url) and 400 <= status < 429:
                raise HubError(
                    f"{_short(at)}: HTTP {status}: the link that {urlsplit(url).netloc} gave has "
                    "expired, or was never good",
                    kind="link",
                    hint="try again later",
                )
            refusal = _refusal(at, status, _small(response.headers), sent_token, body)
            if refusal.kind not in ("limit", "server") or busy == RETRIES:
                raise refusal
            wait = _wanted_wait(_small(response.headers), busy)
            if wait > self.patience:
                raise refusal
            self.tell(f"{urlsplit(url).netloc} answers {status}: waiting {wait:.0f} s")
            self.sleep(wait)
            busy += 1

    def _follow(
        self, url: str, headers: dict[str, str]
    ) -> tuple[httpx.Response, Mapping[str, str], bool]:
        assert self._client is not None
        token = self._token() if self.is_hub(url) else ""
        first: Mapping[str, str] | None = None
        seen = []
        while True:
            own = {"Authorization": f"Bearer {token}"} if token else {}
            request = self._client.build_request("GET", url, headers={**headers, **own})
            response = self._client.send(request, stream=True, follow_redirects=False)
            if first is None:
                first = _small(response.headers)
            where = response.headers.get("location")
            if response.status_code not in _REDIRECTS or not where:
                return response, first, bool(token)
            response.close()
            seen.append(url)
            if len(seen) > MAX_REDIRECTS:
                raise HubError(f"{_short(seen[0])} redirects in a loop ({len(seen)} times)")
            to = urljoin(url, where)
            if urlsplit(to).scheme not in ("http", "https"):
                raise HubError(f"{_short(url)} redirects to {to[:80]!r}, which is no web address")
            if urlsplit(url).scheme == "https" and urlsplit(to).scheme == "http":
                raise HubError(f"{_short(url)} redirects to an address without encryption")
            if _origin(to) != _origin(url):
                token = ""  # and it stays away: the way back is another host's wish
            url = to

    def _token(self) -> str:
        with self._lock:
            if self.token is None:
                self.token = _users_token()
            return self.token


def endpoint_of(environment: Mapping[str, str]) -> str:
    """The Hub to ask: ``HF_ENDPOINT``, or huggingface.co. Raises HubError for no web address."""
    text = (environment.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        usable = False
    if not usable:
        raise HubError(
            f"HF_ENDPOINT is {text!r}, not an address such as {DEFAULT_ENDPOINT}",
            kind="endpoint",
            hint="unset HF_ENDPOINT, or set it to the address of a mirror",
        )
    return text


def offline_by(environment: Mapping[str, str]) -> bool:
    """Whether ``HF_HUB_OFFLINE`` says so, read as huggingface_hub reads it."""
    return environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _users_token() -> str:
    env = os.environ.get
    if token := env("HF_TOKEN") or env("HUGGING_FACE_HUB_TOKEN"):
        return token.strip()
    if env("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in ("1", "ON", "YES", "TRUE"):
        return ""
    home = env("HF_HOME") or os.path.join(env("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    kept = Path(os.path.expanduser(env("HF_TOKEN_PATH") or os.path.join(home, "token")))
    if not kept.is_file() and not env("HF_OIDC_RESOURCE"):
        return ""
    try:  # it may have to be renewed, which its owner knows how to do
        from huggingface_hub import get_token
    except ImportError:
        return kept.read_text(encoding="utf-8").strip() if kept.is_file() else ""
    return get_token() or ""


def _refusal(
    url: str, status: int, headers: Mapping[str, str], sent_token: bool, body: str
) -> HubError:
    """The error for an answer that is none, after the Hub's ``X-Error-Code`` where there is one."""
    code = headers.get("x-error-code", "")
    said = headers.get("x-error-message", "") or body
    told = f"{_short(url)}: HTTP {status}" + (f", {said[:160]}" if said else "")
    if status == 403 or code == "GatedRepo":
        gated = code == "GatedRepo" or "gated" in said.lower()
        page = re.sub(r"/(resolve|revision|tree)/.*", "", url).replace("/api/models/", "/")
        hint = f"accept its conditions at {page}, then hf auth login" if gated else None
        return HubError(told, kind="gated" if gated else "token", hint=hint or _log_in(sent_token))
    if status == 401:
        return HubError(
            f"{told}: no such repository, or not for everybody",
            kind="token",
            hint=f"check the name; {_log_in(sent_token)}",
        )
    if status == 404:
        missing = {
            "RepoNotFound": "there is no such repository, or it is private",
            "RevisionNotFound": "the repository has no such revision",
            "EntryNotFound": "the repository has no such file",
        }.get(code, "there is nothing at this address")
        return HubError(f"{told}: {missing}", kind="missing", hint="check the name")
    if status == 429:
        wait = _wanted_wait(headers, 0)
        return HubError(
            f"{told}: too many requests, ask again in {wait:.0f} s",
            kind="limit",
            hint="wait, or log in for a higher limit: hf auth login",
        )
    if status >= 500:
        return HubError(f"{told}: the server has a problem", kind="server", hint="try again later")
    return HubError(told, hint=_no_hub())


def _wanted_wait(headers: Mapping[str, str], busy: int) -> float:
    """Seconds: as the host asks for (``Retry-After``, or t of ``RateLimit``), else doubled."""
    after = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}", after):
        return float(after)
    if after:
        with contextlib.suppress(ValueError, TypeError):
            return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - time.time())
    found = re.search(r"\bt=(\d{1,9})", headers.get("ratelimit", ""))
    return float(found[1]) if found else 0.5 * 2**busy


def _log_in(sent_token: bool) -> str:
    if sent_token:
        return "the token that was sent (HF_TOKEN, or hf auth login) does not open it"
    return "if it is private or gated: set HF_TOKEN, or hf auth login"


def _no_hub() -> str:
    return "check HF_ENDPOINT, and that no login page of a network answers instead"


def _unreachable(url: str, error: Exception) -> HubError:
    said = str(error) or type(error).__name__
    return HubError(
        f"{urlsplit(url).netloc} cannot be reached: {said}",
        kind="connect",
        hint="check the network and HF_ENDPOINT; --offline uses what is here",
    )


def _chunks(response: httpx.Response, httpx: ModuleType) -> Iterator[bytes]:
    """The body as it comes. A body that ends early is for the caller to notice."""
    coding = response.headers.get("content-encoding", "identity").lower()
    if coding not in ("", "identity"):
        raise HubError(f"{_short(str(response.url))}: the body is compressed ({coding})")
    try:
        yield from response.iter_raw()
    except httpx.RemoteProtocolError:
        return  # fewer bytes than were announced
    except httpx.HTTPError as error:
        said = str(error) or type(error).__name__
        raise HubError(
            f"{_short(str(response.url))}: the connection broke: {said}",
            kind="closed",
            hint="try again: what has come in is kept",
        ) from error


def _read_some(response: httpx.Response) -> str:
    """What a refusal says in its body: the "error" of a JSON document, else nothing."""
    try:
        body = bytearray()
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > 64 * 1024:
                break
        said = json.loads(body)["error"]
        return " ".join(str(said).split())
    except Exception:  # it is only for the message
        return ""
    finally:
        response.close()


def _small(headers: Any) -> dict[str, str]:
    return {key.lower(): value for key, value in headers.items()}


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port


def _short(url: str) -> str:
    """An address for a message: without the query, in which signatures and tokens are."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
