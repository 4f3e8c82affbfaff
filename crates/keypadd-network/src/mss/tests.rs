use etherparse::{IpSlice, SlicedPacket, TcpHeader, TcpOptionElement, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::samples::{fragment, tcp, udp};

const A4: &str = "10.1.0.5";
const B4: &str = "10.2.0.9";
const A6: &str = "2001:db8:1::5";
const B6: &str = "2001:db8:2::9";

/// A SYN with these bytes of options.
fn syn(v6: bool, options: &[u8]) -> Vec<u8> {
    let mut header = TcpHeader::new(50_000, 22, 7, 1000);
    header.syn = true;
    header.set_options_raw(options).unwrap();
    if v6 { tcp(A6, B6, header) } else { tcp(A4, B4, header) }
}

/// The maximum segment size that another parser reads, which checks the sum.
fn mss(packet: &[u8]) -> Option<u16> {
    let ip = IpSlice::from_slice(packet).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = SlicedPacket::from_ip(packet).unwrap().transport else {
        panic!("TCP")
    };
    let sum = match &ip {
        IpSlice::Ipv4(v4) => {
            tcp.calc_checksum_ipv4(v4.header().source(), v4.header().destination())
        }
        IpSlice::Ipv6(v6) => {
            tcp.calc_checksum_ipv6(v6.header().source(), v6.header().destination())
        }
    };
    assert_eq!(tcp.checksum(), sum.unwrap());
    tcp.options_iterator().find_map(|option| match option {
        Ok(TcpOptionElement::MaximumSegmentSize(mss)) => Some(mss),
        _ => None,
    })
}

/// A packet with its maximum segment size lowered to this MTU, and whether it was.
fn clamped(mut packet: Vec<u8>, mtu: usize) -> (Vec<u8>, bool) {
    let changed = clamp_mss(&mut packet, mtu);
    (packet, changed)
}

#[test]
fn a_segment_size_is_lowered_to_what_fits_and_never_raised() {
    for (v6, headers) in [(false, 40), (true, 60)] {
        let offered = |mss: u16| {
            let [high, low] = mss.to_be_bytes();
            syn(v6, &[2, 4, high, low, 4, 2, 1, 3, 3, 7])
        };
        for (mtu, offer) in [(1400, 1460), (1363, 1400), (1280, 9000), (1400, 65_535)] {
            let (packet, changed) = clamped(offered(offer), mtu);
            assert!(changed);
            assert_eq!(mss(&packet), Some((mtu - headers) as u16));
        }
        for offer in [0, 536, 1400 - headers as u16] {
            assert_eq!(clamped(offered(offer), 1400), (offered(offer), false));
        }
    }
}

#[test]
fn the_size_is_found_behind_other_options_at_odd_places_too() {
    for padding in 0..8 {
        let options = [vec![1; padding], vec![2, 4, 5, 180, 0]].concat();
        let (packet, changed) = clamped(syn(false, &options), 1400);
        assert!(changed);
        assert_eq!(mss(&packet), Some(1360), "{padding}");
    }
    let twice = [2, 4, 5, 180, 2, 4, 35, 40];
    let (packet, _) = clamped(syn(false, &twice), 1400);
    assert_eq!(mss(&packet), Some(1360));
    let tcp = &packet[20..];
    assert_eq!(tcp[24..28], [2, 4, 5, 80], "a host might heed the second");
}

#[test]
fn signed_options_and_all_but_syns_are_left_alone() {
    let md5 = [[2, 4, 5, 180, 19, 18].as_slice(), &[9; 16]].concat();
    let ao = [[2, 4, 5, 180, 29, 16].as_slice(), &[9; 14]].concat();
    for options in [md5, ao] {
        for v6 in [false, true] {
            assert_eq!(clamped(syn(v6, &options), 1400), (syn(v6, &options), false));
        }
    }
    let mut header = TcpHeader::new(1, 2, 3, 4);
    header.ack = true;
    header.set_options_raw(&[2, 4, 5, 180]).unwrap();
    for packet in [
        tcp(A4, B4, header),
        udp(A4, 1, B4, 2),
        fragment(A4, B4, 6, (0, true), &syn(false, &[2, 4, 5, 180])[20..]),
        syn(false, &[]),
        vec![],
    ] {
        assert_eq!(clamped(packet.clone(), 1400), (packet, false));
    }
}

#[test]
fn options_that_do_not_end_are_left_alone() {
    for options in
        [[2, 4, 5, 180, 8, 99, 1, 1], [8, 0, 2, 4, 35, 40, 1, 1], [2, 9, 1, 1, 0, 0, 0, 0]]
    {
        let (packet, changed) = clamped(syn(false, &options), 1400);
        assert_eq!(changed, options[0] == 2 && options[1] == 4);
        mss(&packet);
    }
}

proptest! {
    #[test]
    fn any_change_of_options_leaves_a_right_sum_and_no_size_over_the_limit(
        v6 in any::<bool>(),
        options in prop::collection::vec(prop_oneof![Just(1u8), Just(2), Just(4), any::<u8>()], 0..=40),
        mtu in 60..2000usize,
    ) {
        let before = syn(v6, &options);
        let (after, changed) = clamped(before.clone(), mtu);
        prop_assert_eq!(changed, before != after);
        mss(&after);
        prop_assert!(!clamp_mss(&mut after.clone(), mtu), "once is enough");
        // Only the options and the sum change.
        let tcp_at = if v6 { 40 } else { 20 };
        let same = |range: std::ops::Range<usize>| before[range.clone()] == after[range];
        prop_assert!(same(0..tcp_at + 16) && same(tcp_at + 18..tcp_at + 20));
    }
}
