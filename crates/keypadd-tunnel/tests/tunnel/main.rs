//! Tests both ends in one process over loopback, with the real packet protection and no pool.
#![allow(unreachable_pub, clippy::unwrap_used)]

mod bench;
mod bulk;
mod changes;
mod dynamic;
mod faults;
mod forwarding;
mod hold;
mod hostile;
mod jumps;
mod lifecycle;
mod load;
mod mtu;
mod pairing;
mod paths;
mod proxied;
mod reconnects;
mod refusals;
mod remote;
mod remote_hostile;
mod renewal;
mod resets;
mod restarts;
mod stubborn;
mod support;
mod unix;
