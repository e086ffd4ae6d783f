"""Options of sources and sinks: each is declared once, as a field of a frozen dataclass.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ShopOptions:
        shop_id: str = option("shopId", STRING, "Which shop to read.")
        page_bytes: int = option("pageBytes", BYTES, "Size of a page.", default="16mb", minimum="1kb")
        token: Secret | None = option("token", SECRET, "Token of the shop.", default=None)

    options = parse_options(ShopOptions, {"shopid": "7", "token": "env:SHOP_TOKEN"}, os.environ, "shop")

The declaration feeds parsing, error texts and the reference pages. Options are parsed on the driver; where a value is
not plainly legal, pydantic decides. The result is the plain dataclass: it pickles, its `repr` shows no secret, and a
worker that unpickles it imports neither pydantic nor an SDK.
"""

from __future__ import annotations

import dataclasses
import difflib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict, TypeVar, Unpack, overload

from connectors.core.errors import OptionError
from connectors.core.formats import connector_of
from connectors.core.options.kinds import SECRET, Kind, Secret, option_text

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

__all__ = [
    "Option",
    "conflict",
    "declared_options",
    "option",
    "parse_options",
    "secret_options",
]

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

_MODELS: dict[type, type[BaseModel]] = {}

T = TypeVar("T")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one option; made by `option`.

    Attributes:
        name: in camelCase; case does not matter, as Spark passes keys in lower case.
        doc: what it does, in sentences.
        default, minimum, maximum: as a user would write them; None for none.
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

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of its value, under the names that pydantic has for them: ``ge`` and ``le``."""
        limits = (("ge", self.minimum), ("le", self.maximum))
        return {key: self.kind.parse(text) for key, text in limits if text is not None}

    def plain_value(self, text: str) -> Any:
        """Return the value of a text that is plainly legal.

        Raises:
            TypeError, ValueError: pydantic has to decide, which may still accept it.
        """
        value, limits = self.kind.parse(text), self.limits
        in_limits = ("ge" not in limits or limits["ge"] <= value) and ("le" not in limits or value <= limits["le"])
        if not (isinstance(value, self.kind.type) and in_limits and text):
            raise ValueError("not plainly legal")
        return value

    def hides(self, text: str) -> bool:
        """Return whether a value may hold a secret, as a URL with a user's name in it does."""
        return self.sensitive or ("://" in text and "@" in text)

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


def declared_options(cls: type) -> Mapping[str, Option]:
    """Return the declarations of a dataclass by field, in their order."""
    return {
        field.name: field.metadata[_METADATA_KEY]
        for field in dataclasses.fields(cls)
        if _METADATA_KEY in field.metadata
    }


def secret_options(*classes: type) -> dict[str, Option]:
    """Return the declarations of secret options, by each of their names in lower case."""
    return {
        name.lower(): declared
        for cls in classes
        for declared in declared_options(cls).values()
        for name in (declared.name, *declared.aliases)
        if declared.sensitive
    }


def conflict(connector: str, first: str, second: str, why: str, action: str) -> OptionError:
    """Return the error for two options that exclude each other."""
    return OptionError("OPTION_CONFLICT", f"The options {first} and {second} conflict: {why}", connector, action)


def parse_options(
    cls: type[C],
    raw: Mapping[str, str],
    environ: Mapping[str, str],
    connector: str,
) -> C:
    """Parse the options that Spark passes to a source or sink: sizes in bytes, durations in seconds.

    Args:
        cls: a dataclass whose fields are declared by `option`; other fields keep their defaults.
        raw: names in any case to texts; a value of None counts as absent.
        environ: the environment that ``env:NAME`` secrets are read from.
        connector: name of the connector, for errors.

    Raises:
        OptionError: an option is unknown (the error names the nearest), missing or illegal, has two names with
            different values, or is a secret that cannot be read.
    """
    options = declared_options(cls)
    given = _given_texts(cls, raw, connector)
    for name, text in given.items():
        if options[name].kind is SECRET:
            declared = options[name]
            given[name] = resolve_secret(declared.name, text, environ, connector, multiline=declared.multiline)
    plain = _plain_values(options, given)
    return cls(**(_judged_values(cls, given, connector) if plain is None else plain))


def _names(options: Mapping[str, Option]) -> dict[str, str]:
    """Return the field of every name and alias in lower case."""
    return {name.lower(): field for field, declared in options.items() for name in (declared.name, *declared.aliases)}


def _given_texts(cls: type, raw: Mapping[str, str], connector: str) -> dict[str, str]:
    """Return the stripped texts by field; refuse unknown names, and two names with different values."""
    options = declared_options(cls)
    names = _names(options)
    texts: dict[str, str] = {}
    keys: dict[str, str] = {}
    for key, value in raw.items():
        lowered = key.lower()
        if lowered in SPARK_KEYS or value is None:
            continue
        field = names.get(lowered)
        if field is None:
            raise _unknown(cls, key, connector)
        text = option_text(key, value, connector)
        if texts.setdefault(field, text) != text:
            declared = options[field]
            first, second = (_user_name(declared, name) for name in (keys[field], lowered))
            raise conflict(
                connector,
                first,
                second,
                f"they are two names of one option and have the values {declared.shown(texts[field])} and "
                f"{declared.shown(text)}",
                f"Give only {declared.name}.",
            )
        keys[field] = lowered
    return texts


