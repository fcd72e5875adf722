"""The protocol's numbers: header and body keys, request types, flags, error codes (src/box/iproto_constants.h, errcode.h)."""

from __future__ import annotations

from typing import Final


class Key:
    """Keys of header and body maps. They are plain integers because each row is looked up by them."""

    REQUEST_TYPE: Final = 0x00
    SYNC: Final = 0x01
    REPLICA_ID: Final = 0x02
    LSN: Final = 0x03
    TIMESTAMP: Final = 0x04
    SCHEMA_VERSION: Final = 0x05
    SERVER_VERSION: Final = 0x06
    GROUP_ID: Final = 0x07
    TSN: Final = 0x08
    FLAGS: Final = 0x09
    SPACE_ID: Final = 0x10
    INDEX_ID: Final = 0x11
    LIMIT: Final = 0x12
    OFFSET: Final = 0x13
    ITERATOR: Final = 0x14
    INDEX_BASE: Final = 0x15
    KEY: Final = 0x20
    TUPLE: Final = 0x21
    USER_NAME: Final = 0x23
    INSTANCE_UUID: Final = 0x24
    REPLICASET_UUID: Final = 0x25
    VCLOCK: Final = 0x26
    OPS: Final = 0x28
    BALLOT: Final = 0x29
    OLD_TUPLE: Final = 0x2C
    NEW_TUPLE: Final = 0x2D
    DATA: Final = 0x30
    ERROR_24: Final = 0x31
    ARROW: Final = 0x36
    BEGIN_KEY: Final = 0x37
    END_KEY: Final = 0x38
    REPLICA_ANON: Final = 0x50
    ID_FILTER: Final = 0x51
    ERROR: Final = 0x52
    TERM: Final = 0x53
    VERSION: Final = 0x54
    FEATURES: Final = 0x55
    VCLOCK_SYNC: Final = 0x5A
    INSTANCE_NAME: Final = 0x5D


class Type:
    """Request types: the values of REQUEST_TYPE in a header."""

    OK: Final = 0
    SELECT: Final = 1
    INSERT: Final = 2
    REPLACE: Final = 3
    UPDATE: Final = 4
    DELETE: Final = 5
    AUTH: Final = 7
    UPSERT: Final = 9
    NOP: Final = 12
    INSERT_ARROW: Final = 17
    DELETE_RANGE: Final = 18
    RAFT: Final = 30
    RAFT_PROMOTE: Final = 31
    RAFT_DEMOTE: Final = 32
    RAFT_CONFIRM: Final = 40
    RAFT_ROLLBACK: Final = 41
    JOIN: Final = 65
    SUBSCRIBE: Final = 66
    VOTE: Final = 68
    FETCH_SNAPSHOT: Final = 69
    REGISTER: Final = 70
    JOIN_META: Final = 71
    JOIN_SNAPSHOT: Final = 72
    ID: Final = 73
    ERROR: Final = 0x8000
    """Bit that marks an error packet; the remaining bits hold the error's code."""


TYPE_NAMES: Final[dict[int, str]] = {
    number: name for name, number in vars(Type).items() if isinstance(number, int) and name != "ERROR"
}

KEY_NAMES: Final[dict[int, str]] = {number: name for name, number in vars(Key).items() if isinstance(number, int)}

DATA_TYPES: Final = frozenset(
    {Type.INSERT, Type.REPLACE, Type.UPDATE, Type.DELETE, Type.UPSERT, Type.INSERT_ARROW, Type.DELETE_RANGE}
)
SYNCHRO_TYPES: Final = frozenset({Type.RAFT_PROMOTE, Type.RAFT_DEMOTE, Type.RAFT_CONFIRM, Type.RAFT_ROLLBACK})
ROW_TYPES: Final = DATA_TYPES | SYNCHRO_TYPES | {Type.NOP}
"""Types of the log's rows. RAFT isn't one of them: the master sends RAFT packets between rows to report the cluster's state,
which isn't part of any relayed log."""


class Flag:
    """Bits of a row's FLAGS. Only the last row of a transaction has them."""

    COMMIT: Final = 1
    WAIT_SYNC: Final = 2
    """The transaction is in the limbo: it is synchronous, or asynchronous and follows a synchronous one (2.8 and later)."""
    WAIT_ACK: Final = 4
    """The transaction itself is synchronous (2.8 and later)."""


class ErrorCode:
    """Error codes that this program handles individually."""

    UNSUPPORTED: Final = 5
    READONLY: Final = 7
    PROC_LUA: Final = 32
    NO_SUCH_SPACE: Final = 36
    ACCESS_DENIED: Final = 42
    NO_SUCH_USER: Final = 45
    PASSWORD_MISMATCH: Final = 47
    CFG: Final = 59
    UNKNOWN_REPLICA: Final = 62
    REPLICASET_UUID_MISMATCH: Final = 63
    SYSTEM: Final = 115
    LOADING: Final = 116
    CONNECTION_TO_SELF: Final = 117
    PROTOCOL: Final = 104
    REPLICA_NOT_ANON: Final = 207
    SYNC_QUORUM_TIMEOUT: Final = 216
    SYNC_ROLLBACK: Final = 217
    XLOG_GAP: Final = 219
    TOO_EARLY_SUBSCRIBE: Final = 220
    NIL_UUID: Final = 264
    SHUTDOWN: Final = 279
    INVALID_VCLOCK: Final = 288
    SYNC_QUEUE_FULL: Final = 289
    REPLICA_GC: Final = 291
    SYNC_TIMEOUT: Final = 295
    XLOG_NOT_FOUND: Final = 303


FEATURES_SENT: Final = (0, 1, 2, 3)
"""Features that this client announces in ID: streams, transactions, error extension, watchers. It uses only the error
extension."""

NEWEST_PROVEN_VERSION: Final = (3, 8, 0)
"""Version of the newest server that the daemon has followed, live and in the captures. SERVER_VERSION in SUBSCRIBE and
FETCH_SNAPSHOT is the smaller of this version and the server's own, because a master may send packets to a newer peer that this
program doesn't know."""


def version_id(version: tuple[int, int, int]) -> int:
    """Encode a version as the number that SERVER_VERSION contains."""
    major, minor, patch = version
    return major << 16 | minor << 8 | patch
