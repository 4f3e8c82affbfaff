//! Runs sessions on either end: authenticated connections with a control stream.

pub(crate) mod carries;
pub(crate) mod control;
pub(crate) mod counts;
pub(crate) mod draining;
pub(crate) mod hold;
pub(crate) mod key_renewal;
pub(crate) mod lifetime;
pub(crate) mod proof;
pub(crate) mod reconnect_reason;
pub(crate) mod registry;
pub(crate) mod remote_forwards;
pub(crate) mod server_link;
pub(crate) mod session;
pub(crate) mod session_end;
pub(crate) mod status;
