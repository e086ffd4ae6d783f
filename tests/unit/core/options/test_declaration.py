from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from connectors.core.errors import OptionError
from connectors.core.options.declaration import (
    declared_options,
    option,
    parse_options,
)
from connectors.core.options.kinds import (
    BYTES,
)
from connectors.kafka.options.sink import parse_write_options as kafka_write
from connectors.kafka.options.source import parse_read_options as kafka_read
from connectors.kinesis.options.sink import parse_write_options as kinesis_write
from connectors.kinesis.options.source import parse_read_options as kinesis_read
from connectors.pubsub.options.sink import parse_write_options as pubsub_write
from connectors.pubsub.options.source import parse_read_options as pubsub_read
from tests.support.shop_options import Mode, ShopOptions, parse, refused

# -- names ------------------------------------------------------------------------------------------------------


def test_defaults_are_parsed_values() -> None:
    options = parse({})
    assert options == ShopOptions(shop_id="7")
    assert (options.page_bytes, options.wait, options.keep, options.mode) == (16 << 20, 10.0, None, Mode.SAFE)
    assert options.derived == "not an option"


@pytest.mark.parametrize("name", ["pageBytes", "pagebytes", "PAGEBYTES"])
def test_names_match_in_any_case(name: str) -> None:
    assert parse({name: "2k"}).page_bytes == 2048


def test_alias_sets_the_option() -> None:
    assert parse({"pagecount": "5"}).pages == 5


def test_option_and_alias_with_one_value_pass() -> None:
    assert parse({"pagecount": "5", "pages": " 5 "}).pages == 5


def test_option_and_alias_with_two_values_are_a_conflict_that_names_both() -> None:
    error = refused({"pagecount": "5", "pages": "6"})
    assert error.code == "OPTION_CONFLICT"
    for part in ("pageCount", "pages", "'5'", "'6'"):
        assert part in str(error)


@pytest.mark.parametrize(
    ("given", "nearest"), [("pageByte", "pageBytes"), ("shop", "shopId"), ("pagecuont", "pageCount")]
)
def test_unknown_option_is_refused_with_the_nearest_name(given: str, nearest: str) -> None:
    error = refused({given: "do-not-show"})
    assert error.code == "OPTION_UNKNOWN"
    assert f"{given} is unknown" in str(error)
    assert f"Did you mean {nearest}?" in str(error)
    assert "do-not-show" not in str(error)


@pytest.mark.parametrize(
    ("parse_side", "name", "owner"),
    [
        (pubsub_read, "idAttribute", "sink"),
        (pubsub_write, "spoolLocation", "source"),
        (kafka_read, "deliveryGuarantee", "sink"),
        (partial(kafka_write, streaming=True), "STARTINGOFFSETS", "source"),
        (kinesis_read, "aggregation", "sink"),
        (kinesis_write, "initialPosition", "source"),
        (kinesis_write, "initial_position", ""),
    ],
)
def test_option_of_the_other_side_is_refused_with_whose_it_is(
    parse_side: Callable[[dict[str, str], dict[str, str]], object], name: str, owner: str
) -> None:
    with pytest.raises(OptionError) as caught:
        parse_side({name: "do-not-show"}, {})
    assert caught.value.code == "OPTION_UNKNOWN"
    assert (caught.value.action == f"It is an option of the {owner}: give it there.") is bool(owner)
    assert "do-not-show" not in str(caught.value)


@pytest.mark.parametrize("parse_side", [pubsub_read, pubsub_write])
@pytest.mark.parametrize("name", ["emulatorHost", "emulator", "apiEndpoint"])
def test_an_emulator_by_the_names_of_other_products_gets_our_option(
    parse_side: Callable[[dict[str, str], dict[str, str]], object], name: str
) -> None:
    with pytest.raises(OptionError, match=r"^\[OPTION_UNKNOWN\].*Use endpoint instead\.$"):
        parse_side({name: "localhost:8085"}, {})


