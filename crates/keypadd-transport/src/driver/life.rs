//! Says how far a connection has come: from its handshake to its loss.
//!
//! | from        | the handshake is complete | it is lost |
//! | ----------- | ------------------------- | ---------- |
//! | handshaking | up                        | lost       |
//! | up          | -                         | lost       |
//! | lost        | lost, but proved          | -          |

use std::time::Duration;

use quinn_proto::ConnectionError;
use tokio::sync::{mpsc, oneshot};

use crate::{handshake::Accepted, mailbox::Established, stream::Stream};

/// Who waits for the handshake.
pub(crate) enum HandshakeReply {
    /// Nobody any more.
    Nobody,
    Client(oneshot::Sender<Result<Established, ConnectionError>>),
    Server(mpsc::UnboundedSender<Accepted>),
}

enum Stage {
    Handshaking(HandshakeReply),
    /// Has the way of the streams that the peer opens.
    Up(mpsc::UnboundedSender<Stream>),
    Lost {
        /// The handshake was complete.
        proved: bool,
        /// It was lost in a way that lets its streams be held.
        holds: bool,
    },
}

/// How far a connection has come.
pub(super) struct Life {
    stage: Stage,
    /// CPU time that opening a full datagram takes; none before the handshake is complete.
    pub(super) opening_cost: Duration,
}

impl Life {
    pub(super) fn new(waiting: HandshakeReply) -> Self {
        Self { stage: Stage::Handshaking(waiting), opening_cost: Duration::ZERO }
    }

    /// The handshake is complete. Returns who waits for it, and what the peer opens from now on.
    pub(super) fn establish(&mut self) -> (HandshakeReply, mpsc::UnboundedReceiver<Stream>) {
        let (incoming, streams) = mpsc::unbounded_channel();
        let waiting = match &mut self.stage {
            Stage::Handshaking(waiting) => std::mem::replace(waiting, HandshakeReply::Nobody),
            Stage::Up(_) | Stage::Lost { .. } => HandshakeReply::Nobody,
        };
        match &mut self.stage {
            Stage::Handshaking(_) | Stage::Up(_) => self.stage = Stage::Up(incoming),
            Stage::Lost { proved, holds: _ } => *proved = true,
        }
        (waiting, streams)
    }

    /// The connection is lost; only the first time counts. Returns who waits for the handshake.
    pub(super) fn lose(&mut self, holds: bool) -> HandshakeReply {
        let (waiting, proved) = match &mut self.stage {
            Stage::Handshaking(waiting) => {
                (std::mem::replace(waiting, HandshakeReply::Nobody), false)
            }
            Stage::Up(_) => (HandshakeReply::Nobody, true),
            Stage::Lost { .. } => return HandshakeReply::Nobody,
        };
        self.stage = Stage::Lost { proved, holds };
        waiting
    }

    /// Whether the peer has proved a key, and the connection is not lost.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up(_))
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.stage, Stage::Lost { .. })
    }

    /// Whether the peer has proved a key.
    pub(super) fn is_proved(&self) -> bool {
        match self.stage {
            Stage::Handshaking(_) => false,
            Stage::Up(_) => true,
            Stage::Lost { proved, holds: _ } => proved,
        }
    }

    /// Whether the connection was lost in a way that lets its streams be held.
    pub(super) fn holds(&self) -> bool {
        matches!(self.stage, Stage::Lost { holds: true, .. })
    }

    /// Passes on a stream that the peer has opened. If nobody accepts it, this drops the handle,
    /// which resets the stream.
    pub(super) fn accept(&self, stream: Stream) {
        if let Stage::Up(incoming) = &self.stage {
            let _ = incoming.send(stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_up_between_its_handshake_and_its_loss() {
        let (reply, _answer) = oneshot::channel();
        let mut life = Life::new(HandshakeReply::Client(reply));
        assert!(!life.is_up() && !life.is_proved() && !life.is_lost());
        let (waiting, _) = life.establish();
        assert!(matches!(waiting, HandshakeReply::Client(_)));
        assert!(life.is_up() && life.is_proved() && !life.is_lost() && !life.holds());
        assert!(matches!(life.lose(true), HandshakeReply::Nobody));
        assert!(!life.is_up() && life.is_proved() && life.is_lost() && life.holds());
        assert!(matches!(life.lose(false), HandshakeReply::Nobody));
        assert!(life.holds(), "only the first loss counts");
    }

    #[test]
    fn whoever_waits_for_a_handshake_learns_of_the_loss_instead() {
        let (reply, _answer) = oneshot::channel();
        let mut life = Life::new(HandshakeReply::Client(reply));
        assert!(matches!(life.lose(false), HandshakeReply::Client(_)));
        assert!(life.is_lost() && !life.is_proved() && !life.holds());
        let (waiting, _) = life.establish();
        assert!(matches!(waiting, HandshakeReply::Nobody));
        assert!(life.is_lost() && life.is_proved(), "what was under way still counts");
    }
}
