//! Sends and receives the datagrams of flows, over a socket connected to one address or a listening
//! one.
//!
//! A socket that listens on all addresses answers from the address that the request was sent to
//! (IP_PKTINFO in ip(7)), as its sender expects. The kernel fragments what exceeds the interface's
//! MTU. Knows no flows.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    sync::Arc,
};

use mio::{Interest, Registry, Token, unix::SourceFd};
use nix::{
    cmsg_space, libc,
    sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg,
        setsockopt, sockopt,
    },
};

/// A UDP socket registered with a loop; dropping this deregisters it.
#[derive(Debug)]
pub(crate) struct FlowSocket {
    socket: UdpSocket,
    pub(crate) token: Token,
    registry: Arc<Registry>,
}

/// A datagram received by a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) bytes: usize,
    pub(crate) from: SocketAddr,
    /// The address that it was sent to, if the socket has several.
    pub(crate) to: Option<IpAddr>,
}

/// A UDP socket that listens.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    inner: FlowSocket,
    /// Whether it is bound to all addresses.
    is_wild: bool,
    control: Vec<u8>,
}

impl FlowSocket {
    pub(crate) fn new(
        socket: UdpSocket,
        token: Token,
        registry: &Arc<Registry>,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        registry.register(&mut SourceFd(&socket.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self { socket, token, registry: Arc::clone(registry) })
    }

    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        retry(|| self.socket.recv(buffer))
    }

    /// Sends a datagram. An error may be about an earlier one (ICMP); this one is then sent again.
    pub(crate) fn send(&self, datagram: &[u8]) -> (io::Result<()>, bool) {
        match retry(|| self.socket.send(datagram)) {
            Err(error) if is_unreachable(&error) => {
                (retry(|| self.socket.send(datagram)).map(drop), true)
            }
            sent => (sent.map(drop), false),
        }
    }
}

impl Drop for FlowSocket {
    fn drop(&mut self) {
        // Another descriptor of the same socket would stay registered.
        let _ = self.registry.deregister(&mut SourceFd(&self.socket.as_raw_fd()));
    }
}

impl ListeningSocket {
    pub(crate) fn new(
        socket: UdpSocket,
        token: Token,
        registry: &Arc<Registry>,
    ) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let is_wild = address.ip().is_unspecified();
        if is_wild && address.is_ipv6() {
            // Reports mapped addresses as well.
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        } else if is_wild {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        }
        let control = cmsg_space!(libc::in_pktinfo, libc::in6_pktinfo);
        Ok(Self { inner: FlowSocket::new(socket, token, registry)?, is_wild, control })
    }

    pub(crate) fn token(&self) -> Token {
        self.inner.token
    }

    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Arrival> {
        let socket = &self.inner.socket;
        if !self.is_wild {
            let (bytes, from) = retry(|| socket.recv_from(buffer))?;
            return Ok(Arrival { bytes, from, to: None });
        }
        let (control, descriptor) = (&mut self.control, socket.as_raw_fd());
        retry(|| {
            let mut slices = [IoSliceMut::new(buffer)];
            let flags = MsgFlags::empty();
            let message =
                recvmsg::<SockaddrStorage>(descriptor, &mut slices, Some(&mut control[..]), flags)?;
            let from = message.address.as_ref().and_then(address_of);
            let to = message.cmsgs()?.find_map(|control| match control {
                ControlMessageOwned::Ipv4PacketInfo(info) => {
                    Some(IpAddr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()))
                }
                ControlMessageOwned::Ipv6PacketInfo(info) => {
                    Some(IpAddr::from(info.ipi6_addr.s6_addr))
                }
                _ => None,
            });
            let from = from.ok_or(io::ErrorKind::InvalidData)?;
            Ok(Arrival { bytes: message.bytes, from, to })
        })
    }

    /// Answers the sender `from`.
    pub(crate) fn send(
        &self,
        datagram: &[u8],
        to: SocketAddr,
        from: Option<IpAddr>,
    ) -> io::Result<()> {
        let socket = &self.inner.socket;
        let (slices, flags) = ([IoSlice::new(datagram)], MsgFlags::empty());
        let address = SockaddrStorage::from(to);
        let send = |control: &[ControlMessage<'_>]| {
            retry(|| Ok(sendmsg(socket.as_raw_fd(), &slices, control, flags, Some(&address))?))
                .map(drop)
        };
        match from.filter(|from| !from.to_canonical().is_multicast()) {
            None => retry(|| socket.send_to(datagram, to)).map(drop),
            Some(IpAddr::V4(from)) => {
                let s_addr = u32::from_ne_bytes(from.octets());
                let info = libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: libc::in_addr { s_addr },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                send(&[ControlMessage::Ipv4PacketInfo(&info)])
            }
            Some(IpAddr::V6(from)) => {
                let info = libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr { s6_addr: from.octets() },
                    ipi6_ifindex: 0,
                };
                send(&[ControlMessage::Ipv6PacketInfo(&info)])
            }
        }
    }
}

