"""What a session is told by `connectors.register`, where Spark does not let it be set."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import AnalysisException, SparkNoSuchElementException

from connectors.core.session import _hide_secrets, secrets_pattern


class Settings:
    """Settings of a session as Spark has them; one that is fixed is refused as Spark refuses it."""

    def __init__(self, *, fixed: bool, **given: str) -> None:
        self.values = {name.replace("_", "."): value for name, value in given.items()}
        self._fixed = fixed

    def get(self, name: str) -> str | None:
        return self.values.get(name)

    def set(self, name: str, value: str) -> None:
        if self._fixed:
            raise AnalysisException(f"[CANNOT_MODIFY_CONFIG] {name}")
        self.values[name] = value


class ConnectSettings(Settings):
    """Settings over Spark Connect, which does not return a value that matches ``spark.redaction.regex``."""

    def get(self, name: str) -> str | None:
        value = super().get(name)
        if value and "secret" in value:
            raise SparkNoSuchElementException(f"[SQL_CONF_NOT_FOUND] {name}")
        return value


class Session:
    def __init__(self, conf: Settings) -> None:
        self.conf = conf


def hide(settings: Settings) -> bool:
    session: Any = Session(settings)
    return _hide_secrets(session)


def test_a_session_that_lets_nothing_be_set_hides_no_secret_and_no_line_is_logged_yet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not hide(Settings(fixed=True))
    assert not caplog.text


@pytest.mark.parametrize("pattern", [".*", "(?i).*", "(?i)key|sasl|ssl|secre|sessiontoke|credentials|externalid"])
def test_a_session_whose_pattern_matches_every_secret_option_hides_them_and_is_not_changed(pattern: str) -> None:
    settings = Settings(fixed=True, spark_sql_redaction_options_regex=pattern)
    assert hide(settings)
    assert settings.values == {"spark.sql.redaction.options.regex": pattern}


@pytest.mark.parametrize("pattern", ["(?i)url", "password", "[a-z]", "\\p{Alpha}+(?<", ""])
def test_a_session_whose_pattern_misses_a_secret_option_does_not_hide_it(pattern: str) -> None:
    assert not hide(Settings(fixed=True, spark_sql_redaction_options_regex=pattern))


def test_what_a_session_hides_already_stays_hidden_and_ours_is_added_once() -> None:
    settings = Settings(fixed=False, spark_sql_redaction_options_regex="(?i)shop.*")
    hide(settings)
    hide(settings)
    assert settings.values == {"spark.sql.redaction.options.regex": f"{secrets_pattern()}|(?i)shop.*"}


def test_over_spark_connect_a_session_that_is_registered_again_is_not_warned_of() -> None:
    settings = ConnectSettings(fixed=False)
    session: Any = Session(settings)
    assert _hide_secrets(session)
    assert _hide_secrets(session)
    assert settings.values == {"spark.sql.redaction.options.regex": secrets_pattern()}
