"""Options of a schema registry: what contradicts itself or cannot work is refused, and no secret is shown."""

from __future__ import annotations

import pytest

from connectors.core.errors import OptionError
from connectors.registry.options import parse_registry_options

LOGINS = (
    {"basic.auth.user.info": "canary-user:canary-password"},
    {"bearer.auth.token": "canary-token"},
)


# -- options ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "names"),
    [
        ({**LOGINS[0], **LOGINS[1]}, "OPTION_CONFLICT", ("basic.auth.user.info", "bearer.auth.token")),
        ({"basic.auth.user.info": "canary"}, "OPTION_ILLEGAL", ("basic.auth.user.info", "colon")),
        ({"basic.auth.user.info": ":canary"}, "OPTION_ILLEGAL", ("basic.auth.user.info", "user")),
        ({"bearer.auth.token": "canary token"}, "OPTION_ILLEGAL", ("bearer.auth.token",)),
        ({"bearer.auth.token": "canary-\xe9"}, "OPTION_ILLEGAL", ("bearer.auth.token",)),
        ({"bearer.auth.token": "canary\nX-Evil: 1"}, "OPTION_ILLEGAL", ("bearer.auth.token",)),
        ({**LOGINS[0], "basic.auth.credentials.source": "URL"}, "OPTION_ILLEGAL", ("credentials.source", "USER_INFO")),
        ({"basic.auth.credentials.source": "USER_INFO"}, "OPTION_CONFLICT", ("credentials.source", "user.info")),
        ({"ssl.key.location": "/k"}, "OPTION_CONFLICT", ("ssl.key.location", "ssl.certificate.location")),
        ({"ssl.key.password": "canary"}, "OPTION_CONFLICT", ("ssl.key.password", "ssl.certificate.location")),
        ({"address": "http://a", "ssl.ca.location": "/c"}, "OPTION_CONFLICT", ("ssl.ca.location", "address")),
        ({"address": "http://a:8081,http://b:8081"}, "OPTION_ILLEGAL", ("address",)),
        ({"address": "http://a:port"}, "OPTION_ILLEGAL", ("address",)),
        ({"address": "http://a:8081/?x=1"}, "OPTION_ILLEGAL", ("address",)),
        ({"address": "http://a:8081/#x"}, "OPTION_ILLEGAL", ("address",)),
        ({"address": "http://[::1"}, "OPTION_ILLEGAL", ("address",)),
        ({"address": "http://a b"}, "OPTION_ILLEGAL", ("address",)),
    ],
)
def test_options_that_contradict_each_other_or_cannot_work_are_refused(
    options: dict[str, str], code: str, names: tuple[str, ...]
) -> None:
    with pytest.raises(OptionError) as caught:
        parse_registry_options({"address": "https://registry:8081", **options})
    assert caught.value.code == code
    assert not [name for name in names if name not in str(caught.value)]
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("login", [{"basic.auth.user.info": "me:canary"}, {"bearer.auth.token": "canary"}])
def test_a_login_is_not_sent_by_plain_http_to_another_machine_unless_that_is_allowed(login: dict[str, str]) -> None:
    for address in ("http://registry:8081", "HTTP://10.0.0.1:8081", "http://localhost.evil:8081"):
        with pytest.raises(OptionError, match=r"^\[OPTION_CONFLICT\].*plain http to") as caught:
            parse_registry_options({"address": address, **login})
        assert "canary" not in str(caught.value)
        assert parse_registry_options({"address": address}).address
        assert parse_registry_options({"address": address, "allowInsecure": "true", **login}).allow_insecure
    for address in ("http://127.0.0.1:8081", "http://[::1]:8081", "http://localhost:8081", "https://registry"):
        assert parse_registry_options({"address": address, **login}).address
