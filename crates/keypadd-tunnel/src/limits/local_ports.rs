//! Shares the local ports of connections to each target among the peers that ask for them.
//!
//! A connection has a local port for as long as it is open, and for a while after this end has
//! closed it first (TIME-WAIT, RFC 9293 3.4.1): enough quick connections of one peer would leave
//! none to the others. So each may have as many ports to a target as it leaves free
//! (`keypadd_share::Shares`). Resetting a connection instead would free its port, but TIME-WAIT
//! begins with the target's end: before that, a reset would cut what the target still sends.
//! Knows targets, peers and times; no sockets.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use keypadd_provider::PublicKey;
use keypadd_share::{Share, Shares};

use crate::net::host_ports::HostPorts;

/// The local ports of this host; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct LocalPorts {
    host: HostPorts,
    targets: Arc<Mutex<HashMap<SocketAddr, TargetPorts>>>,
}

/// The ports of connections to one target.
#[derive(Debug)]
struct TargetPorts {
    shares: Shares<PublicKey>,
    /// Ports of closed connections, and when each is free; the first one first.
    closed: VecDeque<(Instant, Share<PublicKey>)>,
}

/// The local ports as one peer may use them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerPorts<'a> {
    pub(crate) ports: &'a LocalPorts,
    pub(crate) peer: PublicKey,
}

/// The port of an open connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct LocalPort {
    of: LocalPorts,
    target: SocketAddr,
    /// Taken when it is dropped, or kept by the target.
    share: Option<Share<PublicKey>>,
}

impl Default for LocalPorts {
    fn default() -> Self {
        Self::new(HostPorts::UNLIMITED)
    }
}

impl LocalPorts {
    pub(crate) fn new(host: HostPorts) -> Self {
        Self { host, targets: Arc::default() }
    }

    /// Forgets targets without a connection; call it once a minute.
    pub(crate) fn forget(&self, now: Instant) {
        self.targets().retain(|_, target| {
            target.free(now);
            target.shares.taken() > 0
        });
    }

    /// No panic can leave the table half changed.
    fn targets(&self) -> MutexGuard<'_, HashMap<SocketAddr, TargetPorts>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TargetPorts {
    /// Gives back the ports that are free by now.
    fn free(&mut self, now: Instant) {
        while self.closed.front().is_some_and(|(free_at, _)| *free_at <= now) {
            self.closed.pop_front();
        }
    }
}

impl PeerPorts<'_> {
    /// A port for a connection to this target, if the peer's share allows.
    pub(crate) fn take(&self, target: SocketAddr, now: Instant) -> Option<LocalPort> {
        let mut targets = self.ports.targets();
        let of_target = targets.entry(target).or_insert_with(|| TargetPorts {
            shares: Shares::of_total(self.ports.host.count),
            closed: VecDeque::new(),
        });
        of_target.free(now);
        let share = of_target.shares.try_take(self.peer, 1)?;
        Some(LocalPort { of: self.ports.clone(), target, share: Some(share) })
    }
}

impl LocalPort {
    /// This end has closed the connection first: the kernel keeps its port for a while.
    pub(crate) fn closed_first(mut self, now: Instant) {
        let (share, free_at) = (self.share.take(), now + self.of.host.kept_for(self.target));
        if let Some(of_target) = self.of.targets().get_mut(&self.target) {
            of_target.closed.extend(share.map(|share| (free_at, share)));
        }
    }
}

impl Drop for LocalPort {
    /// Forgets a target with the last of its ports: a peer may try any number of targets.
    fn drop(&mut self) {
        let mut targets = self.of.targets();
        drop(self.share.take());
        if targets.get(&self.target).is_some_and(|target| target.shares.taken() == 0) {
            targets.remove(&self.target);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{iter, time::Duration};

    use super::*;
    use crate::net::host_ports::{PortReuse, TIME_WAIT};

    fn peers<const N: usize>() -> [PublicKey; N] {
        std::array::from_fn(|_| keypadd_provider::PrivateKey::generate().unwrap().public())
    }

    fn target(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Connects and closes first, until refused; returns how often.
    fn churn(ports: PeerPorts<'_>, target: SocketAddr, most: usize, now: Instant) -> usize {
        let quick = || ports.take(target, now).map(|port| port.closed_first(now));
        iter::from_fn(quick).take(most).count()
    }

    #[test]
    fn quick_connections_of_one_peer_leave_local_ports_to_the_next() {
        let ports = LocalPorts::new(HostPorts { count: 60, reuse: PortReuse::Loopback });
        let [greedy, other] = peers().map(|peer| PeerPorts { ports: &ports, peer });
        let (remote, now) = (target("192.0.2.1:80"), Instant::now());
        assert_eq!(churn(greedy, remote, 1_000, now), 30);
        assert_eq!(churn(other, remote, 10, now), 10);
        // Each target has all ports.
        assert_eq!(churn(greedy, target("192.0.2.1:81"), 1_000, now), 30);
        // They are free after a minute, whatever others do meanwhile.
        assert_eq!(churn(greedy, remote, 1_000, now + TIME_WAIT - Duration::from_millis(1)), 0);
        assert_eq!(churn(greedy, remote, 1_000, now + TIME_WAIT), 30);
        // On loopback the kernel uses them again soon.
        let local = target("127.0.0.1:80");
        assert_eq!(churn(greedy, local, 1_000, now), 30);
        assert_eq!(churn(greedy, local, 1_000, now + Duration::from_secs(2)), 30);
    }

    #[test]
    fn a_port_counts_while_its_connection_is_open_and_not_after_the_target_has_closed_it() {
        let ports = LocalPorts::new(HostPorts { count: 4, reuse: PortReuse::Never });
        let [peer] = peers().map(|peer| PeerPorts { ports: &ports, peer });
        let (target, now) = (target("192.0.2.1:80"), Instant::now());
        let open: Vec<_> = iter::from_fn(|| peer.take(target, now)).collect();
        assert_eq!(open.len(), 2);
        drop(open);
        assert_eq!(churn(peer, target, 10, now), 2);
    }

    #[test]
    fn targets_without_connections_take_no_memory() {
        let ports = LocalPorts::new(HostPorts { count: 4, reuse: PortReuse::Never });
        let [peer] = peers().map(|peer| PeerPorts { ports: &ports, peer });
        let now = Instant::now();
        for port in 1..100 {
            drop(peer.take(SocketAddr::from(([192, 0, 2, 1], port)), now));
        }
        assert!(ports.targets().is_empty());
        let open = peer.take(target("192.0.2.1:1"), now);
        churn(peer, target("192.0.2.1:2"), 1, now);
        ports.forget(now);
        assert_eq!(ports.targets().len(), 2);
        drop(open);
        ports.forget(now + TIME_WAIT);
        assert!(ports.targets().is_empty());
    }
}
