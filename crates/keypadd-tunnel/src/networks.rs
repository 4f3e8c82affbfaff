//! The networks behind this host and a peer: the device that leads to them, what may pass, and what
//! has passed.
//!
//! A network outlives sessions. Each session to the peer attaches its device
//! (`forwards/network.rs`), and a reload changes its rules. Knows no QUIC.

mod device;
mod filter;

use std::{
    io,
    net::IpAddr,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use keypadd_network::{HostAddresses, Permit, Prefix, Reason, Routes};
use keypadd_share::{Bucket, Rate};
use keypadd_transport::{PacketDevice, Paused};
use tokio::sync::watch;
use tracing::info;

pub use self::device::attach_device;
use self::filter::Filter;
use crate::{
    handover::{DeviceRecord, HandedSocket, SocketRecord},
    wire::NetworkAnnouncement,
};

/// Peers by the networks behind them.
pub type PeerRoutes = Routes<Arc<str>>;

/// What may pass between a peer and this host.
#[derive(Clone, Debug)]
pub struct NetworkRules {
    /// What is behind the peer: packets from there are accepted from it, and packets to there go
    /// to it.
    pub networks: Vec<Prefix>,
    /// What the peer may begin here; beyond that, it may answer.
    pub permits: Vec<Permit>,
    /// The networks of all peers. One that is inside another belongs to its own peer alone.
    pub routes: Arc<PeerRoutes>,
}

/// The networks behind a peer, as long as the daemon runs.
#[derive(Debug)]
pub struct Network {
    peer: Arc<str>,
    record: DeviceRecord,
    device: PacketDevice,
    filter: Arc<Filter>,
    /// What this end accepts from the peer; `None` while nothing may pass.
    accepts: watch::Sender<Option<Vec<Prefix>>>,
    state: watch::Sender<State>,
    logged: Mutex<[Logged; Reason::ALL.len()]>,
    for_measurements: bool,
}

/// Which sessions carry a network.
#[derive(Debug, Default)]
struct State {
    /// The last one sends, all receive.
    carrying: Vec<Carrying>,
    /// What it is while there is none. A device that is lost stays so.
    otherwise: NetworkPhase,
}

/// A session that carries a network.
#[derive(Debug)]
struct Carrying {
    session: u64,
    /// What the peer has said.
    announced: Option<NetworkAnnouncement>,
}

impl State {
    fn has_lost_device(&self) -> bool {
        matches!(self.otherwise, NetworkPhase::DeviceLost(_))
    }

    fn phase(&self) -> NetworkPhase {
        match self.carrying.is_empty() || self.has_lost_device() {
            true => self.otherwise.clone(),
            false => NetworkPhase::Up,
        }
    }

    fn sending(&self) -> Option<&Carrying> {
        self.carrying.last()
    }

    fn is_carried_by(&self, session: u64) -> bool {
        self.carrying.iter().any(|carrying| carrying.session == session)
    }
}

/// Packets dropped for one reason that the log has told of.
#[derive(Clone, Copy, Debug, Default)]
struct Logged {
    packets: u64,
    lines: Bucket,
}

/// How often the log tells of packets that were dropped for one reason.
pub(crate) const DROPPED_RATE: Rate = Rate::ONE_A_MINUTE;

/// Whether packets pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NetworkPhase {
    /// There is no session with the peer, or its network is not open yet.
    #[default]
    Down,
    /// Packets pass.
    Up,
    /// The peer does not carry networks with this host; this is why.
    Refused(String),
    /// The device cannot be used any more; this is why.
    DeviceLost(String),
}

/// The status of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkStatus {
    /// The peer's name.
    pub peer: String,
    /// The name of the device.
    pub device: String,
    /// The device's MTU.
    pub mtu: u16,
    /// Whether packets pass.
    pub phase: NetworkPhase,
    /// The session that sends its packets, by its number.
    pub session: Option<u64>,
    /// What the peer accepts packets from, if it has said so.
    pub peer_accepts: Option<Vec<Prefix>>,
    /// What has passed.
    pub counts: NetworkCounts,
}

