"""Options of sources and sinks: each is declared once, as a field of a frozen dataclass.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ShopOptions:
        shop_id: str = option("shopId", STRING, "Which shop to read.")
        page_bytes: int = option("pageBytes", BYTES, "Size of a page.", default="16mb", minimum="1kb")
        token: Secret | None = option("token", SECRET, "Token of the shop.", default=None)

    options = parse_options(ShopOptions, {"shopid": "7", "token": "env:SHOP_TOKEN"}, os.environ, "shop")

The declaration feeds parsing, error texts and the reference pages. Options are parsed on the driver.
"""

from __future__ import annotations

import dataclasses
import difflib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

from connectors.core.errors import OptionError
from connectors.core.formats import connector_of
from connectors.core.options.kinds import BOOLEAN, IMPORT_PATH, SECRET, SECRET_ARGUMENT, Kind, option_text

SPARK_KEYS: Final = frozenset({"path", "checkpointlocation", "queryname"})
"""Keys, lower-cased, that Spark itself adds to a source's or a sink's options (seen in traces of Spark 4.3)."""

_METADATA_KEY: Final = "option"
_SHOWN_CHARACTERS: Final = 80
_REQUIRED: Final[Any] = object()
_HIDDEN: Final = "***"
_SECRET_FILE_BYTES: Final = 1 << 20
_LINES: Final = str.maketrans("", "", "\r\n\t")

_NEAR: Final = 0.6
"""How alike, from 0 to 1, an unknown name and an option must be for a hint; below it hints lead astray."""

T = TypeVar("T")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one option; made by `option`.

    Attributes:
        name: in camelCase; case does not matter, as Spark passes keys in lower case.
        instead_of: what other products call it; such a name is refused with a hint to this one.
        sensitive: its value is never shown in an error, because secrets are pasted there by mistake.
    """

    name: str
    kind: Kind[Any]
    doc: str
    default: str | None = None
    required: bool = False
    minimum: str | None = None
    maximum: str | None = None
    aliases: tuple[str, ...] = ()
    instead_of: tuple[str, ...] = ()
    sensitive: bool = False
    multiline: bool = False

    @property
    def legal(self) -> str:
        """The legal values, for example ``a whole number, from 1 to 64``."""
        if self.minimum is None:
            return self.kind.legal if self.maximum is None else f"{self.kind.legal}, at most {self.maximum}"
        if self.maximum is None:
            return f"{self.kind.legal}, at least {self.minimum}"
        return f"{self.kind.legal}, from {self.minimum} to {self.maximum}"

    def parse(self, text: str) -> Any:
        """Return the value of a text.

        Raises:
            ValueError: with the reason, which is empty if the text is legal but for its limits.
        """
        value = self.kind.parse(text)
        minimum, maximum = (None if limit is None else self.kind.parse(limit) for limit in (self.minimum, self.maximum))
        too_small = minimum is not None and value is not None and value < minimum
        too_large = maximum is not None and value is not None and value > maximum
        if too_small or too_large or (self.kind is SECRET and not text):
            raise ValueError
        return value

    def hides(self, text: str) -> bool:
        """Return whether a value may hold a secret, as a URL with a user's name or an argument ``?token=`` does."""
        return self.sensitive or ("://" in text and "@" in text) or SECRET_ARGUMENT.search(text) is not None

    def shown(self, text: str) -> str:
        """Return a value for an error: quoted, cut when long, hidden when it may hold a secret."""
        if self.hides(text):
            return _HIDDEN
        return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")


class _Details(TypedDict, total=False):
    minimum: str | None
    maximum: str | None
    aliases: tuple[str, ...]
    instead_of: tuple[str, ...]
    sensitive: bool
    multiline: bool


@overload
def option(name: str, kind: Kind[T], doc: str, *, default: str = ..., **details: Unpack[_Details]) -> T: ...
@overload
def option(name: str, kind: Kind[T], doc: str, *, default: None, **details: Unpack[_Details]) -> T | None: ...
def option(name: str, kind: Kind[T], doc: str, *, default: str | None = _REQUIRED, **details: Unpack[_Details]) -> Any:
    """Declare an option as a field of a dataclass with ``frozen``, ``slots`` and ``kw_only``.

    The arguments are the attributes of `Option`. Without a default the option is required; a `SECRET` is sensitive.

    Raises:
        ValueError: the default is not legal.
    """
    details["sensitive"] = details.get("sensitive", False) or kind is SECRET
    if default is _REQUIRED:
        return dataclasses.field(metadata={_METADATA_KEY: Option(name, kind, doc, required=True, **details)})
    value = None if default is None else kind.parse(default)
    return dataclasses.field(default=value, metadata={_METADATA_KEY: Option(name, kind, doc, default, **details)})


