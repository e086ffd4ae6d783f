"""Requests to a schema registry: bounded in time and in size, and sent to the registry's own origin only.

httpx2 bounds each read of a response, not the whole (docs/adr/0004-registry-client.md). So a request runs under
`asyncio.timeout`, in a thread of its own, because the thread of a notebook already runs an event loop. Of the
environment it uses the proxies for http and https only: what httpx2 reads by itself includes proxies that need more
packages.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.request import getproxies, proxy_bypass

from connectors.core.errors import AccessDeniedError, ConnectorError, ServiceUnavailableError, SourceGoneError
from connectors.core.extras import extra_imports

if TYPE_CHECKING:
    import httpx2

__all__ = ["RegistryClient", "unusable"]

_TRANSIENT: Final = {429, 500, 502, 503, 504}
_MOST_BYTES: Final = 4 << 20
_MOST_REDIRECTS: Final = 5


def unusable(what: str, why: str) -> ConnectorError:
    """Return the error for a schema, or an answer of a registry, that makes no sense."""
    return ConnectorError("SCHEMA_UNUSABLE", f"The {what} cannot be used: {why}", "schemaRegistry")


class RegistryClient:
    """Makes GET requests; safe to use from several threads.

    Args:
        address: the URL of the registry.
        headers: what each request carries.
        context: how certificates are checked.
        timeout: how many seconds one request may take: connecting, redirects and the body included.
    """

    def __init__(self, address: str, headers: Mapping[str, str], context: ssl.SSLContext, timeout: float) -> None:
        self._address = address
        self._headers = headers
        self._context = context
        self._timeout = timeout

    def get(self, path: str, what: str) -> dict[str, Any]:
        """Make one request, and return the JSON object in the response.

        Args:
            path: the path below the address.
            what: the thing that is asked for, for errors.

        Raises:
            SourceGoneError: SCHEMA_NOT_FOUND, for HTTP 404.
            ServiceUnavailableError: SCHEMA_REGISTRY_UNAVAILABLE, for no whole response in time, and for one that
                another attempt may mend.
            AccessDeniedError: SCHEMA_REGISTRY_ACCESS_DENIED.
            ConnectorError: SCHEMA_REGISTRY_REDIRECT, SCHEMA_REGISTRY_UNTRUSTED, or SCHEMA_UNUSABLE for all else.
        """
        status, body = self._response(path, what)
        if not 200 <= status < 300:  # noqa: PLR2004 - HTTP
            raise self._http_error(status, what)
        try:
            found = json.loads(body)
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise self._unavailable(f"{type(error).__name__}: {error}", what) from None
        except (ValueError, RecursionError) as error:
            raise unusable(what, f"the answer is no sensible JSON ({type(error).__name__})") from None
        if not isinstance(found, dict):
            raise unusable(what, "the answer holds no schema; is this the address of a schema registry?")
        return found

    def _response(self, path: str, what: str) -> tuple[int, bytes]:
        with extra_imports("protobuf", "schemaRegistry"):
            import httpx2  # noqa: PLC0415 - only where there is a registry
        try:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(self._run, path, what).result()
        except TimeoutError:
            raise self._unavailable(f"no whole response within {self._timeout:g} s", what) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ImportError, ValueError) as error:
            causes = list(_causes(error))
            if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
                raise self._untrusted(str(causes[-1])) from None
            raise self._unavailable(f"{type(error).__name__}: {causes[-1]}", what) from None

    def _run(self, path: str, what: str) -> tuple[int, bytes]:
        import asyncio  # noqa: PLC0415 - as above

        async def bounded() -> tuple[int, bytes]:
            async with asyncio.timeout(self._timeout):
                return await self._follow(path, what)

        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(bounded())
        finally:
            loop.close()  # asyncio.run would also wait for a name server that does not answer

    async def _follow(self, path: str, what: str) -> tuple[int, bytes]:
        import httpx2  # noqa: PLC0415 - as above

        url = home = httpx2.URL(self._address + path)
        proxy = None if proxy_bypass(home.host) else getproxies().get(home.scheme)
        async with httpx2.AsyncClient(
            verify=self._context, headers=self._headers, timeout=None, trust_env=False, proxy=proxy
        ) as client:
            for _ in range(_MOST_REDIRECTS + 1):
                async with client.stream("GET", url) as response:
                    if not response.has_redirect_location:
                        return response.status_code, await _body(response, what)
                    location = response.headers["Location"]
                try:
                    url = url.join(location)
                except (httpx2.InvalidURL, ValueError):
                    _refuse_redirect(home, "what is no URL")
                if (url.scheme, url.netloc) != (home.scheme, home.netloc):
                    _refuse_redirect(home, _origin(url))
                if url.userinfo:
                    _refuse_redirect(home, f"{_origin(url)} with another user")
        return _refuse_redirect(home, f"{_origin(url)} again and again")

    def _http_error(self, status: int, what: str) -> ConnectorError:
        if status in {401, 403}:
            return AccessDeniedError(
                "SCHEMA_REGISTRY_ACCESS_DENIED",
                f"The schema registry refuses access to {what} (HTTP {status})",
                self._address,
                "Give basic.auth.user.info or bearer.auth.token of someone who may read it.",
            )
        if status == 404:  # noqa: PLR2004 - HTTP
            return SourceGoneError(
                "SCHEMA_NOT_FOUND",
                f"The schema registry has no {what}",
                self._address,
                "See that the address is that of the registry by which the messages were written.",
            )
        if status in _TRANSIENT:
            return self._unavailable(f"HTTP {status}", what)
        return unusable(what, f"the registry answers HTTP {status}")

    def _unavailable(self, why: str, what: str) -> ConnectorError:
        return ServiceUnavailableError(
            "SCHEMA_REGISTRY_UNAVAILABLE",
            f"The schema registry cannot be asked for {what}: {why}",
            self._address,
            "See that driver and executors can reach it; retry.timeout says how long it is asked again.",
        )

    def _untrusted(self, why: str) -> ConnectorError:
        return ConnectorError(
            "SCHEMA_REGISTRY_UNTRUSTED",
            f"The certificate of the schema registry is not trusted: {why}",
            self._address,
            "Give the certificates of its authority (PEM) as confluent.schema.registry.ssl.ca.location.",
        )


async def _body(response: httpx2.Response, what: str) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise unusable(what, f"the answer is larger than {_MOST_BYTES >> 20} MB")
    return bytes(body)


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"


def _refuse_redirect(home: httpx2.URL, target: str) -> NoReturn:
    raise ConnectorError(
        "SCHEMA_REGISTRY_REDIRECT",
        f"The schema registry {_origin(home)} redirects to {target}, where the authentication must not be sent",
        "schemaRegistry",
        "Give the address that serves the schemas as schema.registry.address, if you trust it.",
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