/// What a network has carried and dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounts {
    /// Packets that passed on their way to the peer, also those that then waited for too long.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that came from the peer and went to the device.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets to the peer that took more than one frame, as the path carries less.
    pub fragmented_packets: u64,
    /// Answers that say how large packets may be.
    pub too_big_answers: u64,
    /// Packets that were marked as having met congestion, since they waited for long.
    pub marked_packets: u64,
    /// Packets that were dropped, by reason.
    pub dropped: Vec<(Reason, u64)>,
}

impl Network {
    /// Uses this device. Nothing passes before [`set_rules`](Self::set_rules).
    pub fn new(peer: &str, record: DeviceRecord, device: OwnedFd) -> Self {
        let peer: Arc<str> = peer.into();
        let filter = Arc::new(Filter::new(Arc::clone(&peer), record.mtu));
        let device = PacketDevice::new(device, Arc::<Filter>::clone(&filter));
        let (accepts, state) = (watch::Sender::new(None), watch::Sender::default());
        let (logged, for_measurements) = (Mutex::default(), false);
        Self { peer, record, device, filter, accepts, state, logged, for_measurements }
    }

    /// Lets sessions for measurements carry this network, too. For programs that measure; a daemon
    /// never does it.
    #[must_use]
    pub fn for_measurements(self) -> Self {
        Self { for_measurements: true, ..self }
    }

    pub(crate) fn is_for_measurements(&self) -> bool {
        self.for_measurements
    }

    /// Sets what may pass from now on, also for what is open; `None` for nothing.
    pub fn set_rules(&self, rules: Option<NetworkRules>) {
        let accepts = rules.as_ref().map(|rules| rules.networks.clone());
        self.filter.set_rules(rules);
        self.accepts.send_if_modified(|now| std::mem::replace(now, accepts.clone()) != accepts);
    }

    /// Sets which addresses are this host's, and which of them the device's.
    pub fn set_host(&self, host: Arc<HostAddresses>, own: Vec<IpAddr>) {
        self.filter.set_host(host, own);
    }

    /// How it does.
    pub fn status(&self) -> NetworkStatus {
        let state = self.state.borrow();
        let sending = state.sending();
        let announced = sending.and_then(|sending| sending.announced.clone());
        NetworkStatus {
            peer: self.peer.to_string(),
            device: self.record.name.clone(),
            mtu: self.record.mtu,
            phase: state.phase(),
            session: sending.map(|sending| sending.session),
            peer_accepts: announced.map(|announced| announced.accepts),
            counts: self.counts(),
        }
    }

    fn counts(&self) -> NetworkCounts {
        let mut counts = self.filter.counts();
        let of_queue = self.device.carried().dropped();
        if let Some((_, queue)) = counts.dropped.iter_mut().find(|(it, _)| *it == Reason::Queue) {
            *queue += of_queue;
        }
        counts
    }

    /// Logs how many packets were dropped since it did so last, each reason once a minute at most;
    /// call it every few seconds.
    pub fn log_dropped(&self, now: Instant) {
        for (reason, packets) in self.dropped_to_log(now) {
            let (peer, device, reason) = (&*self.peer, self.device_name(), reason.label());
            info!(peer, device, reason, packets, "packets of the network dropped");
        }
    }

    fn dropped_to_log(&self, now: Instant) -> Vec<(Reason, u64)> {
        // Plain numbers, which no panic leaves half changed.
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = |(reason, count): (Reason, u64)| {
            let Logged { packets, lines } = &mut logged[reason as usize];
            let new = count.saturating_sub(*packets);
            let is_due = new > 0 && lines.take(DROPPED_RATE, now).is_ok();
            is_due.then(|| {
                *packets = count;
                (reason, new)
            })
        };
        self.counts().dropped.into_iter().filter_map(is_due).collect()
    }

    /// The device, for the process that follows.
    ///
    /// # Errors
    /// There are too few descriptors.
    pub fn hand_over(&self) -> io::Result<HandedSocket> {
        let record = SocketRecord::Device(self.record.clone());
        Ok(HandedSocket { record, socket: self.device.try_clone_device()? })
    }

    /// The device's name.
    pub fn device_name(&self) -> &str {
        &self.record.name
    }

    /// How its device was set up, if that is known.
    pub fn device_setup(&self) -> Option<&str> {
        self.record.setup.as_deref()
    }

    /// Keeps packets in the device until a new session sends them, or the returned value is
    /// dropped.
    pub(crate) fn pause(&self) -> Paused {
        self.device.pause()
    }

