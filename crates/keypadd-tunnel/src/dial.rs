//! A server's way to a target: resolve, compare with the permits, connect.
//!
//! Only addresses that passed the comparison are dialled, so that no second look at DNS can lead
//! elsewhere (invariant I10). Knows nothing of streams.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{
    net::{TcpStream, lookup_host},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    permit::Permits,
    target::{Host, LOOPBACK, Target},
    wire::StreamCode,
};

/// Time for resolving and connecting together.
const DIAL_TIME: Duration = Duration::from_secs(10);

/// Connects to a target if the permits admit it; the code says why not.
pub(crate) async fn dial(target: &Target, permits: &Permits) -> Result<TcpStream, StreamCode> {
    let deadline = Instant::now() + DIAL_TIME;
    let permitted = timeout_at(deadline, permitted_addresses(target, permits));
    let addresses = permitted.await.map_err(|_| StreamCode::TimedOut)??;
    connect_any(&addresses, deadline).await
}

/// The addresses of the target that may be connected to; at least one.
async fn permitted_addresses(
    target: &Target,
    permits: &Permits,
) -> Result<Vec<SocketAddr>, StreamCode> {
    // A target that no permit can admit is not worth a question to DNS.
    if !permits.may_admit_port(target.port) {
        return Err(StreamCode::NotPermitted);
    }
    let asked = resolve(&target.host, target.port).await.map_err(|_| StreamCode::NameNotFound)?;

    let mut names: HashMap<&str, Vec<IpAddr>> = HashMap::new();
    let admitted = |address: &SocketAddr, names: &HashMap<&str, Vec<IpAddr>>| {
        permits.admits(target, address.ip(), |name| names.get(name).map_or(&[], Vec::as_slice))
    };
    if !asked.iter().all(|address| admitted(address, &names)) {
        for name in permits.names_to_resolve(target) {
            let host = Host::Name(name.into());
            // A permitted name that does not resolve permits nothing.
            let addresses = resolve(&host, target.port).await.unwrap_or_default();
            names.insert(name, addresses.iter().map(SocketAddr::ip).collect());
        }
    }
    let permitted: Vec<_> = asked.into_iter().filter(|address| admitted(address, &names)).collect();
    if permitted.is_empty() { Err(StreamCode::NotPermitted) } else { Ok(permitted) }
}

/// All addresses of a host; `localhost` is never asked of DNS.
pub(crate) async fn resolve(host: &Host, port: u16) -> io::Result<Vec<SocketAddr>> {
    let name = match host {
        Host::Address(address) => return Ok(vec![SocketAddr::new(*address, port)]),
        host if host.is_localhost() => {
            return Ok(LOOPBACK.map(|address| SocketAddr::new(address, port)).to_vec());
        }
        Host::Name(name) => name,
    };
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in lookup_host((name.as_str(), port)).await? {
        // An IPv6 scope stays: link-local addresses mean nothing without it.
        let plain = match address.ip().to_canonical() {
            IpAddr::V4(v4) => SocketAddr::from((v4, port)),
            IpAddr::V6(_) => address,
        };
        if !addresses.contains(&plain) {
            addresses.push(plain);
        }
    }
    if addresses.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(addresses) }
}

/// Tries the addresses in turn; each gets its share of the time that is left.
async fn connect_any(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, StreamCode> {
    let mut failure = StreamCode::Unreachable;
    for (tried, address) in addresses.iter().enumerate() {
        let share = share_of(deadline, addresses.len() - tried);
        let code = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) if !is_self_connected(&stream) => return Ok(stream),
            // A loopback port that nobody listens on can be given to its own caller.
            Ok(Ok(_)) => StreamCode::Refused,
            Ok(Err(error)) => code_of(&error),
            Err(_) => StreamCode::TimedOut,
        };
        // What says most about the target: it refused, or stayed silent, or was not found.
        failure = match (failure, code) {
            (StreamCode::Refused, _) => StreamCode::Refused,
            (failure, StreamCode::Unreachable) => failure,
            (_, code) => code,
        };
    }
    Err(failure)
}

/// An equal part of the time that is left, for one of `left` attempts.
pub(crate) fn share_of(deadline: Instant, left: usize) -> Duration {
    let left = u32::try_from(left.max(1)).unwrap_or(u32::MAX);
    deadline.saturating_duration_since(Instant::now()) / left
}

fn is_self_connected(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer)
}

fn code_of(error: &io::Error) -> StreamCode {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => StreamCode::Refused,
        io::ErrorKind::ConnectionReset => StreamCode::Reset,
        io::ErrorKind::TimedOut => StreamCode::TimedOut,
        _ => StreamCode::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    async fn try_dial(asked: String, permits: &[&str]) -> Result<SocketAddr, StreamCode> {
        let permits = permits.iter().map(|permit| permit.parse().unwrap()).collect();
        let stream = dial(&asked.parse().unwrap(), &permits).await?;
        Ok(stream.peer_addr().unwrap())
    }

    #[tokio::test]
    async fn localhost_goes_to_the_permitted_one_of_its_addresses() {
        let (listener, port) = listener().await;
        let address = listener.local_addr().unwrap();
        let only_v4: &str = &format!("127.0.0.1:{port}");
        assert_eq!(try_dial(format!("localhost:{port}"), &[only_v4]).await, Ok(address));
        assert_eq!(try_dial(format!("LOCALHOST.:{port}"), &["localhost:*"]).await, Ok(address));
        // ::1 is permitted, nobody listens there, and 127.0.0.1 is not tried instead.
        let only_v6: &str = &format!("[::1]:{port}");
        let refused = try_dial(format!("localhost:{port}"), &[only_v6]).await;
        assert_eq!(refused, Err(StreamCode::Refused));
    }

    #[tokio::test]
    async fn what_no_permit_names_is_not_dialled() {
        let (_listener, port) = listener().await;
        for permits in [&[][..], &["*:1"], &["10.0.0.0/8:*"], &["[::1]:*"], &["127.0.0.2:*"]] {
            let refused = try_dial(format!("127.0.0.1:{port}"), permits).await;
            assert_eq!(refused, Err(StreamCode::NotPermitted), "{permits:?}");
        }
    }

    #[tokio::test]
    async fn a_closed_port_is_refused_and_a_bad_name_not_found() {
        let (listener, port) = listener().await;
        drop(listener);
        let refused = try_dial(format!("127.0.0.1:{port}"), &["*:*"]).await;
        assert_eq!(refused, Err(StreamCode::Refused));
        let unknown = try_dial("no-such-name.invalid:1".into(), &["*:*"]).await;
        assert_eq!(unknown, Err(StreamCode::NameNotFound));
    }
}
