"""Requests to a schema registry: bounded in time and in size, and sent to the registry's own origin only.

httpx2 bounds each read of a response, not the whole (docs/adr/0004-registry-client.md). So a request runs under
`asyncio.timeout`, in a thread of its own, because the thread of a notebook already runs an event loop. Proxies are read
from the environment here: those that httpx2 reads can need more packages.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import httpx2

from connectors.core.errors import AccessDeniedError, ConnectorError, ServiceUnavailableError, SourceGoneError
from connectors.core.options.kinds import is_loopback
from connectors.registry.batches import schema_unusable
from connectors.registry.lookups import Lookup
from connectors.registry.oauth import OAuthTokens
from connectors.registry.options import (
    CA_OPTION,
    CERTIFICATE_OPTION,
    BearerSource,
    RegistryOptions,
    registry_option_error,
)

_TRANSIENT: Final = frozenset({408, 425, 429, 500, 502, 503, 504, *range(520, 530)})
"""Those that Confluent's clients ask again after, and what proxies answer for a server that they cannot reach."""
_MOST_BYTES: Final = 4 << 20
_MOST_REDIRECTS: Final = 5
_MOST_SHOWN: Final = 500
_SAME_METHOD: Final = {307, 308}  # redirects after which a request is the same, with what it sends
_REFUSALS: Final = {409, 422}
_Response = tuple[int, Mapping[str, str], bytes]


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    content: bytes | None = None
    missing: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class RegistryClient:
    """Makes requests; safe to use from several threads. OptionError: a file with certificates cannot be used."""

    def __init__(self, options: RegistryOptions) -> None:
        self._address = options.address
        self._timeout = options.timeout
        self._headers = {
            "Accept": "application/vnd.schemaregistry.v1+json, application/json",
            "Accept-Encoding": "identity",
        }
        if options.user_info is not None:
            user_info = base64.b64encode(options.user_info.reveal().encode()).decode()
            self._headers["Authorization"] = f"Basic {user_info}"
        elif options.token is not None:
            self._headers["Authorization"] = f"Bearer {options.token.reveal()}"
        cloud = {"target-sr-cluster": options.logical_cluster, "Confluent-Identity-Pool-Id": options.identity_pool}
        self._headers |= {name: value for name, value in cloud.items() if value is not None}
        self._tokens = None
        if options.bearer_source is BearerSource.OAUTHBEARER or options.credential_provider is not None:
            self._tokens = OAuthTokens(options, self._ask_for_token, _TRANSIENT)
            self._token_context = _token_context(options)
        self._context = _tls_context(options)

    def get(self, lookup: Lookup, **query: str) -> Any:
        """Make one request, with more parameters in its query, and return the JSON in the response.

        Raises:
            ServiceUnavailableError: no whole response in time, or a transient one.
            ConnectorError: any other response; SourceGoneError for HTTP 404, AccessDeniedError for 401 and 403.
        """
        return self._request(_Request("GET", lookup.url(**query), missing=lookup.missing), lookup.what)

    def post(self, path: str, what: str, content: Any) -> Any:
        """Send JSON to a path below the address, and return the JSON in the response.

        Raises:
            ServiceUnavailableError, ConnectorError: as `get`; SCHEMA_REFUSED for HTTP 409 and 422.
        """
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        return self._request(_Request("POST", path, json.dumps(content).encode(), headers=headers), what)

    def send(
        self, method: str, lookup: Lookup, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[Mapping[str, str], bytes]:
        """Make a request of another interface; return headers and body of the response. Raises as `post`."""
        return self._complete(_Request(method, lookup.url(), content, lookup.missing, headers or {}), lookup.what)

    def _request(self, request: _Request, what: str) -> Any:
        _, body = self._complete(request, what)
        try:
            return json.loads(body)
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise self._unavailable(f"{type(error).__name__}: {error}", what) from None
        except (ValueError, RecursionError) as error:
            raise schema_unusable(what, f"the response is not valid JSON ({type(error).__name__})") from None

    def _complete(self, request: _Request, what: str) -> tuple[Mapping[str, str], bytes]:
        try:
            with ThreadPoolExecutor(1) as pool:
                status, headers, body = pool.submit(self._run, request, what).result()
        except TimeoutError:
            raise self._unavailable(f"no complete response within {self._timeout:g} s", what) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ImportError, ValueError) as error:
            causes = list(_causes(error))
            why = str(causes[-1])
            if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
                raise _untrusted("schema registry", causes[-1], self._address) from None
            raise self._unavailable(f"{type(error).__name__}: {why}", what) from None
        if request.content and (status in _REFUSALS or (request.method, status) == ("PUT", HTTPStatus.BAD_REQUEST)):
            raise self._refused(status, body, what)
        if not httpx2.codes.is_success(status):
            raise self._http_error(status, request, what)
        return headers, body

    def _run(self, request: _Request, what: str) -> _Response:
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._authenticated(request, what))
        finally:
            loop.close()  # asyncio.run would also wait for a name server that does not answer

    async def _authenticated(self, request: _Request, what: str) -> _Response:
        """Make a request; by a token of OAuth that is refused, once more with a new one."""
        if self._tokens is None:
            return await self._follow(request, what, self._headers)
        token = await self._tokens.get()
        response = await self._follow(request, what, self._headers | {"Authorization": f"Bearer {token}"})
        if response[0] == HTTPStatus.UNAUTHORIZED:
            token = await self._tokens.get(refused=token)
            response = await self._follow(request, what, self._headers | {"Authorization": f"Bearer {token}"})
        return response

    async def _ask_for_token(self, url: str, headers: Mapping[str, str], form: bytes) -> tuple[int, bytes]:
        place = httpx2.URL(url)
        client = httpx2.AsyncClient(
            verify=self._token_context, timeout=None, trust_env=False, proxy=_proxy(place, authenticates=True)
        )
        try:
            async with (
                asyncio.timeout(self._timeout),
                client,
                client.stream("POST", place, content=form, headers=dict(headers)) as response,
            ):
                return response.status_code, await _body(response, "token")
        except TimeoutError:
            why = f"no complete response within {self._timeout:g} s"
        except (httpx2.HTTPError, OSError, ImportError, ValueError) as error:
            causes = list(_causes(error))
            if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
                raise _untrusted("token endpoint", causes[-1], url) from None
            why = f"{type(error).__name__}: {causes[-1]}"
        raise ServiceUnavailableError("SCHEMA_REGISTRY_UNAVAILABLE", f"The token endpoint gives no token: {why}", url)

    async def _follow(self, request: _Request, what: str, headers: Mapping[str, str]) -> _Response:
        url = home = httpx2.URL(self._address + request.path)
        proxy = _proxy(home, authenticates="Authorization" in headers)
        client = httpx2.AsyncClient(
            verify=self._context, headers=dict(headers), timeout=None, trust_env=False, proxy=proxy
        )
        async with asyncio.timeout(self._timeout), client:
            for _ in range(_MOST_REDIRECTS + 1):
                async with client.stream(
                    request.method, url, content=request.content, headers=dict(request.headers)
                ) as response:
                    same_method = not request.content or response.status_code in _SAME_METHOD
                    if not (response.has_redirect_location and same_method):
                        return response.status_code, response.headers, await _body(response, what)
                    location = response.headers["Location"]
                try:
                    url = url.join(location)
                except (httpx2.InvalidURL, ValueError):
                    raise _redirect_error(home, "what is not a URL") from None
                if url.userinfo or (url.scheme, url.netloc) != (home.scheme, home.netloc):
                    user = " with another user" if url.userinfo else ""
                    raise _redirect_error(home, f"{_origin(url)}{user}")
        raise _redirect_error(home, f"{_origin(url)} again and again")

    def _refused(self, status: int, body: bytes, what: str) -> ConnectorError:
        try:
            answer = json.loads(body)
            why = str(answer.get("error", answer)["message"])[:_MOST_SHOWN].encode(errors="replace").decode()
        except (AttributeError, ValueError, TypeError, KeyError, RecursionError):
            why = "it does not say why"
        return ConnectorError(
            "SCHEMA_REFUSED", f"The schema registry refuses the {what} (HTTP {status}): {why}", self._address
        )

    def _http_error(self, status: int, request: _Request, what: str) -> ConnectorError:
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            return AccessDeniedError(
                "SCHEMA_REGISTRY_ACCESS_DENIED",
                f"The schema registry refuses access to {what} (HTTP {status})",
                self._address,
            )
        if status == HTTPStatus.NOT_FOUND:
            return SourceGoneError(
                "SCHEMA_NOT_FOUND",
                f"The schema registry has no {what}",
                self._address,
                request.missing,
            )
        if status in _TRANSIENT:
            return self._unavailable(f"HTTP {status}", what)
        return schema_unusable(what, f"the registry responds with HTTP {status}")

    def _unavailable(self, why: str, what: str) -> ConnectorError:
        return ServiceUnavailableError(
            "SCHEMA_REGISTRY_UNAVAILABLE", f"The schema registry does not return {what}: {why}", self._address
        )