@pytest.mark.parametrize("name", ["includeHeaders", "serviceAccountKey"])
def test_a_name_that_is_only_a_little_alike_is_no_hint(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        pubsub_read({name: "x"}, {})
    assert caught.value.action.startswith("The options are: ")


def test_option_like_no_other_is_refused_with_all_names() -> None:
    assert "shopId, pages, pageBytes" in str(refused({"zzz": "1"}))


def test_name_that_another_product_uses_is_refused_with_ours() -> None:
    error = refused({"privatekey": "-----BEGIN do-not-show"})
    assert "Use keyFile instead." in str(error)
    assert "do-not-show" not in str(error)


@pytest.mark.parametrize("key", ["path", "checkpointLocation", "checkpointlocation", "queryName"])
def test_keys_of_spark_itself_pass(key: str) -> None:
    assert parse({key: "anything"}) == parse({})


def test_required_option_that_is_missing_is_named() -> None:
    with pytest.raises(OptionError, match=r"\[OPTION_MISSING\] The option shopId is required"):
        parse_options(ShopOptions, {}, {}, "shop")


def test_password_in_a_url_is_not_shown() -> None:
    assert "do-not-show" not in str(refused({"pages": "https://user:do-not-show@host/"}))


# -- documentation and workers ----------------------------------------------------------------------------------


def test_declarations_say_all_of_an_option_and_come_in_their_order() -> None:
    rows = {row.name: row for row in declared_options(ShopOptions).values()}
    assert list(rows)[:3] == ["shopId", "pages", "pageBytes"]
    assert "derived" not in rows
    pages = rows["pages"]
    assert (pages.kind.name, pages.default, pages.aliases, pages.doc) == ("integer", "3", ("pageCount",), "How many.")
    assert pages.legal == "a whole number, from 1 to 10"
    assert (rows["shopId"].required, rows["folder"].required, rows["folder"].default) == (True, False, None)


def test_default_that_is_not_legal_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ValueError, match="not a size"):
        option("size", BYTES, "Size.", default="big")


def test_options_are_parsed_without_pydantic() -> None:
    given = {"subscriptionId": "projects/shop/subscriptions/orders", "spoolLocation": "/spool", "maxSpoolBytes": "2g"}
    code = (
        "import sys\n"
        "from connectors.pubsub.options.source import parse_read_options\n"
        f"parse_read_options({given}, {{}})\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unpickled_options_import_no_pydantic() -> None:
    code = (
        "import sys\n"
        "from connectors.core.options.kinds import Secret\n"
        "from connectors.core import options\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


WITH_A_NUL = [
    (kafka_read, {"kafka.bootstrap.servers": "b:1", "subscribe": "orders\0old"}, "subscribe"),
    (kafka_read, {"kafka.bootstrap.servers": "b:1\0", "subscribe": "orders"}, "kafka.bootstrap.servers"),
    (kafka_read, {"kafka.bootstrap.servers": "b:1", "subscribe": "o", "kafka.client.id": "a\0b"}, "kafka.client.id"),
    (kafka_read, {"kafka.bootstrap.servers": "b:1", "subscribe": "o", "kafka.client.id\0": "a"}, "kafka.client.id?"),
    (kafka_read, {"kafka.bootstrap.servers": "b:1", "subscribe": "o", "kafka.sasl.password": "hun\0ter2"}, "password"),
    (kafka_write, {"kafka.bootstrap.servers": "b:1", "topic": "orders\0old"}, "topic"),
    (kafka_write, {"kafka.bootstrap.servers": "b:1", "topic": "o", "kafka.ssl.ca.location": "/a\0b"}, "kafka.ssl.ca"),
    (kinesis_read, {"streamName": "s", "region": "eu-west-1", "awsSecretKey": "hun\0ter2"}, "awsSecretKey"),
    (kinesis_write, {"streamName": "s\0t", "region": "eu-west-1"}, "streamName"),
    (pubsub_read, {"subscriptionId": "projects/p/subscriptions/s", "spoolLocation": "/a\0b"}, "spoolLocation"),
    (pubsub_write, {"topicId": "projects/p/topics/t\0u"}, "topicId"),
]


@pytest.mark.parametrize(("parse", "raw", "name"), WITH_A_NUL)
def test_a_nul_is_refused_in_every_option_at_which_a_c_library_would_cut_it(
    parse: Callable[..., object], raw: dict[str, str], name: str
) -> None:
    streaming = {} if parse in {kinesis_write, pubsub_write} else {"streaming": True}
    with pytest.raises(OptionError, match="holds a NUL character") as caught:
        parse(raw, {}, **streaming)
    assert name in caught.value.what
    assert "hun" not in str(caught.value)


def test_a_nul_in_a_secret_of_the_environment_is_refused_too(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hun\0ter2")
    with pytest.raises(OptionError) as caught:
        parse_options(ShopOptions, {"shopId": "7", "token": f"file:{secret}"}, {}, "shop")
    assert "token" in str(caught.value)
    assert "hun" not in str(caught.value)
