//! Forwards connections: accepts them, opens a stream for each, and connects to the destination.

pub(crate) mod accept;
pub(crate) mod adopt;
pub(crate) mod answer;
pub(crate) mod answer_flow;
pub(crate) mod carrier;
pub(crate) mod connection_log;
pub(crate) mod dial;
pub(crate) mod flow_outcome;
pub(crate) mod flows;
pub(crate) mod incomplete;
pub(crate) mod listen;
pub(crate) mod listener_group;
pub(crate) mod listeners;
pub(crate) mod open_listener;
pub(crate) mod open_stream;
pub(crate) mod origin;
pub(crate) mod proxy;
pub mod proxy_protocol;
pub(crate) mod remote_listen;
pub(crate) mod request;
pub(crate) mod reservations;
pub mod socks;
pub(crate) mod spare_sockets;
pub(crate) mod splice;
pub(crate) mod splice_error;
pub(crate) mod tasks;
