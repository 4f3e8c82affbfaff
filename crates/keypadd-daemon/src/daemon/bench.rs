//! Runs the service that answers the measurements of peers.

use std::net::SocketAddr;

use keypadd_cli::error::{Error, Exit, system};

use crate::kit::{BenchService, Kit};

/// The service that answers measurements, with the kit that started it.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) kit: Kit,
    service: BenchService,
}

impl Bench {
    /// Starts the service.
    ///
    /// # Errors
    /// Exit 6: it cannot listen.
    pub(super) async fn start(kit: Kit) -> Result<Self, Error> {
        let service = (kit.service)().await.map_err(|error| {
            let cause = format!("--permit-bench: cannot listen on 127.0.0.1: {}", system(&error));
            Error::new(Exit::BindFailed, cause)
        })?;
        Ok(Self { kit, service })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.service.address
    }
}