def available_now() -> bool:
    """Declare the option of streams that says to Spark before 4.2 what newer ones know."""
    return option(
        "availableNow",
        BOOLEAN,
        "Set it on Spark 4.0 and 4.1 for a query that runs with Trigger.AvailableNow or Trigger.Once. Those versions "
        "ask for one batch and don't say that the run is bounded; with this option that batch has all there is, "
        "whatever the limits. Newer versions ignore it.",
        default="false",
    )


def push_down_predicate() -> bool:
    """Declare the option by which a batch read takes the filters that Spark pushes."""
    return option(
        "pushDownPredicate",
        BOOLEAN,
        "Whether a batch read fetches only what the filters on it can match, in a session with "
        "spark.sql.python.filterPushdown.enabled=true. Use each such load() once, or always with the same filters: "
        "Spark up to 4.3 keeps the plan that it made for one use, and reads other uses of the same load() by it, so "
        "rows are missing. Streams ignore it.",
        default="false",
    )


def refined(cls: type, field: str, more: str = "", *, aliases: tuple[str, ...] = ()) -> Any:
    """Declare an option of a base class for one connector: `more` is added to the shared description.

    Raises:
        KeyError: the base class has no option in this field.
    """
    declared, base = declared_options(cls)[field], cls.__dataclass_fields__[field]  # type: ignore[attr-defined]
    own = dataclasses.replace(declared, doc=f"{declared.doc} {more}".strip(), aliases=declared.aliases + aliases)
    return dataclasses.field(default=base.default, metadata={_METADATA_KEY: own})


def declared_options(cls: type) -> Mapping[str, Option]:
    """Return the declarations of a dataclass by field, in their order."""
    return {
        field.name: field.metadata[_METADATA_KEY]
        for field in dataclasses.fields(cls)
        if _METADATA_KEY in field.metadata
    }


def secret_options(*classes: type) -> dict[str, Option]:
    """Return the declarations of secret options, by each of their names in lower case.

    A class may have ``secret_settings`` too: settings of a vendor's client, which are no options of its own.
    """
    return {
        name.lower(): declared
        for cls in classes
        for declared in (*declared_options(cls).values(), *getattr(cls, "secret_settings", ()))
        for name in (declared.name, *declared.aliases)
        if declared.sensitive
    }


def literal_secrets(raw: Mapping[str, str], connector: str) -> list[str]:
    """Return the names in these options of a format whose secret stands there itself, not as env:NAME or file:PATH."""
    source = connector_of(connector)
    secret = secret_options(*source.option_classes().values()) if source else {}
    return sorted(
        name
        for name, value in raw.items()
        if (declared := secret.get(name.lower())) is not None
        and declared.kind is SECRET
        and not str(value).strip().startswith(("env:", "file:"))
    )


def conflict(connector: str, first: str, second: str, why: str, action: str) -> OptionError:
    """Return the error for two options that exclude each other."""
    return OptionError("OPTION_CONFLICT", f"The options {first} and {second} conflict: {why}", connector, action)


def parse_options(cls: type[C], raw: Mapping[str, str], environ: Mapping[str, str], connector: str) -> C:
    """Parse the options that Spark passes to a source or sink: sizes in bytes, durations in seconds.

    Names are in any case, None counts as absent, and fields without `option` keep their defaults.

    Raises:
        OptionError: an option is unknown (the error names the nearest), missing or illegal, has two names with
            different values, or is a secret that cannot be read.
    """
    options = declared_options(cls)
    texts = _given_texts(cls, raw, connector)
    for name, text in texts.items():
        if options[name].kind is SECRET:
            declared = options[name]
            texts[name] = resolve_secret(declared.name, text, environ, connector, multiline=declared.multiline)
    values = {}
    for field, declared in options.items():
        if field in texts:
            values[field] = _value(declared, texts[field], connector)
        elif declared.required:
            what = f"The option {declared.name} is required"
            raise OptionError("OPTION_MISSING", what, connector, f"Give {declared.legal}.")
    return cls(**values)


def _value(declared: Option, text: str, connector: str) -> Any:
    try:
        return declared.parse(text)
    except ValueError as error:
        because = f": {error}" if str(error) and not declared.sensitive else ""
        what = f"The option {declared.name} cannot be {declared.shown(text)}{because}"
        # Not chained: the reason may show a secret.
        raise OptionError("OPTION_ILLEGAL", what, connector, f"Give {declared.legal}.") from None