/// Whether an error is the network's answer to an earlier datagram, which anybody may forge (ICMP;
/// udp(7)).
pub(crate) fn is_unreachable(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::CONNREFUSED
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH
                | Errno::MSGSIZE
                | Errno::ACCESS
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
        )
    )
}

fn address_of(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::from((v4.ip(), v4.port())));
    v4.or_else(|| Some(SocketAddr::V6((*address.as_sockaddr_in6()?).into())))
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn listening(address: &str) -> (ListeningSocket, u16) {
        let poll = mio::Poll::new().unwrap();
        let registry = Arc::new(poll.registry().try_clone().unwrap());
        let socket = UdpSocket::bind(address).unwrap();
        let port = socket.local_addr().unwrap().port();
        (ListeningSocket::new(socket, Token(0), &registry).unwrap(), port)
    }

    /// Datagrams on loopback arrive as soon as they are sent.
    fn ask(socket: &mut ListeningSocket, from: &str, to: (IpAddr, u16)) -> SocketAddr {
        let asker = UdpSocket::bind(from).unwrap();
        asker.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        asker.send_to(b"ask", to).unwrap();
        let arrival = socket.receive(&mut [0; 8]).unwrap();
        assert_eq!(arrival.bytes, 3);
        assert_eq!(arrival.from.port(), asker.local_addr().unwrap().port());
        socket.send(b"answer", arrival.from, arrival.to).unwrap();
        asker.recv_from(&mut [0; 8]).unwrap().1
    }

    #[test]
    fn an_answer_comes_from_the_address_that_was_asked() {
        for (all, from, to) in [
            ("0.0.0.0:0", "127.0.0.1:0", "127.0.0.77"),
            ("[::]:0", "127.0.0.1:0", "127.0.0.77"),
            ("[::]:0", "[::1]:0", "::1"),
            ("127.0.0.5:0", "127.0.0.1:0", "127.0.0.5"),
        ] {
            let (mut socket, port) = listening(all);
            let to = (to.parse().unwrap(), port);
            assert_eq!(ask(&mut socket, from, to), to.into(), "{all}");
        }
    }

    #[test]
    fn an_earlier_refusal_does_not_lose_the_next_datagram() {
        let poll = mio::Poll::new().unwrap();
        let registry = Arc::new(poll.registry().try_clone().unwrap());
        let target = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = target.local_addr().unwrap();
        drop(target);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(address).unwrap();
        let socket = FlowSocket::new(socket, Token(0), &registry).unwrap();
        assert!(!socket.send(b"nobody").1);
        let target = UdpSocket::bind(address).unwrap();
        let (sent, was_refused) = socket.send(b"somebody");
        assert!(sent.is_ok() && was_refused);
        assert_eq!(target.recv(&mut [0; 16]).unwrap(), 8);
    }
}
