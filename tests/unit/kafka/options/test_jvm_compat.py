"""Authentication as JVM clients write it: one login module in its usual form, classes by their whole names."""

from __future__ import annotations

import pytest

from connectors.core.errors import OptionError
from connectors.kafka.client.factory import check_settings
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.source import parse_read_options

KAFKA = "org.apache.kafka.common.security."
PLAIN = f"{KAFKA}plain.PlainLoginModule"
SCRAM = f"{KAFKA}scram.ScramLoginModule"
BEARER = f"{KAFKA}oauthbearer.OAuthBearerLoginModule"
HANDLER = "sasl.login.callback.handler.class"
OTHERS = "Use PLAIN, SCRAM or OAUTHBEARER: the confluent-kafka wheel has no Kerberos."


def read(given: dict[str, str]) -> ClientSettings:
    raw = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "orders"}
    raw |= {f"kafka.{name}": value for name, value in given.items()}
    return parse_read_options(raw, {}, streaming=True).client


def logged_in(text: str, more: dict[str, str] | None = None) -> dict[str, str]:
    return read({"sasl.jaas.config": text} | (more or {})).revealed()


def refused(given: dict[str, str]) -> OptionError:
    with pytest.raises(OptionError) as caught:
        read(given)
    assert caught.value.code == "OPTION_ILLEGAL"
    return caught.value


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'"a \"b\" c;d=e"', 'a "b" c;d=e'),
        (r"'a\'b\\c'", "a'b\\c"),
        (r'"\\\""', '\\"'),
        ('""', ""),
        ("'say \"x\"'", 'say "x"'),
        ('"it\'s"', "it's"),
        ('"x "', "x "),
        ('"a//b/*c*/"', "a//b/*c*/"),
        ('"pässwörd€"', "pässwörd€"),
        ("pässwörd€", "pässwörd€"),
        ("123", "123"),
        ("-1.50", "-1.50"),
        ("a-b_c.d$e", "a-b_c.d$e"),
        (r"p@ss#w*rd!{}\n", r"p@ss#w*rd!{}\n"),
        ("x useKeyTab='false' serviceName=kafka", "x"),
        ("x password=y", "y"),
    ],
)
def test_a_value_is_what_the_jvm_client_makes_of_it(written: str, meant: str) -> None:
    assert logged_in(f"{PLAIN} required username=me password={written};")["sasl.password"] == meant


@pytest.mark.parametrize(
    "text",
    [
        "{} Required username=me password=x;",
        "{} SUFFICIENT username=me password=x",
        "\n{} required\n  username = 'me'\n  password = \"x\"\n;\n",
        " {} optional\tusername=me password=x ; ",
    ],
)
@pytest.mark.parametrize("module", [PLAIN, SCRAM, f"kafkashaded.{PLAIN}", "PlainLoginModule", "ScramLoginModule"])
def test_a_log_in_by_password_is_read_in_all_its_forms(module: str, text: str) -> None:
    given = logged_in(text.format(module))
    assert (given["sasl.username"], given["sasl.password"]) == ("me", "x")


def test_a_setting_of_the_client_itself_wins() -> None:
    more = {"sasl.username": "you", "sasl.password": "y"}
    given = logged_in(f"{PLAIN} required username=' me' password=' x';", more)
    assert (given["sasl.username"], given["sasl.password"]) == ("you", "y")


@pytest.mark.parametrize(
    "text",
    [
        '{} required username=me password="canary"41";',
        "{} required username=me password=canary 41;",
        "{} required username=me password='canary41;",
        '{} required username=me password="canary\n41";',
        "{} required username=me password=canary/41;",
        "{} required username=me password=canary//41;",
        "{} required username=me password=canary/* 41 */;",
        "{} required username=me password=canary41 // of the shop\n;",
        "/* canary41 */ {} required username=me password=x;",
        '{} required username=me "password"=canary41;',
        '{} required username="me"password=canary41;',
        r'{} required username=me password="canary\t41";',
        r'{} required username=me password="canary\101";',
        r"{} required username=me password='canary\000';",
        "{} required username=me password=canary41; PlainLoginModule required username=b password=canary;",
        "{} required username=me password=canary41; PlainLoginModule required username=b password=canary",
        "{} required username=me password=canary41;;",
        "{} required username=me password=;",
        "{} required username=me password==canary41;",
        "{} required username=me =canary41;",
        "{} required username=me canary41;",
        "{} username=me password=canary41;",
        "{} needed password=canary41;",
        "{};",
        "password=canary41",
        "'canary 41' required;",
        "// canary41",
        ";",
    ],
)
def test_any_other_form_is_refused_and_not_shown(text: str) -> None:
    error = refused({"sasl.jaas.config": text.format(PLAIN)})
    assert "kafka.sasl.jaas.config cannot be read" in error.what
    assert r'NAME="VALUE" ...; and write \" and \\ for a quote' in error.action
    assert "canary" not in str(error)
    assert "41" not in str(error)


@pytest.mark.parametrize("bad", ["\x85", "\0", "\x1b"])
def test_a_character_that_does_not_print_is_refused_and_not_shown(bad: str) -> None:
    error = refused({"sasl.jaas.config": f"{PLAIN} required username=me password=canary41{bad};"})
    said = "a NUL character" if bad == "\0" else f"the character U+{ord(bad):04X}"
    assert f"kafka.sasl.jaas.config holds {said}" in error.what
    assert "canary" not in str(error)


