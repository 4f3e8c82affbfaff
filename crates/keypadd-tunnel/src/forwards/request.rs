//! Handles a stream that the other end opened to a target of this end, until the target is
//! connected: reserves the descriptors that the connection needs, or refuses with a code.

use keypadd_transport::Stream;
use tracing::{debug, warn};

use crate::{
    forwards::connection_log::ConnectionRecord,
    limits::descriptors::Descriptors,
    sessions::{counts::ConnectionCount, session::LiveSession},
    wire::StreamCode,
};

/// A stream that requests a target.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) session: &'a LiveSession,
    /// The target or the forward, as counted and logged.
    pub(crate) name: &'a str,
    pub(crate) stream: Stream,
    pub(crate) record: ConnectionRecord,
}

/// A request whose target is connected.
pub(crate) struct Connected<S> {
    pub(crate) socket: S,
    pub(crate) stream: Stream,
    pub(crate) record: ConnectionRecord,
    /// Kept for as long as the connection.
    pub(crate) claimed: (Descriptors, ConnectionCount),
}

impl Request<'_> {
    /// Resets the stream with the code, which it returns.
    pub(crate) fn refuse(mut self, code: StreamCode) -> StreamCode {
        let Self { session, name, .. } = self;
        debug!(peer = session.peer(), target = name, %code, "could not connect");
        if code == StreamCode::LocalPorts && session.may_log_local_ports(name) {
            warn!(
                peer = session.peer(),
                target = name,
                "no local port is left for another connection of this peer to this target: widen \
                 net.ipv4.ip_local_port_range; closed TCP connections keep theirs for a minute, \
                 unless net.ipv4.tcp_tw_reuse is 1"
            );
        }
        self.record.set_peer(session.peer());
        self.record.refused(code);
        self.stream.reset(code.into());
        code
    }

    /// Connects to the target with `dialing`, which uses the reserved `descriptors`, unless the
    /// other end gives up first.
    ///
    /// # Errors
    /// The code with which the stream was reset.
    pub(crate) async fn connect<S>(
        mut self,
        descriptors: usize,
        dialing: impl Future<Output = Result<S, StreamCode>>,
    ) -> Result<Connected<S>, StreamCode> {
        let Some(descriptors) = self.session.descriptors(descriptors).await else {
            return Err(self.refuse(StreamCode::OpenFiles));
        };
        let count = self.session.count_connection(self.name);
        let stopped = self.stream.send.stopped();
        let dialed = tokio::select! {
            dialed = dialing => dialed,
            _ = stopped => Err(StreamCode::Reset),
        };
        match dialed {
            Ok(socket) => {
                self.record.set_peer(self.session.peer());
                let Self { stream, record, .. } = self;
                Ok(Connected { socket, stream, record, claimed: (descriptors, count) })
            }
            Err(code) => Err(self.refuse(code)),
        }
    }
}