def _names(cls: type) -> dict[str, tuple[str, str]]:
    """Return the field of every name and alias in lower case, and the name as a user writes it."""
    return {
        name.lower(): (field, name)
        for field, declared in declared_options(cls).items()
        for name in (declared.name, *declared.aliases)
    }


def _given_texts(cls: type, raw: Mapping[str, str], connector: str) -> dict[str, str]:
    """Return the stripped texts by field; refuse unknown names, and two names with different values."""
    names = _names(cls)
    texts: dict[str, str] = {}
    written: dict[str, str] = {}
    for key, value in raw.items():
        lowered = key.lower()
        if lowered in SPARK_KEYS or value is None:
            continue
        if lowered not in names:
            raise _unknown(cls, key, connector)
        field, name = names[lowered]
        text = option_text(key, value, connector)
        if texts.setdefault(field, text) != text:
            declared = declared_options(cls)[field]
            values = f"{declared.shown(texts[field])} and {declared.shown(text)}"
            why = f"they are two names for one option, and have the values {values}"
            raise conflict(connector, written[field], name, why, f"Give only {declared.name}.")
        written[field] = name
    return texts


def _unknown(cls: type, key: str, connector: str) -> OptionError:
    options, names, lowered = declared_options(cls).values(), _names(cls), key.lower()
    source = connector_of(connector)
    owners = source.option_classes() if source else {}
    for declared in options:
        if lowered in map(str.lower, declared.instead_of):
            what = f"The option {key} is not supported"
            how = (
                f" Give {declared.legal}." if declared.kind is IMPORT_PATH else ""
            )  # it was a class of another language
            return OptionError("OPTION_UNKNOWN", what, connector, f"Use {declared.name} instead.{how}")
    owner = next((owner for owner, other in owners.items() if other is not cls and lowered in _names(other)), None)
    if owner is not None:
        advice = f"It is an option of {owner}: give it there."
    elif near := difflib.get_close_matches(lowered, names, n=1, cutoff=_NEAR):
        advice = f"Did you mean {names[near[0]][1]}?"
    else:
        advice = f"The options are: {', '.join(declared.name for declared in options)}."
    return OptionError("OPTION_UNKNOWN", f"The option {key[:_SHOWN_CHARACTERS]} is unknown", connector, advice)


def resolve_secret(
    option: str, text: str, environ: Mapping[str, str], connector: str, *, multiline: bool = False
) -> str:
    """Return a secret without white space around it: the text itself, or what ``env:NAME`` or ``file:PATH`` names.

    Files and variables often end with a line end, and HTTP clients print a header that holds one.

    Raises:
        OptionError: it cannot be read, or holds a character that does not print.
    """

    def printable(value: str) -> str:
        bad = next((one for one in (value.translate(_LINES) if multiline else value) if not one.isprintable()), None)
        if bad is None:
            return value
        what = f"The secret {option} holds the character U+{ord(bad):04X}, which is not printable"
        raise OptionError("OPTION_ILLEGAL", what, connector, "Remove the character.")

    return printable(_read(option, printable(text.strip()), environ, connector).strip())


def _read(option: str, text: str, environ: Mapping[str, str], connector: str) -> str:
    def unreadable(what: str, action: str) -> OptionError:
        return OptionError("OPTION_SECRET_UNREADABLE", f"The secret {option} {what}", connector, action)

    source, _, name = text.partition(":")
    if source == "env":
        if not environ.get(name, "").strip():
            raise unreadable(
                f"names the environment variable {name}, which is not set or empty",
                "Set it for the driver before the Spark session starts.",
            )
        return environ[name]
    if source == "file":
        path = Path("/" + name.lstrip("/")) if name.startswith("/") else Path(name)
        advice = "Give file: and the absolute path of a file that the driver can read."
        if not path.is_absolute():
            raise unreadable(f"names the file {name}, which is a relative path", advice)
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise unreadable(f"names {path}, which is not a regular file", advice)
            with path.open(encoding="utf-8", newline="") as file:
                secret = file.read(_SECRET_FILE_BYTES).strip()
        except OSError as error:
            raise unreadable(f"names the file {path}, which cannot be read ({error.strerror})", advice) from None
        except UnicodeDecodeError:
            raise unreadable(f"names the file {path}, which is not UTF-8 text", advice) from None
        if not secret:
            raise unreadable(f"names the file {path}, which is empty", advice)
        return secret
    return text
