//! Marks congestion in an IP packet (RFC 3168), hides that it may be marked, or flips a bit of it. Pure.

use crate::line::{Arrival, Arrivals, Loss};

/// The two ECN bits, in IPv4's second byte (RFC 791, RFC 3168 5) and across IPv6's first two (RFC
/// 8200 3).
const ECN: u8 = 0b11;

/// Whether the packet was dropped for lack of room.
pub(super) fn is_dropped(offered: Result<Arrivals, Loss>) -> bool {
    matches!(offered, Err(Loss::QueueFull | Loss::Policed))
}

/// A packet as it arrives.
pub(super) fn arriving(packet: &[u8], arrival: Arrival) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if arrival.marked {
        mark(&mut packet);
    }
    if let Some(bit) = arrival.flipped
        && let Some(byte) = packet.get_mut(bit / 8)
    {
        *byte ^= 0x80 >> (bit % 8);
    }
    packet
}

/// Whether the sender understands marks: ECT or CE.
pub(super) fn is_ecn_capable(packet: &[u8]) -> bool {
    match packet {
        [first, traffic_class, ..] if *first >> 4 == 6 => (*traffic_class >> 4) & ECN != 0,
        [first, tos, ..] if *first >> 4 == 4 => *tos & ECN != 0,
        _ => false,
    }
}

/// Sets congestion experienced, if the sender understands it.
fn mark(packet: &mut [u8]) {
    if is_ecn_capable(packet) {
        set_ecn(packet, ECN);
    }
}

/// Makes a packet look as if its sender did not understand marks.
pub(super) fn clear_ecn(packet: &mut [u8]) {
    set_ecn(packet, 0);
}

fn set_ecn(packet: &mut [u8], ecn: u8) {
    match packet {
        [first, traffic_class, ..] if *first >> 4 == 6 => {
            *traffic_class = *traffic_class & !(ECN << 4) | ecn << 4;
        }
        [first, tos, _, _, _, _, _, _, _, _, high, low, ..] if *first >> 4 == 4 => {
            // RFC 1624: a word m that becomes m' changes the checksum to ~(~sum + ~m + m').
            let before = u16::from_be_bytes([*first, *tos]);
            *tos = *tos & !ECN | ecn;
            let after = u16::from_be_bytes([*first, *tos]);
            let sum = u32::from(!u16::from_be_bytes([*high, *low]))
                + u32::from(!before)
                + u32::from(after);
            let folded = (sum & 0xffff) + (sum >> 16);
            let folded = (folded & 0xffff) + (folded >> 16);
            [*high, *low] = (!(folded as u16)).to_be_bytes();
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// RFC 1071: the sum over a correct header, checksum included, is all ones.
    fn is_right(header: &[u8]) -> bool {
        let sum: u32 =
            header.chunks(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]]))).sum();
        (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    /// A header of RFC 791 without options, ECN as given.
    fn ipv4(ecn: u8) -> Vec<u8> {
        let mut header =
            vec![0x45, ecn, 5, 220, 1, 2, 64, 0, 64, 17, 0, 0, 10, 99, 7, 1, 10, 99, 7, 2];
        let sum: u32 =
            header.chunks(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]]))).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        assert!(is_right(&header));
        header
    }

    fn arrival(marked: bool, flipped: Option<usize>) -> Arrival {
        Arrival { at: Instant::now(), marked, flipped }
    }

    #[test]
    fn a_mark_changes_capable_packets_alone_and_keeps_their_checksum_right() {
        for (ecn, expected) in [(0b00, 0b00), (0b01, 0b11), (0b10, 0b11), (0b11, 0b11)] {
            let marked = arriving(&ipv4(ecn), arrival(true, None));
            assert_eq!(marked[1] & ECN, expected);
            assert!(is_right(&marked), "{marked:?}");
            let v6 = arriving(&[0x60, ecn << 4, 0, 0], arrival(true, None));
            assert_eq!(v6[1] >> 4, expected);
        }
        assert_eq!(arriving(&ipv4(0b10), arrival(false, None)), ipv4(0b10));
    }

    #[test]
    fn what_is_cleared_is_not_capable_and_its_checksum_right() {
        for ecn in 0..4 {
            let (mut v4, mut v6) = (ipv4(ecn), vec![0x60, ecn << 4 | 0xc0, 0, 0]);
            assert_eq!([&v4, &v6].map(|packet| is_ecn_capable(packet)), [ecn != 0; 2]);
            clear_ecn(&mut v4);
            clear_ecn(&mut v6);
            assert_eq!((v4, v6), (ipv4(0), vec![0x60, 0xc0, 0, 0]));
        }
    }

    #[test]
    fn one_bit_is_flipped() {
        assert_eq!(arriving(&[0, 0, 0], arrival(false, Some(9))), [0, 0x40, 0]);
    }
}
