//! Has what a daemon answers measurements with: the suites and key exchanges for measurements only,
//! and the service.

use std::io;

use keypadd_daemon::kit::{BenchService, Kit};
use keypadd_keystream::MeasureSuite;
use keypadd_provider::MeasureKeyExchange;
use keypadd_traffic::{Host, Service};

/// The kit of daemons.
pub(crate) const KIT: Kit = Kit {
    suites: &MeasureSuite::ALL,
    kex: &MeasureKeyExchange::ALL,
    service: || Box::pin(start()),
};

async fn start() -> io::Result<BenchService> {
    let mut host = Host::start()?;
    let service = host.run(Service::bind()).await??;
    let address = service.address();
    host.spawn(service.run());
    Ok(BenchService { address, host })
}
