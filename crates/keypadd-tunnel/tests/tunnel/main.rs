//! Both ends in one process over loopback, with the crypto that ships; no pool, so every byte of
//! keystream is made inline. Waits for conditions; no verdict hangs on time.
#![allow(unreachable_pub, clippy::unwrap_used)]

mod bench;
mod bulk;
mod carrying;
mod changes;
mod dynamic;
mod faults;
mod hostile;
mod jumps;
mod lifecycle;
mod load;
mod mtu;
mod paths;
mod refusals;
mod remote;
mod remote_hostile;
mod resets;
mod staying;
mod stubborn;
mod support;
mod unix;
