//! Decides which packets pass between a peer and the networks here.
//!
//! From a peer passes what comes from its networks and goes where it may begin something, or
//! answers a flow that began here. To a peer passes what goes to its networks.

use std::{net::IpAddr, sync::Arc, time::Instant};

use crate::{
    dropped::{Reason, Verdict},
    flows::{Flows, Hosts},
    host::HostAddresses,
    packet::{Packet, Part, Transport},
    permit::Permit,
    routes::Routes,
};

/// What may pass between one peer and the networks here.
#[derive(Clone, Debug)]
pub struct Rules<P> {
    peer: P,
    routes: Arc<Routes<P>>,
    permits: Vec<Permit>,
    host: Arc<HostAddresses>,
}

impl<P: Clone + PartialEq> Rules<P> {
    /// Makes the rules of a peer, which may begin what these permits say.
    pub fn new(
        peer: P,
        routes: Arc<Routes<P>>,
        permits: Vec<Permit>,
        host: Arc<HostAddresses>,
    ) -> Self {
        Self { peer, routes, permits, host }
    }

    /// Whether a packet from the peer passes.
    ///
    /// # Errors
    /// Why it does not.
    pub fn inbound(&self, packet: &Packet<'_>, flows: &mut Flows, now: Instant) -> Verdict {
        if packet.is_martian() {
            return Err(Reason::Martian);
        }
        let hosts = Hosts { here: packet.destination(), there: packet.source() };
        if !self.is_behind_peer(hosts.there) || self.host.has(hosts.there) {
            return Err(Reason::Source);
        }
        let passes = match packet.transport() {
            Transport::IcmpError => self.is_about_sent(packet, flows, now),
            transport => {
                self.permits(hosts.here, transport) || answers_flow(hosts, packet, flows, now)
            }
        };
        if passes { Ok(()) } else { Err(Reason::Destination) }
    }

    /// Whether a packet to the peer passes. If the peer may not begin what answers it, the flow is
    /// remembered.
    ///
    /// # Errors
    /// Why it does not.
    pub fn outbound(&self, packet: &Packet<'_>, flows: &mut Flows, now: Instant) -> Verdict {
        if packet.is_martian() {
            return Err(Reason::Martian);
        }
        let hosts = Hosts { here: packet.source(), there: packet.destination() };
        if !self.is_behind_peer(hosts.there) {
            return Err(Reason::NoRoute);
        }
        let transport = packet.transport();
        if let Some(key) = hosts.begun_by(transport)
            && !self.permits(hosts.here, transport.reversed())
        {
            flows.begin(hosts, key, packet.protocol(), now);
        }
        Ok(())
    }

    /// Whether the longest prefix with this address is the peer's.
    fn is_behind_peer(&self, address: IpAddr) -> bool {
        self.routes.peer_of(address) == Some(&self.peer)
    }

    /// Whether the peer may begin this. A permit for a network does not cover this host's addresses
    /// in it: what listens there may trust the network.
    fn permits(&self, destination: IpAddr, transport: Transport) -> bool {
        let is_own = self.host.has(destination);
        let mut permits = self.permits.iter();
        permits.any(|permit| {
            permit.admits(destination, &transport) && (!is_own || permit.prefix().is_host())
        })
    }

    /// Whether an error of ICMP goes to whoever sent a packet to the peer that it quotes.
    fn is_about_sent(&self, error: &Packet<'_>, flows: &mut Flows, now: Instant) -> bool {
        let Some(quoted) = error.quoted() else { return false };
        let hosts = Hosts { here: quoted.source, there: quoted.destination };
        let is_of_flow = |key| flows.use_flow(&key, now);
        hosts.here == error.destination()
            && self.is_behind_peer(hosts.there)
            && (self.permits(hosts.here, quoted.transport.reversed())
                || hosts.begun_by(quoted.transport).is_some_and(is_of_flow))
    }
}

/// Whether a packet answers a flow that began here, and lets fragments of the answer pass.
fn answers_flow(hosts: Hosts, packet: &Packet<'_>, flows: &mut Flows, now: Instant) -> bool {
    let key = hosts.answered_by(packet.transport());
    let answers = key.is_some_and(|key| flows.use_flow(&key, now));
    if answers && packet.part() == Part::First {
        flows.allow_later(hosts, packet.protocol(), now);
    }
    answers
}

#[cfg(test)]
mod tests;
