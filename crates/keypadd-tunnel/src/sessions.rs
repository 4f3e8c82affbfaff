//! Sessions: authenticated connections with a control stream, on either end.

pub(crate) mod control;
pub(crate) mod key_renewal;
pub(crate) mod remote_forwards;
pub(crate) mod server_link;
pub(crate) mod session;
pub(crate) mod status;
