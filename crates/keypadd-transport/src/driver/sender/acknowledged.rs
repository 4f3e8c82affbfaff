//! Tells control tasks when the peer has acknowledged what was sent before they asked.

use quinn_proto::Connection;
use tokio::sync::oneshot;

use crate::gate::CongestionGate;

/// Control tasks that wait for acknowledgments.
#[derive(Default)]
pub(super) struct Acknowledged(Vec<Waiting>);

struct Waiting {
    /// The newest packet when quinn-proto had sent what it was given.
    newest: Option<u64>,
    reply: oneshot::Sender<()>,
}

impl Acknowledged {
    pub(super) fn wait(&mut self, reply: oneshot::Sender<()>) {
        self.0.push(Waiting { newest: None, reply });
    }

    /// Notes how far the connection has come. `is_settled`: quinn-proto has sent what it was given.
    pub(super) fn follow(
        &mut self,
        quic: &mut Connection,
        gate: &CongestionGate,
        is_settled: bool,
    ) {
        if self.0.is_empty() {
            return;
        }
        let acked = gate.acked();
        let is_acked = |one: &mut Waiting| one.newest.is_some_and(|newest| newest <= acked);
        for one in self.0.extract_if(.., is_acked) {
            let _ = one.reply.send(());
        }
        for one in self.0.iter_mut().filter(|one| is_settled && one.newest.is_none()) {
            one.newest = Some(gate.newest());
            // The newest may be one that the peer need not acknowledge.
            quic.ping();
        }
    }
}