def _user_name(declared: Option, lowered: str) -> str:
    return next(name for name in (declared.name, *declared.aliases) if name.lower() == lowered)


def _unknown(cls: type, key: str, connector: str) -> OptionError:
    options, known = declared_options(cls), connector_of(connector)
    elsewhere = {owner: each for owner, each in (known.option_classes() if known else {}).items() if each is not cls}
    for declared in options.values():
        if key.lower() in (name.lower() for name in declared.instead_of):
            return OptionError(
                "OPTION_UNKNOWN", f"The option {key} is not supported", connector, f"Use {declared.name} instead."
            )
    written = {name.lower(): name for declared in options.values() for name in (declared.name, *declared.aliases)}
    near = difflib.get_close_matches(key.lower(), written, n=1, cutoff=_NEAR)
    owner = next((owner for owner, cls in elsewhere.items() if key.lower() in _names(declared_options(cls))), None)
    if owner is not None:
        advice = f"It is an option of {owner}: give it there."
    elif near:
        advice = f"Did you mean {written[near[0]]}?"
    else:
        advice = f"The options are: {', '.join(declared.name for declared in options.values())}."
    return OptionError("OPTION_UNKNOWN", f"The option {key[:_SHOWN_CHARACTERS]} is unknown", connector, advice)


def _plain_values(options: Mapping[str, Option], given: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the values if all are plainly legal; None if pydantic has to decide, which takes 0.1 s to import."""
    if any(declared.required and field not in given for field, declared in options.items()):
        return None
    try:
        return {field: options[field].plain_value(text) for field, text in given.items()}
    except (TypeError, ValueError):
        return None


def _judged_values(cls: type, given: Mapping[str, str], connector: str) -> dict[str, Any]:
    from pydantic import SecretStr, ValidationError  # noqa: PLC0415 - workers unpickle options and parse none

    try:
        model = _model(cls).model_validate(given)
    except ValidationError as error:
        # Not chained: pydantic's error holds all inputs.
        raise _option_error(declared_options(cls), given, error.errors(include_url=False)[0], connector) from None
    values = {name: getattr(model, name) for name in given}
    return {
        name: Secret(value.get_secret_value()) if isinstance(value, SecretStr) else value
        for name, value in values.items()
    }


def _option_error(
    options: Mapping[str, Option], given: Mapping[str, str], error: ErrorDetails, connector: str
) -> OptionError:
    field = str(error["loc"][0])
    declared = options[field]
    if error["type"] == "missing":
        return OptionError(
            "OPTION_MISSING", f"The option {declared.name} is required", connector, f"Give {declared.legal}."
        )
    reason = error.get("ctx", {}).get("error")
    because = f": {reason}" if isinstance(reason, ValueError) and not declared.sensitive else ""
    what = f"The option {declared.name} cannot be {declared.shown(given[field])}{because}"
    return OptionError("OPTION_ILLEGAL", what, connector, f"Give {declared.legal}.")


def _model(cls: type) -> type[BaseModel]:
    """Return the pydantic model of a dataclass, which takes about 20 ms to make."""
    if cls in _MODELS:
        return _MODELS[cls]
    from pydantic import BeforeValidator, ConfigDict, Field, SecretStr, create_model  # noqa: PLC0415 - as above

    fields: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        declared = declared_options(cls).get(field.name)
        if declared is None:
            continue
        kind = declared.kind
        value: Any = Annotated[SecretStr, Field(min_length=1)]
        if kind is not SECRET:
            value = Annotated[kind.type, Field(**declared.limits)]
        if not declared.required and field.default is None:
            value |= None
        if kind is not SECRET:
            value = Annotated[value, BeforeValidator(kind.parse)]
        default = ... if declared.required else field.default
        fields[field.name] = (value, Field(default))
    config = ConfigDict(hide_input_in_errors=True)
    _MODELS[cls] = create_model(cls.__name__, __config__=config, **fields)
    return _MODELS[cls]


def resolve_secret(
    option: str, text: str, environ: Mapping[str, str], connector: str, *, multiline: bool = False
) -> str:
    """Return a secret without white space around it: the text itself, or what ``env:NAME`` or ``file:PATH`` names.

    Files and variables often end with a line end, and HTTP clients print a header that holds one.

    Args:
        option: the name of the option, for errors.
        text: as the user wrote it.
        environ: the environment that ``env:NAME`` is read from.
        connector: the name of the connector, for errors.
        multiline: whether the secret may have several lines, as a key in PEM.

    Raises:
        OptionError: it cannot be read, or holds a character that does not print.
    """

    def printable(value: str) -> str:
        bad = next((one for one in (value.translate(_LINES) if multiline else value) if not one.isprintable()), None)
        if bad is None:
            return value
        what = f"The secret {option} holds the character U+{ord(bad):04X}, which does not print"
        raise OptionError("OPTION_ILLEGAL", what, connector, "Give the secret without it.")

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
