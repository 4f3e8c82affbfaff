//! Says how far a connection has come: from its handshake to its loss.
//!
//! | from        | the handshake is complete | it is lost |
//! | ----------- | ------------------------- | ---------- |
//! | handshaking | up                        | lost       |
//! | up          | -                         | lost       |
//! | lost        | lost, but proved          | -          |

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::{dial::ConnectingError, handshake::Accepted, mailbox::Established, stream::Stream};

/// Who waits for the handshake.
pub(crate) enum HandshakeReply {
    /// Nobody any more.
    Nobody,
    Client(oneshot::Sender<Result<Established, ConnectingError>>),
    Server(mpsc::UnboundedSender<Accepted>),
}

enum Phase {
    Handshaking(HandshakeReply),
    /// Has the way of the streams that the peer opens. Boxed: a queue has memory for 32 items from
    /// the beginning.
    Up(mpsc::UnboundedSender<Box<Stream>>),
    Lost {
        /// The handshake was complete.
        proved: bool,
        /// The connection was lost in a way that lets its streams be held.
        holds: bool,
    },
}

/// How far a connection has come.
pub(super) struct Lifecycle {
    phase: Phase,
    /// CPU time that opening a KiB of datagrams takes; none before the handshake is complete.
    pub(super) opening_cost: Duration,
}

impl Lifecycle {
    pub(super) fn new(waiting: HandshakeReply) -> Self {
        Self { phase: Phase::Handshaking(waiting), opening_cost: Duration::ZERO }
    }

    /// The handshake is complete. Returns who waits for it, and what the peer opens from now on.
    pub(super) fn establish(&mut self) -> (HandshakeReply, mpsc::UnboundedReceiver<Box<Stream>>) {
        let (incoming, streams) = mpsc::unbounded_channel();
        let waiting = match &mut self.phase {
            Phase::Handshaking(waiting) => std::mem::replace(waiting, HandshakeReply::Nobody),
            Phase::Up(_) | Phase::Lost { .. } => HandshakeReply::Nobody,
        };
        match &mut self.phase {
            Phase::Handshaking(_) | Phase::Up(_) => self.phase = Phase::Up(incoming),
            Phase::Lost { proved, holds: _ } => *proved = true,
        }
        (waiting, streams)
    }

    /// Whether this end dials, and somebody waits for the handshake.
    pub(super) fn is_dialing(&self) -> bool {
        matches!(self.phase, Phase::Handshaking(HandshakeReply::Client(_)))
    }

    /// Tells whoever waits for this end's handshake why it failed.
    pub(super) fn fail_dialing(&mut self, error: ConnectingError) {
        if let Phase::Handshaking(waiting) = &mut self.phase
            && let HandshakeReply::Client(reply) =
                std::mem::replace(waiting, HandshakeReply::Nobody)
        {
            let _ = reply.send(Err(error));
        }
    }

    /// The connection is lost; only the first time counts. Returns who waits for the handshake.
    pub(super) fn lose(&mut self, holds: bool) -> HandshakeReply {
        let (waiting, proved) = match &mut self.phase {
            Phase::Handshaking(waiting) => {
                (std::mem::replace(waiting, HandshakeReply::Nobody), false)
            }
            Phase::Up(_) => (HandshakeReply::Nobody, true),
            Phase::Lost { .. } => return HandshakeReply::Nobody,
        };
        self.phase = Phase::Lost { proved, holds };
        waiting
    }

    /// Whether the peer has proved a key, and the connection is not lost.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up(_))
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.phase, Phase::Lost { .. })
    }

    /// Whether the peer has proved a key.
    pub(super) fn is_proved(&self) -> bool {
        match self.phase {
            Phase::Handshaking(_) => false,
            Phase::Up(_) => true,
            Phase::Lost { proved, holds: _ } => proved,
        }
    }

    /// Whether the connection was lost in a way that lets its streams be held.
    pub(super) fn holds(&self) -> bool {
        matches!(self.phase, Phase::Lost { holds: true, .. })
    }

    /// Passes on a stream that the peer has opened. If nobody accepts it, this drops the handle,
    /// which resets the stream.
    pub(super) fn accept(&self, stream: Stream) {
        if let Phase::Up(incoming) = &self.phase {
            let _ = incoming.send(stream.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_up_between_its_handshake_and_its_loss() {
        let (reply, _answer) = oneshot::channel();
        let mut lifecycle = Lifecycle::new(HandshakeReply::Client(reply));
        assert!(!lifecycle.is_up() && !lifecycle.is_proved() && !lifecycle.is_lost());
        let (waiting, _) = lifecycle.establish();
        assert!(matches!(waiting, HandshakeReply::Client(_)));
        assert!(
            lifecycle.is_up()
                && lifecycle.is_proved()
                && !lifecycle.is_lost()
                && !lifecycle.holds()
        );
        assert!(matches!(lifecycle.lose(true), HandshakeReply::Nobody));
        assert!(
            !lifecycle.is_up() && lifecycle.is_proved() && lifecycle.is_lost() && lifecycle.holds()
        );
        assert!(matches!(lifecycle.lose(false), HandshakeReply::Nobody));
        assert!(lifecycle.holds(), "only the first loss counts");
    }

    #[test]
    fn whoever_waits_for_a_handshake_learns_of_the_loss_instead() {
        let (reply, _answer) = oneshot::channel();
        let mut lifecycle = Lifecycle::new(HandshakeReply::Client(reply));
        assert!(matches!(lifecycle.lose(false), HandshakeReply::Client(_)));
        assert!(lifecycle.is_lost() && !lifecycle.is_proved() && !lifecycle.holds());
        let (waiting, _) = lifecycle.establish();
        assert!(matches!(waiting, HandshakeReply::Nobody));
        assert!(lifecycle.is_lost() && lifecycle.is_proved(), "what was under way still counts");
    }
}
