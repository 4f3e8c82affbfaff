//! Logs forwarded connections, one line each at its end, where `log-connections` is on.
//!
//! These lines have no rate limit: whoever switches them on wants all of them, and a log with gaps accounts
//! for nothing. Knows no sockets: what was carried and how it ended is told.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use keypadd_transport::Carried;
use tracing::info;

use crate::{forwards::splice::SpliceError, limits::Limits, wire::StreamCode};

/// How a connection ended that carried nothing.
const NO_SESSION: &str = "no session within 10s";
const GAVE_UP: &str = "closed before the target answered";

/// A forwarded connection; logged when this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionRecord {
    /// None where nothing is logged.
    text: Option<Box<RecordText>>,
    carried: Option<Arc<Carried>>,
}

#[derive(Debug)]
struct RecordText {
    began: Instant,
    peer: Option<String>,
    forward: Option<String>,
    target: Option<String>,
    from: Option<SocketAddr>,
    ended: Option<String>,
}

impl ConnectionRecord {
    /// A connection that begins now.
    pub(crate) fn new(limits: &Limits) -> Self {
        let text = limits.logs_connections().then(|| {
            let (peer, forward, target, from, ended) = (None, None, None, None, None);
            Box::new(RecordText { began: Instant::now(), peer, forward, target, from, ended })
        });
        Self { text, carried: None }
    }

    /// The peer whose session carries it.
    pub(crate) fn set_peer(&mut self, peer: &str) {
        self.note(|text| text.peer = Some(peer.into()));
    }

    /// The forward that accepted it here, and where it comes from.
    pub(crate) fn set_forward(&mut self, forward: &str, from: Option<SocketAddr>) {
        self.note(|text| (text.forward, text.from) = (Some(forward.into()), from));
    }

    /// Where it leads.
    pub(crate) fn set_target(&mut self, target: &str) {
        self.note(|text| text.target = Some(target.into()));
    }

    /// Its bytes are counted here from now on.
    pub(crate) fn set_carried(&mut self, carried: Arc<Carried>) {
        self.carried = Some(carried);
    }

    /// Whether its socket, a target's, was ended by the other side of it before a byte came.
    pub(crate) fn is_mute(&self) -> bool {
        let is_mute =
            |carried: &Arc<Carried>| carried.from_socket() == 0 && carried.socket_ended_first();
        self.carried.as_ref().is_some_and(is_mute)
    }

    /// The other end could not connect it.
    pub(crate) fn refused(&mut self, code: StreamCode) {
        self.note(|text| text.ended = Some(format!("refused: {code}")));
    }

    /// No session came to carry it.
    pub(crate) fn no_session(&mut self) {
        self.note(|text| text.ended = Some(NO_SESSION.into()));
    }

    /// It failed or was closed before it was connected.
    pub(crate) fn gave_up(&mut self) {
        self.note(|text| text.ended = Some(GAVE_UP.into()));
    }

    /// What it carried has come to this end.
    pub(crate) fn ended(&mut self, outcome: &Result<(), SpliceError>) {
        let held = self.carried.as_ref().is_some_and(|carried| carried.is_held());
        self.note(|text| {
            text.ended = Some(match outcome {
                Ok(()) => "closed".into(),
                Err(SpliceError::Local(error)) => format!("failed here: {error}"),
                Err(SpliceError::Remote(code)) => format!("reset by the peer: {code}"),
                Err(SpliceError::Lost) if held => {
                    "held, then reset: the peer did not return".into()
                }
                Err(SpliceError::Lost) => "connection to the peer lost".into(),
            });
        });
    }

    fn note(&mut self, note: impl FnOnce(&mut RecordText)) {
        if let Some(text) = &mut self.text {
            note(text);
        }
    }
}

impl Drop for ConnectionRecord {
    fn drop(&mut self) {
        let Some(text) = self.text.take() else { return };
        let RecordText { began, peer, forward, target, from, ended } = *text;
        let bytes = |count: fn(&Carried) -> u64| self.carried.as_deref().map_or(0, count);
        info!(
            peer,
            forward,
            from = from.map(tracing::field::display),
            target,
            sent_bytes = bytes(Carried::from_socket),
            received_bytes = bytes(Carried::to_socket),
            seconds = began.elapsed().as_millis() as f64 / 1e3,
            // Its task was dropped.
            ended = ended.as_deref().unwrap_or("cut: shutting down"),
            "connection"
        );
    }
}
