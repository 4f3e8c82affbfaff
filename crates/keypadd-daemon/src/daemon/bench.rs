//! Runs the service that answers the measurements of peers.

use std::io;
use std::net::SocketAddr;

use keypadd_cli::error::{Error, Exit, system};
use keypadd_traffic::{Host, Service};

/// The service that answers measurements, on its own thread so that control tasks do not wait for
/// it. Stops when dropped.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) address: SocketAddr,
    _host: Host,
}

impl Bench {
    /// Binds it and starts its thread.
    ///
    /// # Errors
    /// Exit 6: it cannot listen.
    pub(super) async fn start() -> Result<Self, Error> {
        let started = async {
            let mut host = Host::start()?;
            let service = host.run(Service::bind()).await??;
            let address = service.address();
            host.spawn(service.run());
            Ok(Self { address, _host: host })
        };
        started.await.map_err(|error: io::Error| {
            let cause = format!("--permit-bench: cannot listen on 127.0.0.1: {}", system(&error));
            Error::new(Exit::BindFailed, cause)
        })
    }
}