@pytest.mark.parametrize("value", ["true", '"TRUE"'])
def test_a_delegation_token_is_refused_by_name(value: str) -> None:
    error = refused({"sasl.jaas.config": f"{SCRAM} required username=a password=canary tokenauth={value};"})
    assert "delegation token, tokenauth=true" in error.what
    assert "canary" not in str(error)


@pytest.mark.parametrize("module", [SCRAM, PLAIN])
def test_a_log_in_without_a_delegation_token_is_taken(module: str) -> None:
    value = "false" if module == SCRAM else "true"  # which only ScramLoginModule looks at
    assert logged_in(f"{module} required username=a password=x tokenauth={value};")["sasl.username"] == "a"


@pytest.mark.parametrize(
    ("module", "name"),
    [(PLAIN, "username"), (SCRAM, "password"), (BEARER, "clientId"), (BEARER, "clientSecret")],
)
@pytest.mark.parametrize("space", [" ", "\t"])
def test_white_space_that_librdkafka_cuts_off_is_refused(module: str, name: str, space: str) -> None:
    error = refused({"sasl.jaas.config": f'{module} required {name}="{space}canary";'})
    assert f"The {name} in kafka.sasl.jaas.config begins with white space" in error.what
    assert "canary" not in str(error)


@pytest.mark.parametrize(
    "module",
    [
        "com.acme.PlainLoginModule",
        f"{KAFKA}scram.PlainLoginModule",
        "com.acme.OAuthBearerLoginModule",
        "com.acme.IAMLoginModule",
        "com.sun.security.auth.module.Krb5LoginModule",
        "Krb5LoginModule",
    ],
)
def test_a_login_module_of_others_is_refused_by_its_whole_name(module: str) -> None:
    error = refused({"sasl.jaas.config": f"{module} required username=a password=canary;"})
    assert (error.what, error.action) == (f"The login module {module} is not supported", OTHERS)


def test_the_login_module_of_msk_is_refused_with_what_to_use() -> None:
    error = refused({"sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;"})
    assert "The login module IAMLoginModule is a class of the JVM" in error.what
    assert "signs MSK tokens" in error.action


@pytest.mark.parametrize(
    "handler",
    [
        f"{KAFKA}oauthbearer.OAuthBearerLoginCallbackHandler",
        f"{KAFKA}oauthbearer.secured.OAuthBearerLoginCallbackHandler",
        f"kafkashaded.{KAFKA}oauthbearer.secured.OAuthBearerLoginCallbackHandler",
        "OAuthBearerLoginCallbackHandler",
    ],
)
def test_the_login_handler_of_oidc_is_that_of_librdkafka(handler: str) -> None:
    assert read({HANDLER: handler}).get("sasl.oauthbearer.method") == "oidc"


@pytest.mark.parametrize(
    ("handler", "action"),
    [
        ("software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler", "aws-msk-iam-sasl-signer-python"),
        ("software.amazon.msk.auth.iam.IAMClientCallbackHandler", "aws-msk-iam-sasl-signer-python"),
        ("com.acme.OAuthBearerLoginCallbackHandler", "with a Python class"),
        (f"{KAFKA}oauthbearer.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler", "with a Python class"),
    ],
)
def test_a_login_handler_of_others_is_refused_as_a_class_of_the_jvm(handler: str, action: str) -> None:
    error = refused({HANDLER: handler})
    assert error.what == f"The login handler {handler} is a class of the JVM"
    assert error.action.startswith("Give tokenProvider=module:Class")
    assert action in error.action


@pytest.mark.parametrize(
    "url", ["http://me:canary@host/token", "HTTPS://canary@host", "me:canary@host/token", "//me:canary@host?a=b"]
)
def test_a_token_endpoint_with_a_password_in_it_is_refused_and_not_shown(url: str) -> None:
    error = refused({"sasl.oauthbearer.token.endpoint.url": url})
    assert "contains a user or a password" in error.what
    assert "kafka.sasl.oauthbearer.client.secret" in error.action
    assert "canary" not in str(error)
    assert "host" not in str(error)


@pytest.mark.parametrize("url", ["https://host:1/users/@me?mail=a@b#c@d", "https://host?mail=a@b", "https://host"])
def test_a_token_endpoint_without_a_password_is_taken(url: str) -> None:
    assert read({"sasl.oauthbearer.token.endpoint.url": url}).get("sasl.oauthbearer.token.endpoint.url") == url


@pytest.mark.parametrize(
    "given",
    [
        {"security.protocol": "SASL_SSL"},
        {"security.protocol": "sasl_plaintext", "sasl.mechanism": "GSSAPI"},
    ],
    ids=str,
)
def test_a_log_in_by_kerberos_says_that_the_wheel_has_none(given: dict[str, str]) -> None:
    with pytest.raises(OptionError) as caught:
        check_settings(read(given))
    assert caught.value.code == "KAFKA_SETTING"
    assert "GSSAPI, which is Kerberos" in caught.value.what
    assert "use PLAIN, SCRAM or OAUTHBEARER: the confluent-kafka wheel has no Kerberos" in caught.value.action
    assert "GSSAPI" in caught.value.what
    assert "recompile" not in str(caught.value)
