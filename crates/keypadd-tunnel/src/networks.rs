//! The networks behind this host and a peer: the device that leads to them, what may pass, and what
//! has passed.
//!
//! A network outlives sessions. Each session to the peer attaches its device
//! (`forwards/network.rs`), and a reload changes its rules. Knows no QUIC.

mod filter;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use keypadd_network::{HostAddresses, Permit, Prefix, Reason, Routes};
use keypadd_transport::{PacketDevice, Paused};
use tokio::sync::watch;

use self::filter::Filter;
use crate::{
    handover::{HandedSocket, SocketRecord},
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
    device_name: String,
    mtu: u16,
    device: PacketDevice,
    filter: Arc<Filter>,
    /// What this end accepts from the peer; `None` while nothing may pass.
    accepts: watch::Sender<Option<Vec<Prefix>>>,
    state: Mutex<State>,
}

/// How a network does, as of its newest session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    /// How many sessions have carried it.
    sessions: u64,
    phase: NetworkPhase,
    /// What the peer has said.
    announced: Option<NetworkAnnouncement>,
}

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
    /// What the peer accepts packets from, if it has said so.
    pub peer_accepts: Option<Vec<Prefix>>,
    /// What has passed.
    pub counts: NetworkCounts,
}

/// What a network has carried and dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounts {
    /// Packets that went to the peer.
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
    /// Packets that were dropped, by reason.
    pub dropped: Vec<(Reason, u64)>,
}

impl Network {
    /// Uses a device that has this name and MTU. Nothing passes before
    /// [`set_rules`](Self::set_rules).
    pub fn new(peer: &str, device_name: String, mtu: u16, device: OwnedFd) -> Self {
        let peer: Arc<str> = peer.into();
        let filter = Arc::new(Filter::new(Arc::clone(&peer), mtu));
        let device = PacketDevice::new(device, Arc::<Filter>::clone(&filter));
        let accepts = watch::Sender::new(None);
        Self { peer, device_name, mtu, device, filter, accepts, state: Mutex::default() }
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
        let State { sessions: _, phase, announced } = self.state().clone();
        let mut counts = self.filter.counts();
        let of_queue = self.device.carried().dropped();
        if let Some((_, queue)) = counts.dropped.iter_mut().find(|(it, _)| *it == Reason::Queue) {
            *queue += of_queue;
        }
        NetworkStatus {
            peer: self.peer.to_string(),
            device: self.device_name.clone(),
            mtu: self.mtu,
            phase,
            peer_accepts: announced.map(|announced| announced.accepts),
            counts,
        }
    }

    /// The device, for the process that follows.
    ///
    /// # Errors
    /// There are too few descriptors.
    pub fn hand_over(&self) -> io::Result<HandedSocket> {
        let record = SocketRecord::Device { name: self.device_name.clone(), mtu: self.mtu };
        Ok(HandedSocket { record, socket: self.device.try_clone_device()? })
    }

    /// The device's name.
    pub fn device_name(&self) -> &str {
        &self.device_name
    }

    /// Keeps packets in the device until a new session carries it, or the returned value is
    /// dropped.
    pub(crate) fn pause(&self) -> Paused {
        self.device.pause()
    }

    pub(crate) fn device(&self) -> PacketDevice {
        self.device.clone()
    }

    /// The networks that it accepts packets from; `None` while nothing may pass.
    pub(crate) fn accepts(&self) -> watch::Receiver<Option<Vec<Prefix>>> {
        self.accepts.subscribe()
    }

    pub(crate) fn mtu(&self) -> u16 {
        self.mtu
    }

    /// A session with a peer at this address carries it, until the returned value is dropped.
    pub(crate) fn up(&self, remote: SocketAddr) -> Carriage<'_> {
        self.filter.set_remote(remote);
        let mut state = self.state();
        let number = state.sessions + 1;
        *state = State { sessions: number, phase: NetworkPhase::Up, announced: None };
        Carriage { network: self, number, ends_as: NetworkPhase::Down }
    }

    /// Whether its device cannot be used any more: only a restart opens another one.
    pub(crate) fn has_lost_device(&self) -> bool {
        matches!(self.state().phase, NetworkPhase::DeviceLost(_))
    }

    /// The peer of a new session does not carry it. Changes nothing while another session does.
    pub(crate) fn refused(&self, why: String) {
        let mut state = self.state();
        if state.phase != NetworkPhase::Up {
            state.phase = NetworkPhase::Refused(why);
        }
    }

    /// No panic leaves it half changed.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session that carries a network. Where a newer one does, too, that one's state is shown.
pub(crate) struct Carriage<'a> {
    network: &'a Network,
    number: u64,
    /// What the network is when it is dropped.
    pub(crate) ends_as: NetworkPhase,
}

impl Carriage<'_> {
    /// The peer has said this.
    pub(crate) fn announced(&self, announced: NetworkAnnouncement) {
        let mut state = self.network.state();
        if state.sessions == self.number {
            state.announced = Some(announced);
        }
    }
}

impl Drop for Carriage<'_> {
    fn drop(&mut self) {
        let mut state = self.network.state();
        if state.sessions == self.number {
            (state.phase, state.announced) = (self.ends_as.clone(), None);
        }
    }
}
