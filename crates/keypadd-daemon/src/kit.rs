//! What a program hands the daemon so that it answers the measurements of peers.
//!
//! `keypadd` hands none: where it may answer them, it starts `keypadd-bench` in its place, which is
//! the same daemon with a kit.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use keypadd_keystream::MeasureSuite;
use keypadd_provider::MeasureKeyExchange;
use keypadd_traffic::Host;

/// Protection for measurements only, and the service that such sessions reach.
#[derive(Clone, Copy, Debug)]
pub struct Kit {
    /// Suites to accept after those that users choose from.
    pub suites: &'static [MeasureSuite],
    /// Key exchanges to accept, likewise.
    pub kex: &'static [MeasureKeyExchange],
    /// Starts the service.
    pub service: fn() -> Starting,
}

/// The start of a service.
pub type Starting = Pin<Box<dyn Future<Output = io::Result<BenchService>>>>;

/// The service that answers measurements; stops when dropped.
#[derive(Debug)]
pub struct BenchService {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its own thread, so that control tasks do not wait for it.
    pub host: Host,
}