def _untrusted(peer: str, cause: BaseException, where: str) -> ConnectorError:
    return ConnectorError("SCHEMA_REGISTRY_UNTRUSTED", f"The certificate of the {peer} is not trusted: {cause}", where)


def _proxy(url: httpx2.URL, *, authenticates: bool) -> str | None:
    """Return the proxy for a URL, of the environment.

    Plain http to this machine may hold the authentication, which a proxy on another one must not see.
    """
    own = url.scheme == "http" and is_loopback(url.host) and authenticates
    return None if own or proxy_bypass(url.host) else getproxies().get(url.scheme)


def _token_context(options: RegistryOptions) -> ssl.SSLContext:
    """Trust the authorities of the system, and that of the registry; the client's certificate is for the registry."""
    context = ssl.create_default_context()
    if options.ca_file is not None:
        try:
            context.load_verify_locations(options.ca_file)
        except (OSError, ValueError) as error:
            raise _unreadable(CA_OPTION, options.ca_file, error) from None
    return context


def _tls_context(options: RegistryOptions) -> ssl.SSLContext:
    name, path = CA_OPTION, options.ca_file
    try:
        context = ssl.create_default_context(cafile=path)
        if options.certificate_file is not None:
            name, path = CERTIFICATE_OPTION, options.certificate_file
            # Without any password OpenSSL would ask for one on the terminal.
            password = "" if options.key_password is None else options.key_password.reveal()
            context.load_cert_chain(path, options.key_file, password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise _unreadable(name, path, error) from None
    return context


def _unreadable(name: str, path: str | None, error: Exception) -> ConnectorError:
    why = getattr(error, "strerror", None) or type(error).__name__
    return registry_option_error(
        name,
        f"cannot be {path!r}: nothing usable can be read from it, or from its key ({why})",
        "Give PEM files that are on driver and executors, and the password where there is one.",
    )


async def _body(response: httpx2.Response, what: str) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise schema_unusable(what, f"the response is larger than {_MOST_BYTES >> 20} MB")
    return bytes(body)


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"


def _redirect_error(home: httpx2.URL, target: str) -> ConnectorError:
    return ConnectorError(
        "SCHEMA_REGISTRY_REDIRECT",
        f"The schema registry {_origin(home)} redirects to {target}, which must not receive the credentials",
        "schemaRegistry",
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
