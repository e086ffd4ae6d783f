"""The identity of a spool: ``spool.json``, written once, and once more when it is adopted (rules R4, R8 and R9)."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass

from connectors.core.errors import SpoolDamagedError, SpoolError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import missing_spool
from connectors.spool.ledger.records import FORMAT_VERSION, decode, encode
from connectors.spool.ledger.writer_lock import LOCK_NAME, MOST_OF_A_LOCK, is_lock
from connectors.spool.segments.shapes import is_hex
from connectors.spool.store.base import Store
from connectors.spool.store.disk import IDENTITY_NAME, QUARANTINE_FOLDER, TEMPORARY_FOLDER
from connectors.spool.store.local import is_temporary_name

IS_CACHE = "SPOOL_IS_CACHE"
"""The code of the error for a folder that is no spool, but the cache of a Kinesis query."""
WIPING = "wiping"
"""The name of the empty file that marks an interrupted deletion."""
_ID_BYTES = 8
_HASH_KEY_BYTES = 16
_SHAPE = {"spool": str, "connector": str, "sources": [str], "location": str, "hash_key": is_hex}


@dataclass(frozen=True, slots=True)
class SpoolIdentity:
    """The identity of a spool: the format that fills it, and where it was made.

    Offsets carry `spool`, a random id. Segments refer to `sources`, full names as of subscriptions, by index.
    `hash_key` is for the hashes of ids.
    """

    spool: str
    connector: str
    sources: tuple[str, ...]
    location: str
    hash_key: bytes


def read_identity(store: Store) -> SpoolIdentity | None:
    """Return the identity of a spool, to which the store then keeps; None if the folder has no spool.

    Raises `SpoolDamagedError` if the file is damaged, or missing while other parts of a spool are there, and
    `SpoolError` for a cache, which has segments and neither identity nor ledger.
    """
    where = f"{store.root}/{IDENTITY_NAME}"
    try:
        value = decode(store.read(IDENTITY_NAME), where, "The identity of the spool", _SHAPE)
    except FileNotFoundError:
        parts = [folder for folder in ("epochs", "ledger", "inbox", "ids", "manifests") if store.list(folder)]
        if parts == ["inbox"] and not store.exists(WIPING):
            what = (
                "The folder is not a spool with a ledger, but the cache of a Kinesis query with consumerMode=efo: "
                "everything in it is in Kinesis too"
            )
            raise SpoolError(IS_CACHE, what, store.root) from None
        if parts:
            what = "The folder holds parts of a spool, but its identity (spool.json) is missing"
            raise SpoolDamagedError("SPOOL_IDENTITY_MISSING", what, where) from None
        return None
    store.keep_root()
    sources, hash_key = tuple(value["sources"]), bytes.fromhex(value["hash_key"])
    return SpoolIdentity(value["spool"], value["connector"], sources, value["location"], hash_key)


def open_identity(store: Store, connector: str, sources: tuple[str, ...]) -> SpoolIdentity:
    """Return the identity of the spool for these sources, made if there is none; raises as the checks below."""
    identity = read_identity(store)
    if identity is None:
        spool, hash_key = secrets.token_hex(_ID_BYTES), secrets.token_bytes(_HASH_KEY_BYTES)
        identity = SpoolIdentity(spool, connector, sources, store.location, hash_key)
        # Another query may have made the spool since: a lease does not keep apart what was stopped for a minute.
        if not store.create(IDENTITY_NAME, _encoded(identity)):
            identity = read_identity(store) or identity
        store.keep_root()
    check_source(store, identity, connector, sources)
    return identity


def check_source(store: Store, identity: SpoolIdentity, connector: str, sources: tuple[str, ...]) -> None:
    """Raise `SpoolError` if a spool belongs to other sources, or was moved or copied here."""
    if (identity.connector, identity.sources) != (connector, sources):
        held, read = f"{identity.connector} {', '.join(identity.sources)}", f"{connector} {', '.join(sources)}"
        raise SpoolError("SPOOL_OTHER_SOURCE", f"The spool holds {held}, but the query reads {read}", store.root)
    if identity.location != store.location:
        what = f"The spool was created in {identity.location}, and moved or copied here"
        raise SpoolError("SPOOL_MOVED", what, store.location)


def check_identity(store: Store, spool: str) -> None:
    identity = read_identity(store)
    if identity is None:
        raise missing_spool(store.root)
    if identity.spool != spool:
        what = f"Spool {identity.spool} is here, but the fetchers belong to spool {spool}"
        raise SpoolError("SPOOL_OTHER", what, store.root, "Restart the fetchers. They then use the present spool.")


def replace_identity(store: Store, identity: SpoolIdentity) -> None:
    """Replace the identity of a spool: an adoption changes its location. The caller holds the lock."""
    failpoint("adopt.before_replace")
    store.overwrite(IDENTITY_NAME, _encoded(identity))
    failpoint("adopt.after_replace")


def _encoded(identity: SpoolIdentity) -> bytes:
    return encode(asdict(identity) | {"v": FORMAT_VERSION, "hash_key": identity.hash_key.hex()})


def refuse_foreign_folder(store: Store) -> None:
    """Raise `SpoolDamagedError` if a folder without a spool has foreign files under the names that a spool uses."""
    # An interrupted start leaves its lock and temporary files.
    names = [f"{TEMPORARY_FOLDER}/{name}" for name in store.list(TEMPORARY_FOLDER) if not is_temporary_name(name)]
    names += [f"{QUARANTINE_FOLDER}/{name}" for name in store.list(QUARANTINE_FOLDER)]
    marks = (LOCK_NAME, WIPING) if store.has_locks else (WIPING,)
    names += [name for name in marks if not _is_own(store, name)]
    if names and read_identity(store) is None:
        what = "The folder is not a spool, but holds something under a name that a spool uses. Nothing was changed"
        raise SpoolDamagedError("SPOOL_FOREIGN_FILE", what, f"{store.root}/{names[0]}")


def _is_own(store: Store, name: str) -> bool:
    """Return whether a file is absent, empty, or a lock file, maybe half-written; also if it cannot be read."""
    try:
        data = bytes(store.pieces(name)[:MOST_OF_A_LOCK]).rstrip(b"\0")  # zeros: what a loss of power can leave
    except SpoolDamagedError:
        return False
    except OSError:
        return True
    return not data or (name == LOCK_NAME and is_lock(data))
