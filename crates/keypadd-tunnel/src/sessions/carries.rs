//! Decides what a session carries: a stream is opened or answered only once it was admitted here.
//!
//! A session for measurements, by its suite or its key exchange, carries bench streams and networks
//! that were opened for measurements, and nothing else: it reaches no target, has no listeners, and
//! nothing of it is worth holding. Knows no permits: they decide where an admitted stream may lead.

use std::borrow::Borrow;

use keypadd_provider::HandshakeData;

use crate::{
    networks::Network,
    wire::{StreamCode, StreamHeader},
};

/// Networks of a session: each end has one device for the other.
pub(crate) const NETWORKS_MAX: usize = 1;

/// What a session carries, by what its handshake agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carries {
    /// All that permits allow.
    Everything,
    /// Bench streams, and the packets of a network that is for measurements.
    Measurements,
}

/// The header of a stream that the session may carry, as a value or a reference.
#[derive(Debug)]
pub(crate) struct AdmittedStream<H>(H);

impl Carries {
    /// What a session with this handshake carries.
    pub(crate) fn of(handshake: &HandshakeData) -> Self {
        if handshake.measures_only() { Self::Measurements } else { Self::Everything }
    }

    /// Admits a stream with this header, from either end.
    ///
    /// # Errors
    /// The code that the stream is refused with.
    pub(crate) fn admit<H: Borrow<StreamHeader>>(
        self,
        header: H,
    ) -> Result<AdmittedStream<H>, StreamCode> {
        match (self, header.borrow()) {
            (Self::Everything, _) | (_, StreamHeader::Bench(_) | StreamHeader::Resume(_)) => {
                Ok(AdmittedStream(header))
            }
            (
                Self::Measurements,
                StreamHeader::Destination(_) | StreamHeader::Remote(_) | StreamHeader::Network,
            ) => Err(StreamCode::NotPermitted),
        }
    }

    /// Admits a stream with this header, from either end, where this is the peer's network.
    ///
    /// # Errors
    /// The code that the stream is refused with.
    pub(crate) fn admit_to<H: Borrow<StreamHeader>>(
        self,
        network: Option<&Network>,
        header: H,
    ) -> Result<AdmittedStream<H>, StreamCode> {
        match header.borrow() {
            StreamHeader::Network if network.is_some_and(Network::is_for_measurements) => {
                Ok(AdmittedStream(header))
            }
            _ => self.admit(header),
        }
    }

    /// Whether the server may listen for the client.
    pub(crate) fn has_listeners(self) -> bool {
        self == Self::Everything
    }

    /// Whether the server agrees to hold the session's streams when their connection is lost.
    pub(crate) fn may_hold(self) -> bool {
        self == Self::Everything
    }
}

impl<H: Borrow<StreamHeader>> AdmittedStream<H> {
    /// What the stream is to be connected to.
    pub(crate) fn header(&self) -> &StreamHeader {
        self.0.borrow()
    }

    /// The header as it was given.
    pub(crate) fn into_header(self) -> H {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use keypadd_transport::{Receipt, StreamName};

    use super::*;
    use crate::{
        addresses::{forward::Destination, target::Protocol},
        handover::DeviceRecord,
        wire::Claim,
    };

    fn network() -> Network {
        let (device, _) = UnixDatagram::pair().unwrap();
        let record = DeviceRecord { name: "tun".into(), mtu: 1_400, setup: None };
        Network::new("peer", record, device.into())
    }

    #[test]
    fn a_session_for_measurements_carries_no_network_but_one_for_measurements() {
        let (ordinary, measured) = (network(), network().for_measurements());
        for network in [None, Some(&ordinary), Some(&measured)] {
            let is_measured = network.is_some_and(Network::is_for_measurements);
            for (header, expected) in
                [(StreamHeader::Network, is_measured), (StreamHeader::Remote(1), false)]
            {
                let admitted = Carries::Measurements.admit_to(network, &header);
                assert_eq!(admitted.is_ok(), expected, "{network:?} {header:?}");
                assert!(Carries::Everything.admit_to(network, &header).is_ok());
            }
        }
    }

    #[test]
    fn a_session_for_measurements_carries_bench_streams_alone() {
        let target = Destination::Tcp("localhost:22".parse().unwrap());
        let claim = Claim { name: StreamName { epoch: 1, stream: 2 }, receipt: Receipt::decode(0) };
        let headers = [
            (StreamHeader::Destination(target), false),
            (StreamHeader::Remote(1), false),
            (StreamHeader::Network, false),
            (StreamHeader::Bench(Protocol::Tcp), true),
            (StreamHeader::Bench(Protocol::Udp), true),
            // Refused all the same: such a session has no hold.
            (StreamHeader::Resume(claim), true),
        ];
        for (header, measures) in headers {
            for (carries, admits) in
                [(Carries::Everything, true), (Carries::Measurements, measures)]
            {
                let admitted = carries.admit(header.clone()).map(AdmittedStream::into_header);
                let expected =
                    if admits { Ok(header.clone()) } else { Err(StreamCode::NotPermitted) };
                assert_eq!(admitted, expected, "{carries:?}");
            }
        }
        assert!(!Carries::Measurements.has_listeners() && !Carries::Measurements.may_hold());
        assert!(Carries::Everything.has_listeners() && Carries::Everything.may_hold());
    }
}
