//! Steers each datagram to the socket of the loop that owns its connection.
//!
//! The sockets of an endpoint share one port (SO_REUSEPORT, socket(7)). A classic BPF program reads
//! the first byte of the destination's connection ID, the loop's number (`cid`). The client chooses
//! it for its first packets, so that sparse and bulk connections land on different loops. If the
//! kernel refuses the program, loops forward datagrams to each other by message.

use std::{io, net::UdpSocket};

use nix::{
    libc::{
        BPF_ABS, BPF_ALU, BPF_B, BPF_JA, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_MOD, BPF_RET,
        sock_filter, sock_fprog,
    },
    sys::socket::{setsockopt, sockopt::AttachReusePortCbpf},
};

use crate::cid::LONG_HEADER;

/// Offset of the destination's connection ID in a short and a long header (RFC 9000 17).
const SHORT_CID_AT: u32 = 1;
const LONG_CID_AT: u32 = 6;

/// `BPF_RET | BPF_A`: the accumulator is the socket's number.
const RETURN_ACCUMULATOR: u32 = BPF_RET | 0x10;

/// Installs the program for the group of `sockets` sockets that this one belongs to.
///
/// # Errors
/// The kernel's error.
pub(crate) fn steer(socket: &UdpSocket, sockets: usize) -> io::Result<()> {
    let op = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        op(BPF_LD | BPF_B | BPF_ABS, 0, 0, 0),
        op(BPF_JMP | BPF_JSET | BPF_K, 0, 2, LONG_HEADER.into()),
        op(BPF_LD | BPF_B | BPF_ABS, 0, 0, LONG_CID_AT),
        op(BPF_JMP | BPF_JA, 0, 0, 1),
        op(BPF_LD | BPF_B | BPF_ABS, 0, 0, SHORT_CID_AT),
        op(BPF_ALU | BPF_MOD | BPF_K, 0, 0, sockets as u32),
        op(RETURN_ACCUMULATOR, 0, 0, 0),
    ];
    let program = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    Ok(setsockopt(socket, AttachReusePortCbpf, &program)?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use socket2::{Domain, Socket, Type};

    use super::*;

    /// Sockets of one port on loopback.
    fn group(sockets: usize) -> Vec<UdpSocket> {
        let mut address: std::net::SocketAddr = ([127, 0, 0, 1], 0).into();
        (0..sockets)
            .map(|_| {
                let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
                socket.set_reuse_port(true).unwrap();
                socket.bind(&address.into()).unwrap();
                let socket = UdpSocket::from(socket);
                address = socket.local_addr().unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                socket
            })
            .collect()
    }

    #[test]
    fn a_datagram_comes_to_the_loop_of_its_connection_id() {
        let sockets = group(4);
        steer(&sockets[0], 4).unwrap();
        let address = sockets[0].local_addr().unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut buffer = [0; 32];
        for number in 0..4_u8 {
            let short = [0x40, number, 9, 9, 9, 9, 9, 9, 9, 9];
            let long = [0xc0, 0, 0, 0, 1, 20, number + 4, 9, 9, 9];
            for datagram in [&short[..], &long[..]] {
                sender.send_to(datagram, address).unwrap();
                let received = sockets[usize::from(number)].recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..received], datagram);
            }
        }
        // A datagram too short for an ID goes to any of them.
        sender.send_to(&[0x40], address).unwrap();
        assert_eq!(sockets[0].recv(&mut buffer).unwrap(), 1);
    }
}
