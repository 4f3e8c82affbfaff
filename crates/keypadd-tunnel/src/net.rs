//! Wraps the host's sockets, listeners, name lookups and own addresses. Knows nothing of QUIC or
//! permits.

pub(crate) mod bind;
pub(crate) mod dns;
pub(crate) mod forwarded_socket;
pub(crate) mod host_ports;
pub(crate) mod inward;
pub(crate) mod lookup;
pub(crate) mod socket_file;
pub(crate) mod source;
pub(crate) mod udp_listener;
pub(crate) mod unix_listener;
