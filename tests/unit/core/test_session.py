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


def hide(settings: Settings) -> None:
    session: Any = Session(settings)
    _hide_secrets(session)


def test_where_secrets_cannot_be_hidden_one_warning_names_env_and_file(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(fixed=True)
    hide(settings)
    hide(settings)
    assert caplog.text.count("[SPARK_SHOWS_SECRETS] ") == 1
    assert "Give secrets as env:NAME or file:PATH." in caplog.text


def test_what_a_session_hides_already_stays_hidden_and_ours_is_added_once() -> None:
    settings = Settings(fixed=False, spark_sql_redaction_options_regex="(?i)shop.*")
    hide(settings)
    hide(settings)
    assert settings.values == {"spark.sql.redaction.options.regex": f"{secrets_pattern()}|(?i)shop.*"}


def test_over_spark_connect_a_session_that_is_registered_again_is_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = ConnectSettings(fixed=False)
    session: Any = Session(settings)
    _hide_secrets(session)
    _hide_secrets(session)
    assert settings.values == {"spark.sql.redaction.options.regex": secrets_pattern()}
    assert "SPARK_SHOWS_SECRETS" not in caplog.text
