//! Decides how to answer clients: their handshakes begin, or they are challenged, refused or
//! ignored.
//!
//! Knows addresses, counts and the handshakes in progress; sends no packets.

use std::{net::SocketAddr, time::Instant};

use quinn_proto::{Incoming, ServerConfig};

use super::{EndpointShared, loop_io::HANDSHAKE_BYTES_MAX};
use crate::{
    admission::{Admission, Handshakes},
    cid::Purpose,
    handshake::Refusal,
    splice::Key,
};

/// A client's other packets that are kept while it waits for its handshake, and those of all: one,
/// in which a post-quantum key exchange ends. They are handled with the first one, whatever time it
/// takes.
const INCOMING_BYTES: u64 = HANDSHAKE_BYTES_MAX as u64;
const INCOMING_BYTES_TOTAL: u64 = 1 << 20;

/// How clients are answered now, and the handshakes that have begun.
pub(super) struct AdmissionControl {
    /// The handshake of this end as a server, if it is one.
    pub(super) server: Option<ServerConfig>,
    pub(super) handshakes: Handshakes<Key>,
    pub(super) refusing: bool,
}

/// A client that wants to begin a handshake.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    remote: SocketAddr,
    purpose: Purpose,
    /// Whether it has shown that it receives at its address (RFC 9000 8.1).
    is_validated: bool,
    /// Whether it can be asked to show that.
    may_retry: bool,
}

impl Client {
    pub(super) fn of(incoming: &Incoming) -> Self {
        Self {
            remote: incoming.remote_address(),
            purpose: Purpose::of(incoming.orig_dst_cid()),
            is_validated: incoming.remote_address_validated(),
            may_retry: incoming.may_retry(),
        }
    }
}

/// What to do with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Its handshake may begin, now or later.
    Admit,
    /// Require it to validate its address.
    Retry,
    Refuse,
    Ignore,
}

impl AdmissionControl {
    pub(super) fn new(handshakes_max: usize) -> Self {
        let handshakes = Handshakes::with_slots(handshakes_max);
        Self { server: None, handshakes, refusing: false }
    }

    /// Changes the configuration of handshakes that begin from now on.
    pub(super) fn set_server(&mut self, mut config: Option<ServerConfig>) {
        if let Some(config) = &mut config {
            config.incoming_buffer_size(INCOMING_BYTES);
            config.incoming_buffer_size_total(INCOMING_BYTES_TOTAL);
        }
        self.server = config;
    }

    /// How to answer a client; counts and reports it if it is refused or ignored.
    pub(super) fn answer(&self, shared: &EndpointShared, client: Client, now: Instant) -> Answer {
        let Client { remote, purpose, is_validated, may_retry } = client;
        if self.refusing {
            return Answer::Refuse;
        }
        if shared.counters.clients(purpose).count() >= shared.plan.connections_max {
            shared.refused(remote, Refusal::Full);
            return Answer::Refuse;
        }
        match self.handshakes.decide(remote.ip(), is_validated, now) {
            Admission::Retry if may_retry => Answer::Retry,
            Admission::Retry | Admission::Accept => Answer::Admit,
            Admission::Wait => {
                shared.refused(remote, Refusal::Crowded);
                Answer::Ignore
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::Arc};

    use tokio::sync::mpsc;

    use super::*;
    use crate::{
        admission::SLOTS,
        counters::Counters,
        handshake::Accepted,
        settings::{EndpointSettings, MemoryBudgets, Plan},
        token_key::TokenKey,
    };

    fn shared(connections_max: usize) -> (EndpointShared, mpsc::UnboundedReceiver<Accepted>) {
        let (accepted, events) = mpsc::unbounded_channel();
        let plan = Arc::new(Plan { connections_max, ..Plan::plain() });
        let counters = Arc::new(Counters::new(Instant::now()));
        let egress = EndpointSettings::plain(Vec::new(), None).egress;
        let (memory, token_key) = (MemoryBudgets::default(), Arc::new(TokenKey::new(egress)));
        (EndpointShared { plan, memory, counters, accepted, token_key }, events)
    }

    fn client(host: u32, purpose: Purpose) -> Client {
        let address = Ipv4Addr::from(0x0a00_0000 + host);
        let remote = SocketAddr::new(address.into(), 1);
        Client { remote, purpose, is_validated: true, may_retry: false }
    }

    #[test]
    fn only_lanes_that_have_their_clients_refuse_more() {
        let (admission, (shared, mut events)) = (AdmissionControl::new(SLOTS), shared(1));
        let now = Instant::now();
        assert_eq!(admission.answer(&shared, client(1, Purpose::Sparse), now), Answer::Admit);
        let counted = shared.counters.clients(Purpose::Sparse).begin();
        assert_eq!(admission.answer(&shared, client(1, Purpose::Sparse), now), Answer::Refuse);
        assert!(matches!(events.try_recv(), Ok(Accepted::Refused(_, Refusal::Full))));
        assert_eq!(shared.counters.refusals().full, 1);
        assert_eq!(admission.answer(&shared, client(1, Purpose::Bulk), now), Answer::Admit);
        drop(counted);
        assert_eq!(admission.answer(&shared, client(1, Purpose::Sparse), now), Answer::Admit);
        assert!(events.try_recv().is_err());
    }

    #[test]
    fn an_end_that_refuses_everyone_does_so_without_a_word() {
        let (mut admission, (shared, mut events)) = (AdmissionControl::new(SLOTS), shared(0));
        admission.refusing = true;
        assert_eq!(
            admission.answer(&shared, client(1, Purpose::Sparse), Instant::now()),
            Answer::Refuse
        );
        assert!(events.try_recv().is_err());
        assert_eq!(shared.counters.refusals().full, 0);
    }

    #[test]
    fn a_client_beside_others_validates_its_address_if_it_can() {
        let (mut admission, (shared, _events)) = (AdmissionControl::new(SLOTS), shared(16));
        let now = Instant::now();
        for handle in 0..8 {
            let key = Key { handle, serial: handle as u64 };
            admission.handshakes.add(Some(key), client(handle as u32, Purpose::Sparse).remote, now);
        }
        let unknown =
            Client { is_validated: false, may_retry: true, ..client(99, Purpose::Sparse) };
        assert_eq!(admission.answer(&shared, unknown, now), Answer::Retry);
        assert_eq!(
            admission.answer(&shared, Client { may_retry: false, ..unknown }, now),
            Answer::Admit
        );
        assert_eq!(
            admission.answer(&shared, Client { is_validated: true, ..unknown }, now),
            Answer::Admit
        );
    }

    #[test]
    fn in_a_crowd_an_address_that_has_just_begun_is_ignored() {
        let (mut admission, (shared, mut events)) = (AdmissionControl::new(SLOTS), shared(16));
        let now = Instant::now();
        for serial in 0..512 {
            let key = Key { handle: 0, serial };
            admission.handshakes.add(Some(key), client(serial as u32, Purpose::Sparse).remote, now);
        }
        assert_eq!(admission.answer(&shared, client(1, Purpose::Sparse), now), Answer::Ignore);
        assert!(matches!(events.try_recv(), Ok(Accepted::Refused(_, Refusal::Crowded))));
        assert_eq!(shared.counters.refusals().crowded, 1);
        assert_eq!(admission.answer(&shared, client(1 << 16, Purpose::Sparse), now), Answer::Admit);
    }
}
