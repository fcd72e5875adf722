//! The protocol's numbers; as cdc.protocol.constants, of which these are the ones needed here. A test compares them.

// Keys of header and body maps.
pub const REQUEST_TYPE: u8 = 0x00;
pub const REPLICA_ID: u8 = 0x02;
pub const LSN: u8 = 0x03;
pub const TIMESTAMP: u8 = 0x04;
pub const GROUP_ID: u8 = 0x07;
pub const TSN: u8 = 0x08;
pub const FLAGS: u8 = 0x09;
pub const SPACE_ID: u8 = 0x10;
pub const INDEX_ID: u8 = 0x11;
pub const INDEX_BASE: u8 = 0x15;
pub const KEY: u8 = 0x20;
pub const TUPLE: u8 = 0x21;
pub const OPS: u8 = 0x28;

// Request types.
pub const INSERT: u64 = 2;
pub const REPLACE: u64 = 3;
pub const UPDATE: u64 = 4;
pub const DELETE: u64 = 5;
pub const UPSERT: u64 = 9;
pub const NOP: u64 = 12;
pub const RAFT_PROMOTE: u64 = 31;
pub const RAFT_DEMOTE: u64 = 32;
pub const RAFT_CONFIRM: u64 = 40;
pub const RAFT_ROLLBACK: u64 = 41;

// Bits of a row's FLAGS.
pub const COMMIT: u64 = 1;
pub const WAIT_SYNC: u64 = 2;
pub const WAIT_ACK: u64 = 4;
