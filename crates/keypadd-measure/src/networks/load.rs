//! Sends paced UDP one way. Packets go on at fixed times whatever has become of earlier ones, and all
//! hosts have one clock. Bulk data is [`crate::load`]'s, echo requests are [`crate::pings`]'.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use socket2::SockRef;
use testbed::{FourHosts, Namespace};

use crate::flow::{Flow, Pace};
use crate::load::words;

/// Port of the flows.
const PORT: u16 = 7002;

/// Receive buffer of a socket, in bytes: large enough that the receiver itself drops no packets.
const SOCKET_BYTES: usize = 4 << 20;

/// Flows that have the tunnel to themselves.
pub(super) const PACES: [Pace; 3] = [
    Pace { name: "100 Mbit/s", bytes: 1200, interval: Duration::from_micros(96) },
    Pace { name: "500 Mbit/s", bytes: 1200, interval: Duration::from_nanos(19_200) },
    Pace { name: "64 bytes", bytes: 64, interval: Duration::ZERO },
];

/// Sends a flow from the client to the server for this long, or until `stop`.
///
/// # Errors
/// One line: what a socket said.
pub(super) fn flow(
    hosts: &FourHosts,
    pace: &Pace,
    time: Duration,
    stop: &AtomicBool,
) -> Result<Flow, String> {
    let client = bind(&hosts.client, FourHosts::CLIENT)?;
    let server = bind(&hosts.server, FourHosts::SERVER)?;
    client.connect((FourHosts::SERVER, PORT)).map_err(words)?;
    crate::flow::flow(pace, [&client, &server], true, time, stop)
}

fn bind(host: &Namespace, address: IpAddr) -> Result<UdpSocket, String> {
    let open = || -> std::io::Result<UdpSocket> {
        let socket = UdpSocket::bind(SocketAddr::from((address, PORT)))?;
        SockRef::from(&socket).set_recv_buffer_size(SOCKET_BYTES)?;
        Ok(socket)
    };
    host.inside(|| open().map_err(words))
}
