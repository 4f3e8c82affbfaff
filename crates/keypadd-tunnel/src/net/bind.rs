//! Binds UDP sockets, of endpoints and of forwards, and TCP listeners, and sets their socket
//! options.
//!
//! Knows addresses; who may bind them is decided elsewhere (`permits`).

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpListener;
use tracing::{debug, info};

/// Connections that the kernel queues for a listener before it refuses more.
pub(crate) const LISTEN_BACKLOG: i32 = 1024;

/// UDP buffer sizes: requested and granted by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UdpBuffers {
    /// Bytes requested, for each direction.
    requested_bytes: usize,
    /// Receive buffer granted.
    receive_bytes: usize,
    /// Send buffer granted.
    send_bytes: usize,
}

/// Binds a UDP socket. `[::]` binds both families, or IPv4 only on a host without IPv6.
pub(crate) fn bind_udp(address: SocketAddr, requested_bytes: usize) -> io::Result<UdpSocket> {
    let socket = or_ipv4(address, open_udp)?;
    let buffers = set_buffers(&socket, requested_bytes);
    log_buffers(buffers);
    Ok(socket.into())
}

/// Binds several UDP sockets to one address (SO_REUSEPORT), each as [`bind_udp`] does, or adds to
/// those of the old process. Fails if another program has the address; programs of the same user
/// may join later.
pub(crate) fn bind_udp_group(
    address: SocketAddr,
    sockets: usize,
    requested_bytes: usize,
    mut group: Vec<UdpSocket>,
) -> io::Result<Vec<UdpSocket>> {
    if group.is_empty() {
        group.push(bind_udp(address, requested_bytes)?);
    }
    if group.len() >= sockets {
        return Ok(group);
    }
    let address = group[0].local_addr()?;
    // Set after bind, so that it does not join another program's group.
    SockRef::from(&group[0]).set_reuse_port(true)?;
    for _ in group.len()..sockets {
        let socket = open(address, Type::DGRAM, Protocol::UDP)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        set_buffers(&socket, requested_bytes);
        group.push(socket.into());
    }
    Ok(group)
}

/// All addresses of both families, any free port.
pub(crate) const ANY_PORT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

