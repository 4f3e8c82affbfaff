//! Acts on what `quinn-proto` reports of a connection: its handshake, its streams and its loss.

use std::sync::Arc;

use quinn_proto::{ConnectionError, Dir, Event, StreamEvent};

use super::{Driver, lifecycle::HandshakeReply};
use crate::{
    connection,
    handshake::{Accepted, HandshakeFailed},
    mailbox::Established,
    time_share::TimeShare,
};

impl Driver {
    /// Handles events until its share of the round is used up; returns whether there may be more.
    pub(super) fn poll_events(&mut self, share: &mut TimeShare) -> bool {
        while let Some(event) = self.carrier.quic.poll() {
            let may_end_stream = matches!(
                event,
                Event::Stream(StreamEvent::Finished { .. } | StreamEvent::Stopped { .. })
            );
            match event {
                Event::Connected => self.established(),
                Event::ConnectionLost { reason } => {
                    if reason == ConnectionError::Reset {
                        (self.plan.on_reset)(self.carrier.quic.crypto_session());
                    }
                    let holds = self.plan.holds(&reason);
                    self.lose(reason, holds);
                }
                Event::Stream(event) => self.on_stream_event(event),
                Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {
                }
            }
            let is_used_up = match may_end_stream {
                true => share.is_used_up_by_now(),
                false => share.is_used_up(),
            };
            if is_used_up {
                return true;
            }
        }
        false
    }

    fn on_stream_event(&mut self, event: StreamEvent) {
        let Self { carrier, receiver, .. } = self;
        match event {
            // It was closed first: nothing would end streams that are accepted now.
            StreamEvent::Opened { .. } if carrier.lifecycle.is_lost() => {}
            StreamEvent::Opened { dir } => {
                match dir {
                    Dir::Bi => carrier.accept(),
                    Dir::Uni => carrier.accept_continuations(),
                }
                receiver.allow_more(&mut carrier.quic, dir);
            }
            StreamEvent::Readable { id } => {
                if !carrier.streams.arrived_last(id) {
                    carrier.streams.arrived(id);
                }
            }
            StreamEvent::Writable { id } => carrier.on_writable(id),
            StreamEvent::Finished { id } => carrier.on_finished(id),
            StreamEvent::Stopped { id, error_code } => carrier.on_stopped(id, error_code),
            StreamEvent::Available { .. } => carrier.open(),
        }
    }

    fn established(&mut self) {
        let (waiting, streams) = self.carrier.lifecycle.establish();
        self.sender.proved();
        self.receiver.proved(&mut self.carrier.quic);
        let proof = (self.plan.inspect)(self.carrier.quic.crypto_session());
        self.carrier.lifecycle.opening_cost =
            (self.plan.opening_cost)(self.carrier.quic.crypto_session());
        let carries_datagrams = self.carrier.quic.datagrams().max_size().is_some();
        let shared = Arc::clone(&self.shared);
        let established = Established { shared, proof, streams, carries_datagrams };
        self.publish();
        match waiting {
            // If nobody waits any more, this drops the handle, which closes the connection.
            HandshakeReply::Client(reply) => drop(reply.send(Ok(established))),
            HandshakeReply::Server(accepted) => {
                let connection = connection::Connection::new(established);
                drop(accepted.send(Accepted::Connection(connection)));
            }
            HandshakeReply::Nobody => {}
        }
    }

    /// Handles the loss of the connection; data that its streams have received is still delivered.
    pub(super) fn lose(&mut self, reason: ConnectionError, holds: bool) {
        if self.carrier.lifecycle.is_lost() {
            return;
        }
        // First: whoever waits for streams asks for the reason when there are no more.
        self.shared.ended(reason.clone());
        match self.carrier.lifecycle.lose(holds) {
            HandshakeReply::Client(reply) => drop(reply.send(Err(reason.into()))),
            HandshakeReply::Server(accepted) => {
                let remote = self.carrier.quic.remote_address();
                let failed = HandshakeFailed { remote, error: reason };
                drop(accepted.send(Accepted::Failed(failed)));
            }
            HandshakeReply::Nobody => {}
        }
        self.carrier.lose();
    }
}
