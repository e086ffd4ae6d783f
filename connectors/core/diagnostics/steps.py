"""What a check of ``connectors doctor`` has found: the words that the checks of all connectors share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum

from connectors.core.errors import ConnectorError
from connectors.core.extras import not_installed, packages_missing

__all__ = ["Finding", "Outcome", "Steps", "packages"]


class Outcome(StrEnum):
    """The status of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor.

    Attributes:
        area: what it is about, such as ``java`` or ``spool``.
        check: the name of the check.
        outcome: its status.
        found: one sentence on what was seen.
        fix: an instruction; empty where nothing has to be done.
        code: the stable code of the error; empty without one.
    """

    area: str
    check: str
    outcome: Outcome
    found: str
    fix: str = ""
    code: str = ""

    @classmethod
    def ok(cls, area: str, check: str, found: str) -> Finding:
        """Return a check without a fault."""
        return cls(area, check, Outcome.OK, found)

    @classmethod
    def warning(cls, area: str, check: str, found: str, fix: str, code: str) -> Finding:
        """Return a check after which a query works, but the user should know something."""
        return cls(area, check, Outcome.WARNING, found, fix, code)

    @classmethod
    def failure(cls, area: str, check: str, found: str, fix: str, code: str) -> Finding:
        """Return a check after which a query does not work."""
        return cls(area, check, Outcome.FAILURE, found, fix, code)

    @classmethod
    def from_error(cls, area: str, check: str, error: ConnectorError, outcome: Outcome = Outcome.FAILURE) -> Finding:
        """Return the finding of an error."""
        place = f" ({error.where})" if error.where else ""
        return cls(area, check, outcome, f"{error.what}{place}", error.action, error.code)

    def to_json(self) -> dict[str, str]:
        """Return the finding as a JSON object."""
        return asdict(self)


class Steps:
    """Checks of an area that depend on each other: after the first failure the others are skipped."""

    def __init__(self, area: str) -> None:
        self.area = area
        self._failed: str | None = None

    @property
    def failed(self) -> bool:
        """Whether a step has failed."""
        return self._failed is not None

    def step(self, check: str, look: Callable[[], str | Finding]) -> Finding:
        """Run a check.

        Args:
            check: its name.
            look: returns what it saw, or a finding; a `ConnectorError` or `OSError` is a failure.
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
    """Check whether the modules of an extra are installed; nothing is imported."""

    def look() -> str:
        if missing := not_installed(names):
            raise packages_missing(missing, steps.area, extra)
        return f"those of the extra {extra} are installed"

    return steps.step("packages", look)
