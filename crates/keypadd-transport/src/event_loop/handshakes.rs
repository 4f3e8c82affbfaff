//! Starts handshakes: connects, and lets clients begin theirs.

use std::{sync::Arc, time::Instant};

use quinn_proto::{ConnectError, ConnectionError, Incoming, ServerConfig};
use tokio::sync::oneshot;
use tracing::debug;

use super::{
    EventLoop,
    admission_control::{Answer, Client},
    connection_limits::limits,
    drive::Peer,
    slot::Standing,
};
use crate::{
    cid::Purpose,
    datagrams::Datagrams,
    dial::Dial,
    driver::HandshakeReply,
    handshake::Refusal,
    intake::Step,
    mailbox::{Opened, PendingConnection},
    token_key::TokenKey,
};

impl<U: Datagrams> EventLoop<U> {
    pub(crate) fn set_server(&mut self, mut config: Option<ServerConfig>) {
        if let Some(config) = &mut config {
            config.token_key(Arc::<TokenKey>::clone(&self.shared.token_key));
        }
        self.admission.set_server(config);
        self.endpoint.set_server_config(self.admission.server.clone().map(Arc::new));
    }

    pub(super) fn connect(
        &mut self,
        dial: Dial,
        reply: oneshot::Sender<Result<Opened, ConnectError>>,
        now: Instant,
    ) {
        let Dial { mut config, address, server_name, purpose, rtt, home: _ } = dial;
        self.begin_epoch();
        let (limits, mut transport) = limits(&self.shared, address, purpose, now);
        if let Some(rtt) = rtt {
            transport.initial_rtt(rtt);
        }
        config.transport_config(Arc::new(transport));
        match self.endpoint.connect(now, config, address, server_name) {
            Ok(made) => {
                let (established, wait) = oneshot::channel();
                let waiting = HandshakeReply::Client(established);
                let peer = Peer { remote: address, purpose, standing: Standing::Dialed, waiting };
                let shared = self.add(made, limits, peer);
                let attempt = PendingConnection(Some(shared));
                // If nobody waits, this drops the attempt, which closes it.
                let _ = reply.send(Ok(Opened { attempt, established: wait }));
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Handles a client's first packet: it waits for its handshake.
    pub(super) fn incoming(&mut self, incoming: Incoming, now: Instant) {
        let Some(incoming) = self.admit(incoming, now) else { return };
        let address = incoming.remote_address().ip();
        let load = self.admission.handshakes.load(address);
        if let Some(ignored) = self.intake.newcomers.push(incoming, address, load) {
            self.shared.refused(ignored.remote_address(), Refusal::Crowded);
            self.endpoint.ignore(ignored);
        }
    }

    /// Continues and begins clients' handshakes, for a share of the round that is short and not
    /// empty.
    pub(super) fn shake_hands(&mut self, now: Instant) {
        let [mut strangers, mut newcomers] = self.intake.shares([Step::Strangers, Step::Newcomers]);
        while let Some((key, event, len)) = self.intake.strangers.pop_next() {
            self.handle_alone(key, event, len, now);
            if strangers.is_used_up_by_now() {
                break;
            }
        }
        while let Some(incoming) =
            self.intake.newcomers.pop(|it| self.admission.handshakes.load(it))
        {
            // Apply what the owner changed before this client spoke.
            self.commands(now);
            if let Some(incoming) = self.admit(incoming, now) {
                self.begin(incoming, now);
            }
            if newcomers.is_used_up_by_now() {
                break;
            }
        }
    }

    /// Returns the client if its handshake may begin, now or later; otherwise answers it.
    fn admit(&mut self, incoming: Incoming, now: Instant) -> Option<Incoming> {
        self.io.buffer.clear();
        match self.admission.answer(&self.shared, Client::of(&incoming), now) {
            Answer::Admit => return Some(incoming),
            Answer::Retry => {
                if let Ok(transmit) = self.endpoint.retry(incoming, &mut self.io.buffer) {
                    self.io.respond(transmit);
                }
            }
            Answer::Refuse => {
                let transmit = self.endpoint.refuse(incoming, &mut self.io.buffer);
                self.io.respond(transmit);
            }
            Answer::Ignore => self.endpoint.ignore(incoming),
        }
        None
    }

    /// Begins a client's handshake.
    fn begin(&mut self, incoming: Incoming, now: Instant) {
        let remote = incoming.remote_address();
        let purpose = Purpose::of(incoming.orig_dst_cid());
        self.begin_epoch();
        if let Some(key) = self.admission.handshakes.make_room(remote.ip()) {
            self.give_up(key, Refusal::Displaced);
        }
        let Some(mut config) = self.admission.server.clone() else {
            return self.endpoint.ignore(incoming);
        };
        let (limits, transport) = limits(&self.shared, remote, purpose, now);
        config.transport_config(Arc::new(transport));
        let (config, buffer) = (Some(Arc::new(config)), &mut self.io.buffer);
        buffer.clear();
        match self.endpoint.accept(incoming, now, buffer, config) {
            Ok(made) => {
                let waiting = HandshakeReply::Server(self.shared.accepted.clone());
                let peer = Peer { remote, purpose, standing: Standing::Stranger, waiting };
                let shared = self.add(made, limits, peer);
                self.admission.handshakes.add(Some(shared.key), remote, now);
            }
            Err(error) => {
                debug!(%remote, error = %error.cause, "not accepted");
                self.admission.handshakes.add(None, remote, now);
                if let Some(transmit) = error.response {
                    self.io.respond(transmit);
                }
            }
        }
    }

    /// Begins the current epoch if it is a new one. Called before keys are made, so that no
    /// connection counts as made in a later epoch than it was.
    ///
    /// Drops the handshakes of clients that can no longer be answered: their places are for others.
    pub(super) fn begin_epoch(&mut self) {
        if self.io.udp.begin_epoch() {
            for key in self.connections.strangers() {
                self.remove(key, ConnectionError::TimedOut);
            }
        }
    }
}