    /// Keeps packets of bulk flows back until the returned value is dropped.
    pub(crate) fn pause_bulk(&self) -> Paused {
        self.device.pause_bulk()
    }

    pub(crate) fn device(&self) -> PacketDevice {
        self.device.clone()
    }

    /// The networks that it accepts packets from; `None` while nothing may pass.
    pub(crate) fn accepts(&self) -> watch::Receiver<Option<Vec<Prefix>>> {
        self.accepts.subscribe()
    }

    pub(crate) fn mtu(&self) -> u16 {
        self.record.mtu
    }

    /// A session carries it, and sends, until the returned value is dropped.
    pub(crate) fn up(&self, session: u64) -> Carriage<'_> {
        self.state.send_modify(|state| {
            if !state.has_lost_device() {
                state.otherwise = NetworkPhase::Down;
            }
            state.carrying.push(Carrying { session, announced: None });
        });
        Carriage { network: self, session }
    }

    /// Waits until a session carries it, or does not any more.
    pub(crate) async fn until_carried_by(&self, session: u64, is_so: bool) {
        let carries = |state: &State| state.is_carried_by(session) == is_so;
        // Fails only if the sender is gone, and it is borrowed.
        let _ = self.state.subscribe().wait_for(carries).await;
    }

    /// Waits until a session is the one that sends, or is not any more.
    pub(crate) async fn until_sent_by(&self, session: u64, is_so: bool) {
        let sends = |state: &State| state.sending().is_some_and(|it| it.session == session);
        // Fails only if the sender is gone, and it is borrowed.
        let _ = self.state.subscribe().wait_for(|state| sends(state) == is_so).await;
    }

    /// The device cannot be used any more; returns whether that is new.
    pub(crate) fn lose_device(&self, why: String) -> bool {
        self.state.send_if_modified(|state| {
            let is_new = !state.has_lost_device();
            if is_new {
                state.otherwise = NetworkPhase::DeviceLost(why);
            }
            is_new
        })
    }

    /// Whether its device cannot be used any more: only a restart opens another one.
    pub(crate) fn has_lost_device(&self) -> bool {
        self.state.borrow().has_lost_device()
    }

    /// The peer of a new session does not carry it. Shown while no other session does.
    pub(crate) fn refused(&self, why: String) {
        self.state.send_modify(|state| {
            if !state.has_lost_device() {
                state.otherwise = NetworkPhase::Refused(why);
            }
        });
    }
}

/// A session that carries a network.
pub(crate) struct Carriage<'a> {
    network: &'a Network,
    session: u64,
}

impl Carriage<'_> {
    /// The peer has said this.
    pub(crate) fn announced(&self, announced: NetworkAnnouncement) {
        self.network.state.send_modify(|state| {
            let own = state.carrying.iter_mut().find(|it| it.session == self.session);
            if let Some(own) = own {
                own.announced = Some(announced);
            }
        });
    }
}

impl Drop for Carriage<'_> {
    fn drop(&mut self) {
        self.network.state.send_modify(|state| {
            state.carrying.retain(|carrying| carrying.session != self.session);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixDatagram, time::Duration};

    use keypadd_transport::{PacketFilter, PacketPath};

    use super::*;

    #[test]
    fn packets_dropped_for_a_reason_cause_one_line_a_minute_with_their_count() {
        let (device, _host) = UnixDatagram::pair().unwrap();
        let record = DeviceRecord { name: "tun0".into(), mtu: 1_400, setup: None };
        let network = Network::new("peer", record, device.into());
        let start = Instant::now();
        let path = PacketPath { room: 0, remote: None, now: start };
        let mut told = Vec::new();
        for second in 0..150 {
            network.filter.outbound(&mut [0; 13], path);
            let now = start + Duration::from_secs(second);
            told.extend(network.dropped_to_log(now).into_iter().map(|line| (second, line)));
        }
        let expected = [(0, 1), (60, 60), (120, 60)];
        assert_eq!(told, expected.map(|(at, count)| (at, (Reason::Malformed, count))));
        network.filter.refused_by_device();
        let now = start + Duration::from_secs(150);
        assert_eq!(network.dropped_to_log(now), [(Reason::Queue, 1)]);
        let later = now + Duration::from_secs(60);
        assert_eq!(network.dropped_to_log(later), [(Reason::Malformed, 29)]);
    }
}
