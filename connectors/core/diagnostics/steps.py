"""What a check of ``connectors doctor`` has found: the words that the checks of all connectors share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum

from connectors.core.errors import ConnectorError
from connectors.core.extras import not_installed, packages_missing

__all__ = ["Finding", "Outcome", "Steps", "packages"]


class Outcome(StrEnum):
    """What came of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor.

    Attributes:
        area: what it is about, such as ``java`` or ``spool``.
        check: what was looked at, in a few words.
        outcome: what came of it.
        found: one sentence that says what was seen.
        fix: an instruction; empty where nothing has to be done.
        code: the stable code of the error; empty where there is none.
    """

    area: str
    check: str
    outcome: Outcome
    found: str
    fix: str = ""
    code: str = ""

    @classmethod
    def ok(cls, area: str, check: str, found: str) -> Finding:
        """All is well."""
        return cls(area, check, Outcome.OK, found)

    @classmethod
    def warning(cls, area: str, check: str, found: str, fix: str, code: str) -> Finding:
        """It works, and the user should know."""
        return cls(area, check, Outcome.WARNING, found, fix, code)

    @classmethod
    def failure(cls, area: str, check: str, found: str, fix: str, code: str) -> Finding:
        """It will not work."""
        return cls(area, check, Outcome.FAILURE, found, fix, code)

    @classmethod
    def from_error(cls, area: str, check: str, error: ConnectorError, outcome: Outcome = Outcome.FAILURE) -> Finding:
        """The finding that an error stands for."""
        place = f" ({error.where})" if error.where else ""
        return cls(area, check, outcome, f"{error.what}{place}", error.action, error.code)

    def to_json(self) -> dict[str, str]:
        """The finding as a JSON object."""
        return asdict(self)


class Steps:
    """Checks that stand on each other: after the first failure the others are skipped.

    Args:
        area: what they are about.
    """

    def __init__(self, area: str) -> None:
        self.area = area
        self._failed: str | None = None

    @property
    def failed(self) -> bool:
        """Whether a step has failed."""
        return self._failed is not None

    def step(self, check: str, look: Callable[[], str | Finding]) -> Finding:
        """Take a step.

        Args:
            check: what is looked at.
            look: gives what it saw, or a finding of its own; the `ConnectorError` or `OSError` it raises is a failure.
        """
        if self._failed is not None:
            return Finding(self.area, check, Outcome.SKIPPED, f"because '{self._failed}' failed")
        try:
            seen = look()
        except ConnectorError as error:
            seen = Finding.from_error(self.area, check, error)
        except OSError as error:
            what = f"the operating system refuses it: {error}"
            seen = Finding.failure(self.area, check, what, "Let the user of the driver use it.", "SYSTEM_REFUSES")
        found = seen if isinstance(seen, Finding) else Finding.ok(self.area, check, seen)
        if found.outcome is Outcome.FAILURE:
            self._failed = check
        return found


def packages(steps: Steps, extra: str, names: tuple[str, ...]) -> Finding:
    """Whether the packages of an extra are installed; nothing is imported.

    Args:
        steps: of the source.
        extra: its name.
        names: the modules to look for.
    """

    def look() -> str:
        if missing := not_installed(names):
            raise packages_missing(missing, steps.area, extra)
        return f"those of the extra {extra} are installed"

    return steps.step("packages", look)
