//! Asks the system's DNS servers for SRV records, which getaddrinfo(3) cannot (RFC 1035, RFC 2782).
//!
//! Trusts nothing that DNS says: DNS decides where a client looks for a server, and the server's
//! key decides whether it is the right one.

mod exchange;
pub(crate) mod message;
mod resolv_conf;
pub(crate) mod targets;

use std::{fmt, io, net::SocketAddr, time::Duration};

use thiserror::Error;

use self::{
    exchange::exchange,
    message::{SrvQuestion, SrvReply},
    targets::{SrvTarget, in_order},
};
use crate::addresses::service::ServiceName;

/// Most time for one lookup, over all servers and attempts.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Where and how often to ask (resolv.conf(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nameservers {
    servers: Vec<SocketAddr>,
    /// For one exchange.
    timeout: Duration,
    /// Rounds over all servers.
    attempts: u32,
}

/// Why a service has no target.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SrvError {
    /// DNS has no such name.
    #[error("no SRV record: DNS has no such name")]
    NoName,
    /// The name has no SRV record with a usable target.
    #[error("no SRV record at this name")]
    NoRecord,
    /// Its only target is `.`.
    #[error("its SRV record says that there is no such service")]
    NoService,
    /// No server has answered.
    #[error("the SRV lookup failed: {0}")]
    Failed(String),
}

impl Nameservers {
    /// Asks these servers.
    pub(crate) fn new(servers: Vec<SocketAddr>) -> Self {
        Self { servers, ..Self::default() }
    }

    /// How long each exchange may take for every server to be asked in time.
    fn share(&self) -> Duration {
        let exchanges = self.attempts.saturating_mul(self.servers.len() as u32).max(1);
        self.timeout.min(LOOKUP_TIMEOUT / exchanges)
    }

    /// The targets of a service, in the order in which to try them.
    ///
    /// # Errors
    /// There is no target, or no server answered.
    pub(crate) async fn targets(&self, name: &ServiceName) -> Result<Vec<SrvTarget>, SrvError> {
        let mut failures = Failures::default();
        for _ in 0..self.attempts {
            for server in &self.servers {
                let asked = async {
                    let question = SrvQuestion::new(name)?;
                    exchange(*server, &question, self.share()).await
                };
                let cause = match asked.await {
                    Ok(SrvReply::Records(records)) => return in_order(records, draw),
                    Ok(SrvReply::NoName) => return Err(SrvError::NoName),
                    Ok(SrvReply::Refused(code)) => format!("DNS error {code}"),
                    Ok(SrvReply::Truncated | SrvReply::Malformed) => "a malformed answer".into(),
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => "timed out".into(),
                    Err(error) => error.to_string(),
                };
                failures.add(*server, cause);
            }
        }
        Err(SrvError::Failed(failures.to_string()))
    }
}

/// A random number from 0 to `max`.
fn draw(max: u32) -> Result<u32, SrvError> {
    let drawn = getrandom::u64().map_err(|error| SrvError::Failed(error.to_string()))?;
    Ok((drawn % (u64::from(max) + 1)) as u32)
}

/// Failures, each text once.
#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    fn add(&mut self, server: SocketAddr, cause: String) {
        let text = format!("{server}: {cause}");
        if !self.0.contains(&text) {
            self.0.push(text);
        }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

#[cfg(test)]
mod tests;