fn open_udp(address: SocketAddr) -> io::Result<Socket> {
    let socket = open(address, Type::DGRAM, Protocol::UDP)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn open(address: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    if address.is_ipv6() {
        // `[::]` is dual-stack; any other address is IPv6 only.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Binds `[::]` as 0.0.0.0 on a host without IPv6.
fn or_ipv4<T>(address: SocketAddr, bind: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    match bind(address) {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && no_such_family(&error) => {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        result => result,
    }
}

/// Whether the host does not have the address family.
pub(crate) fn no_such_family(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

/// Sets the buffer sizes and reads them back. Linux grants at most `net.core.{r,w}mem_max`, and
/// reports twice the size, because it counts its own overhead (socket(7)).
fn set_buffers(socket: &Socket, requested_bytes: usize) -> UdpBuffers {
    let shown_per_byte = if cfg!(target_os = "linux") { 2 } else { 1 };
    // On failure the default stays; it is read back and logged.
    let _ = socket.set_recv_buffer_size(requested_bytes);
    let _ = socket.set_send_buffer_size(requested_bytes);
    UdpBuffers {
        requested_bytes,
        receive_bytes: socket.recv_buffer_size().unwrap_or(0) / shown_per_byte,
        send_bytes: socket.send_buffer_size().unwrap_or(0) / shown_per_byte,
    }
}

fn log_buffers(UdpBuffers { requested_bytes, receive_bytes, send_bytes }: UdpBuffers) {
    if receive_bytes.min(send_bytes) >= requested_bytes {
        debug!(receive_bytes, send_bytes, "UDP buffers granted");
    } else {
        info!(
            requested_bytes,
            receive_bytes,
            send_bytes,
            "UDP buffers are smaller than requested, bursts may be lost; as root: \
             sysctl -w net.core.rmem_max={requested_bytes} net.core.wmem_max={requested_bytes}"
        );
    }
}

/// Receive buffer of a UDP forward's socket: a burst of many sources, while the event loop does
/// other work.
const FORWARD_BUFFER_BYTES: usize = 1 << 20;

/// Binds the UDP socket of a forward, or takes that of the old process. `[::]` binds both families.
/// `shared` is whether it joins others of this user that allow it.
pub(crate) fn listen_udp(
    address: SocketAddr,
    inherited: impl Fn(SocketAddr) -> Option<UdpSocket>,
    shared: bool,
) -> io::Result<UdpSocket> {
    if let Some(socket) = inherited(address) {
        return Ok(socket);
    }
    let socket = or_ipv4(address, |address| {
        let socket = open(address, Type::DGRAM, Protocol::UDP)?;
        socket.set_reuse_port(shared)?;
        socket.bind(&address.into())?;
        Ok(socket)
    })?;
    // If the kernel grants less, longer bursts are lost.
    let _ = socket.set_recv_buffer_size(FORWARD_BUFFER_BYTES);
    Ok(socket.into())
}

/// Finds the listener that the old process had at an address.
pub(crate) type Inherited<'i> = &'i dyn Fn(SocketAddr) -> Option<std::net::TcpListener>;

/// Binds a TCP listener, or takes that of the old process. `[::]` binds both families, and `shared`
/// is as for UDP.
pub(crate) fn listen_tcp(
    address: SocketAddr,
    inherited: Inherited<'_>,
    shared: bool,
) -> io::Result<TcpListener> {
    if let Some(listener) = inherited(address) {
        return TcpListener::from_std(listener);
    }
    or_ipv4(address, |address| {
        let socket = open(address, Type::STREAM, Protocol::TCP)?;
        // A restarted daemon can bind its port while old connections are in TIME_WAIT.
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(shared)?;
        // For its connections: what arrives before they are accepted may be urgent.
        socket.set_out_of_band_inline(true)?;
        socket.bind(&address.into())?;
        socket.listen(LISTEN_BACKLOG)?;
        TcpListener::from_std(socket.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_on_all_addresses_receives_both_families() {
        let socket = bind_udp(ANY_PORT, 1 << 20).unwrap();
        let port = socket.local_addr().unwrap().port();
        socket.set_nonblocking(false).unwrap();
        for from in ["127.0.0.1:0", "[::1]:0"] {
            let from: SocketAddr = from.parse().unwrap();
            let sender = UdpSocket::bind(from).unwrap();
            sender.send_to(b"x", (from.ip(), port)).unwrap();
            let (bytes, source) = socket.recv_from(&mut [0; 8]).unwrap();
            assert_eq!((bytes, source.ip().to_canonical()), (1, from.ip()));
        }
    }

    #[test]
    fn a_group_shares_an_address_that_others_cannot_bind() {
        let mut group = bind_udp_group(ANY_PORT, 3, 64 << 10, Vec::new()).unwrap();
        let addresses: Vec<_> = group.iter().map(|it| it.local_addr().unwrap()).collect();
        assert_eq!(addresses.len(), 3);
        assert!(addresses.iter().all(|address| *address == addresses[0]));
        let another = bind_udp_group(addresses[0], 3, 64 << 10, Vec::new());
        assert_eq!(another.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // The process that follows has them, and may want more.
        let inherited = group.split_off(1);
        drop(group);
        let grown = bind_udp_group(addresses[0], 4, 64 << 10, inherited).unwrap();
        assert_eq!(grown.len(), 4);
    }

    #[test]
    fn granted_buffers_are_what_the_kernel_reports() {
        let socket = open_udp(ANY_PORT).unwrap();
        let buffers = set_buffers(&socket, 64 << 10);
        assert_eq!((buffers.receive_bytes, buffers.send_bytes), (64 << 10, 64 << 10));
    }
}
