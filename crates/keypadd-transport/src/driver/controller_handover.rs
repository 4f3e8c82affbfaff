//! Hands a connection's congestion controller to the one that continues what it has sent, since it
//! knows the path: to the sibling with a stream that has become bulk (`migrate`), and to whichever
//! connection sends the packets of a network's bulk flows next.

use std::{sync::Arc, time::Instant};

use quinn_proto::{Connection, StreamId};

use super::Driver;
use crate::{
    flows::handles::{FlowCommand, FlowCommands},
    gate::CongestionGate,
    handed_controller::{HandedController, NetworkPath},
    splice::Registrar,
};

/// The path of a connection, for its sibling, which is where it is: a client's own address is not
/// known.
pub(super) fn network_path(quic: &Connection) -> NetworkPath {
    (quic.local_ip(), quic.remote_address().ip())
}

/// The controller of a connection, to continue on another one of its path; `None` if the path may
/// be lost.
pub(super) fn hand_over(
    gate: &CongestionGate,
    quic: &Connection,
    now: Instant,
) -> Option<HandedController> {
    gate.hand_over(quic.congestion_state(), (network_path(quic), quic.rtt()), now)
}

impl Driver {
    /// Handles a command about flows, some of which change whose turn it is to send the packets of
    /// a network.
    pub(super) fn on_flow_command(
        &mut self,
        command: FlowCommand,
        registrar: &mut Registrar<'_>,
        now: Instant,
    ) {
        let connection: Arc<dyn FlowCommands> = self.shared.clone();
        if let FlowCommand::End(id) = command {
            self.follow_turn(id, true, now);
        }
        let told = if let FlowCommand::Read(id) = command { Some(id) } else { None };
        self.flows.on_command(command, &connection, registrar, now);
        if let Some(id) = told {
            self.follow_turn(id, false, now);
        }
    }

    /// Leaves the controller to those that continue to send the packets of networks: this
    /// connection is lost.
    pub(super) fn leave_networks(&mut self, now: Instant) {
        for id in self.flows.networks() {
            self.follow_turn(id, true, now);
        }
    }

    fn follow_turn(&mut self, id: StreamId, ends: bool, now: Instant) {
        let Self { carrier, flows, sender, path, .. } = self;
        // Another session's connection may be of another network of this host.
        let ends_of_path = path.ends(&carrier.quic);
        let own = || {
            let handed = hand_over(sender.gate(), &carrier.quic, now)?;
            Some(HandedController { path: ends_of_path?, ..handed })
        };
        // One that carries streams of bulk has a controller that knows the path better.
        if let Some(handed) = flows.follow_turn(id, ends, now, own)
            && Some(handed.path) == ends_of_path
            && !(carrier.moves.is_bulk() && carrier.streams.all_spliced().next().is_some())
        {
            sender.take_over(&mut carrier.quic, handed, now);
        }
    }
}
