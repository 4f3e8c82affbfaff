//! Tests the encodings of frames and stream headers, and their refusal when invalid.

use proptest::{collection::vec, prelude::*};

use keypadd_transport::{Receipt, ServerId, StreamName};

use super::*;
use crate::addresses::{
    forward::{Destination, Listen, ProxyHeaders, RemoteForward},
    target::{Host, Protocol, Target},
};

fn decode_frame(bytes: &[u8]) -> Result<Option<Frame>, WireError> {
    let head = FrameHead::decode(*bytes.first_chunk().unwrap());
    assert_eq!(usize::from(head.body_bytes), bytes.len() - FRAME_HEAD_BYTES);
    Frame::decode(head.kind, &bytes[FRAME_HEAD_BYTES..])
}

fn decode_header(bytes: &[u8]) -> Result<StreamHeader, WireError> {
    let head = StreamHead::decode(*bytes.first_chunk().unwrap())?;
    assert_eq!(head.text_bytes(), bytes.len() - STREAM_HEAD_BYTES);
    head.header(&bytes[STREAM_HEAD_BYTES..])
}

fn listen(text: &str) -> Listen {
    format!("{text}:target:1").parse::<RemoteForward>().unwrap().listen
}

#[test]
fn frames_have_these_encodings() {
    let mut hello = vec![0, 17, 1, 1];
    hello.extend([7; 16]);
    let mut hello_bulk = vec![0, 49, 9, 1];
    hello_bulk.extend([7; 16]);
    hello_bulk.extend([8; 32]);
    let (instance, proof) = (Instance([7; 16]), [5; 32]);
    let request = Some(HoldRequest { seconds: 600, proof: Some(proof) });
    let mut hello_hold = vec![0, 54, 1, 1];
    hello_hold.extend([7; 16]);
    hello_hold.extend([1, 0, 0, 2, 0x58]);
    hello_hold.extend(proof);
    let grant = Some(HoldGrant { seconds: 600, epoch: 3, proof: Some(proof) });
    let mut granted = vec![0, 42, 2, 1, 1, 0, 0, 2, 0x58, 0, 0, 0, 3];
    granted.extend(proof);
    let unproved = Some(HoldGrant { seconds: 600, epoch: 3, proof: None });
    let mut granted_anew = granted.clone();
    granted_anew[13..].fill(0);
    let home = Some(ServerId([6; 8]));
    let mut granted_at_home = [&granted[..], &[8], &[6; 8]].concat();
    granted_at_home[1] = 51;
    let at_home = [&[0, 11, 2, 1, 0, 8][..], &[6; 8]].concat();
    let of_another_format = [0, 6, 2, VERSION, 0, 3, 6, 6, 6];
    let skipped = Frame::HelloServer { version: VERSION, hold: None, home: None };
    assert_eq!(decode_frame(&of_another_format), Ok(Some(skipped)));
    let listen = |id, text| {
        let headers = ProxyHeaders::default();
        Frame::Listen { id, listen: listen(text), headers }
    };
    let with_headers = |send, accept| {
        let headers = ProxyHeaders { send, accept };
        let Frame::Listen { id, listen, .. } = listen(0x102, "8080") else { unreachable!() };
        Frame::Listen { id, listen, headers }
    };
    for (frame, bytes) in [
        (Frame::HelloClient { version: VERSION, instance, hold: None }, &hello[..]),
        (Frame::HelloClient { version: VERSION, instance, hold: request }, &hello_hold[..]),
        (Frame::HelloServer { version: VERSION, hold: None, home: None }, &[0, 1, 2, 1]),
        (Frame::HelloServer { version: VERSION, hold: grant.clone(), home: None }, &granted[..]),
        (Frame::HelloServer { version: VERSION, hold: grant, home }, &granted_at_home[..]),
        (Frame::HelloServer { version: VERSION, hold: None, home }, &at_home[..]),
        (Frame::HelloServer { version: VERSION, hold: unproved, home: None }, &granted_anew[..]),
        (Frame::Claims { count: 0x102 }, &[0, 4, 10, 0, 0, 1, 2]),
        (Frame::MaxForwards { count: 0x102 }, &[0, 4, 12, 0, 0, 1, 2]),
        (Frame::Leave { leave: true }, &[0, 1, 13, 1]),
        (Frame::Leave { leave: false }, &[0, 1, 13, 0]),
        (listen(0x102, "8080"), &[0, 6, 3, 1, 2, 1, 0x1f, 0x90, 0]),
        (listen(0, "*:8080"), b"\0\x07\x03\0\0\x01\x1f\x90\x01*"),
        (listen(0, "[::1]:0"), b"\0\x09\x03\0\0\x01\0\0\x03::1"),
        (listen(0, "lan:80"), b"\0\x09\x03\0\0\x01\0\x50\x03lan"),
        (listen(9, "/run/x"), b"\0\x0a\x03\0\x09\x02\x06/run/x"),
        (with_headers(true, false), &[0, 7, 3, 1, 2, 1, 0x1f, 0x90, 0, 1]),
        (with_headers(true, true), &[0, 7, 3, 1, 2, 1, 0x1f, 0x90, 0, 3]),
        (Frame::Listening { id: 0x102, outcome: Ok(8080) }, &[0, 5, 4, 1, 2, 0, 0x1f, 0x90]),
        (Frame::Listening { id: 3, outcome: Err(ListenCode::InUse) }, &[0, 5, 4, 0, 3, 2, 0, 0]),
        (Frame::Unlisten { id: 0x102 }, &[0, 2, 5, 1, 2]),
        (Frame::Ping, &[0, 0, 6]),
        (Frame::BulkOffer, &[0, 0, 7]),
        (Frame::BulkWanted, &[0, 0, 8]),
        (Frame::Renew, &[0, 0, 11]),
        (Frame::HelloBulk { version: VERSION, instance, proof: [8; 32] }, &hello_bulk[..]),
    ] {
        assert_eq!(frame.encode(), bytes, "{frame:?}");
        assert_eq!(decode_frame(bytes), Ok(Some(frame)));
    }
}

#[test]
fn unknown_types_are_skipped_and_short_bodies_refused() {
    assert_eq!(decode_frame(&[0, 2, 99, 1, 2]), Ok(None));
    assert_eq!(decode_frame(&[0, 0, 2]), Err(WireError::ShortFrame { kind: 2 }));
    assert_eq!(decode_frame(&[0, 2, 1, 1, 2]), Err(WireError::ShortFrame { kind: 1 }));
    assert_eq!(decode_frame(&[0, 1, 5, 1]), Err(WireError::ShortFrame { kind: 5 }));
    assert_eq!(decode_frame(&[0, 4, 4, 0, 0, 0, 1]), Err(WireError::ShortFrame { kind: 4 }));
    // The text is shorter than its length.
    let short = b"\0\x07\x03\0\0\x01\x1f\x90\x02*";
    assert_eq!(decode_frame(short), Err(WireError::ShortFrame { kind: 3 }));
    // Later versions may add fields.
    assert_eq!(decode_frame(&[0, 3, 5, 0, 1, 9]), Ok(Some(Frame::Unlisten { id: 1 })));
}

#[test]
fn invalid_listens_are_refused() {
    let decode = |body: &[u8]| Frame::decode(3, body);
    assert_eq!(decode(&[0, 0, 7, 0, 0, 0]), Err(WireError::UnknownListen(7)));
    assert_eq!(decode(&[0, 0, 1, 0, 80, 1, 0xff]), Err(WireError::NotText));
    assert!(matches!(decode(b"\0\0\x01\0\x50\x03a b"), Err(WireError::Address(_))));
    assert!(matches!(decode(b"\0\0\x02\x01x"), Err(WireError::Path(_))));
    assert!(matches!(decode(b"\0\0\x02\0"), Err(WireError::Path(_))));
}

#[test]
fn stream_headers_have_these_encodings() {
    let destination = |destination: Destination| StreamHeader::Destination(destination);
    for (header, bytes) in [
        (destination(Destination::Tcp("db:5432".parse().unwrap())), &b"\x01\x15\x38\x02db"[..]),
        (destination(Destination::Unix("/run/x".parse().unwrap())), b"\x02\0\0\x06/run/x"),
        (StreamHeader::Remote(0x102), &[3, 1, 2, 0]),
        (destination(Destination::Udp("dns:53".parse().unwrap())), b"\x06\0\x35\x03dns"),
        (StreamHeader::Bench(Protocol::Tcp), &[4, 0, 0, 0]),
        (StreamHeader::Bench(Protocol::Udp), &[4, 0, 1, 0]),
        (StreamHeader::Network, &[7, 0, 0, 0]),
        (
            StreamHeader::Resume(Claim {
                name: StreamName { epoch: 3, stream: 8 },
                receipt: Receipt { bytes: 0x80, end: true },
            }),
            &[5, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 1, 1],
        ),
    ] {
        assert_eq!(header.encode(), bytes);
        assert_eq!(decode_header(bytes), Ok(header));
    }
}

#[test]
fn invalid_headers_are_refused() {
    assert_eq!(StreamHead::decode([9, 0, 22, 1]), Err(WireError::UnknownKind(9)));
    assert_eq!(StreamHead::decode([1, 0, 22, 0]), Err(WireError::NoHost));
    assert_eq!(StreamHead::decode([2, 0, 0, 0]), Err(WireError::NoHost));
    assert_eq!(StreamHead::decode([2, 0, 22, 1]), Err(WireError::NotZero));
    // A server cannot name a host.
    assert_eq!(StreamHead::decode([3, 0, 22, 1]), Err(WireError::NotZero));
    // A client cannot choose the target of a bench stream.
    assert_eq!(StreamHead::decode([4, 0, 22, 0]), Err(WireError::NotZero));
    assert_eq!(StreamHead::decode([4, 0, 2, 0]), Err(WireError::NotZero));
    assert_eq!(StreamHead::decode([4, 0, 0, 1]), Err(WireError::NotZero));
    // Networks have no name.
    assert_eq!(StreamHead::decode([7, 0, 1, 0]), Err(WireError::NotZero));
    assert_eq!(StreamHead::decode([7, 0, 0, 1]), Err(WireError::NotZero));
    // A claim has its length.
    assert_eq!(StreamHead::decode([5, 0, 0, 19]), Err(WireError::NotZero));
    let head = StreamHead::decode([5, 0, 0, 20]).unwrap();
    assert!(head.header(&[0; 19]).is_err() && head.header(&[0; 21]).is_err());
    assert_eq!(decode_header(&[1, 0, 22, 1, 0xff]), Err(WireError::NotText));
    assert!(matches!(decode_header(b"\x01\0\0\x01a"), Err(WireError::Address(_))));
    assert!(matches!(decode_header(b"\x01\0\x16\x01\0"), Err(WireError::Address(_))));
    assert!(matches!(decode_header(b"\x02\0\0\x01a"), Err(WireError::Path(_))));
}

#[test]
fn a_udp_listener_has_its_own_kind() {
    let listen = Listen::Udp { bind: crate::addresses::forward::Bind::Loopback, port: 5353 };
    let frame = Frame::Listen { id: 1, listen, headers: ProxyHeaders::default() };
    assert_eq!(frame.encode(), [0, 6, 3, 0, 1, 3, 0x14, 0xe9, 0]);
    assert_eq!(decode_frame(&frame.encode()), Ok(Some(frame)));
}

fn decode_announcement(bytes: &[u8]) -> Result<Option<NetworkAnnouncement>, WireError> {
    let head = FrameHead::decode(*bytes.first_chunk().unwrap());
    assert_eq!(usize::from(head.body_bytes), bytes.len() - FRAME_HEAD_BYTES);
    NetworkAnnouncement::decode(head.kind, &bytes[FRAME_HEAD_BYTES..])
}

#[test]
fn a_network_is_announced_with_its_mtu_and_what_it_accepts() {
    let accepts = ["10.1.0.0/16", "2001:db8::/32"].map(|text| text.parse().unwrap());
    let announcement = NetworkAnnouncement { mtu: 1_400, accepts: accepts.to_vec() };
    let mut bytes = vec![0, 28, 1, 5, 0x78, 0, 2, 4, 10, 1, 0, 0, 16, 6, 0x20, 1, 0x0d, 0xb8];
    bytes.extend([0; 12]);
    bytes.push(32);
    assert_eq!(announcement.encode(), bytes);
    assert_eq!(decode_announcement(&bytes), Ok(Some(announcement)));
    let decode = |body: &[u8]| NetworkAnnouncement::decode(1, body);
    assert_eq!(decode(&[5, 0x78, 0, 1, 5, 0]), Err(WireError::UnknownFamily(5)));
    assert_eq!(decode(&[5, 0x78, 0, 1, 4, 10, 1, 0, 1, 16]), Err(WireError::BadPrefix));
    assert_eq!(decode(&[5, 0x78, 0, 1, 4, 10, 1, 0, 0, 33]), Err(WireError::BadPrefix));
    assert_eq!(decode(&[5, 0x78, 0, 1, 4, 10]), Err(WireError::ShortFrame { kind: 1 }));
    assert_eq!(NetworkAnnouncement::decode(2, &[]), Ok(None));
    let many = NetworkAnnouncement { mtu: 0, accepts: vec![accepts[1]; 300] }.encode();
    assert_eq!(decode_announcement(&many).unwrap().unwrap().accepts.len(), NETWORKS_MAX);
    assert_eq!(many.len(), FRAME_HEAD_BYTES + NetworkAnnouncement::BODY_BYTES_MAX);
}

proptest! {
    #[test]
    fn decoding_never_panics(
        kind in 0..12_u8, head: [u8; 4], bytes in vec(any::<u8>(), 0..300)
    ) {
        let _ = NetworkAnnouncement::decode(kind, &bytes);
        let _ = FrameHead::decode(*head.first_chunk().unwrap());
        let _ = Frame::decode(kind, &bytes);
        if let Ok(head) = StreamHead::decode(head) {
            let _ = head.header(&bytes);
        }
    }

    #[test]
    fn frames_round_trip(
        version: u8,
        instance: [u8; 16],
        id: u16,
        code: u8,
        seconds: u32,
        proof: [u8; 32],
        flag: bool,
        at in "((|\\*:|[a-z0-9][a-z0-9.-]{0,254}:)[1-9][0-9]{0,3}|/[a-z/]{0,105}x)",
    ) {
        let outcome = ListenCode::from_value(code).map_or(Ok(id), Err);
        let request = Some(HoldRequest { seconds, proof: flag.then_some(proof) });
        let grant = Some(HoldGrant { seconds, epoch: !seconds, proof: flag.then_some(proof) });
        for frame in [
            Frame::HelloClient { version, instance: Instance(instance), hold: None },
            Frame::HelloClient { version, instance: Instance(instance), hold: request },
            Frame::HelloServer { version, hold: None, home: None },
            Frame::HelloServer { version, hold: grant.clone(), home: None },
            Frame::HelloServer { version, hold: None, home: flag.then_some(ServerId([code; 8])) },
            Frame::HelloServer { version, hold: grant, home: flag.then_some(ServerId([code; 8])) },
            Frame::Claims { count: seconds },
            Frame::MaxForwards { count: seconds },
            Frame::Listen {
                id,
                listen: listen(&at),
                headers: ProxyHeaders { send: flag, accept: code % 2 == 0 },
            },
            Frame::Listening { id, outcome },
            Frame::Unlisten { id },
            Frame::Ping,
            Frame::BulkOffer,
            Frame::BulkWanted,
            Frame::Renew,
            Frame::Leave { leave: flag },
            Frame::HelloBulk { version, instance: Instance(instance), proof },
        ] {
            prop_assert!(frame.encode().len() <= FRAME_HEAD_BYTES + Frame::BODY_BYTES_MAX);
            prop_assert_eq!(decode_frame(&frame.encode()), Ok(Some(frame)));
        }
    }

    #[test]
    fn headers_round_trip(
        host in "[a-z0-9][a-z0-9.-]{0,254}", port in 1..=u16::MAX, path in "/[a-z/]{0,105}x",
        epoch: u32, stream: u64, receipt: u64,
    ) {
        let name = StreamName { epoch, stream };
        let host: Host = host.parse().unwrap();
        for header in [
            StreamHeader::Destination(Destination::Udp(Target { host: host.clone(), port })),
            StreamHeader::Destination(Destination::Tcp(Target { host, port })),
            StreamHeader::Destination(Destination::Unix(path.parse().unwrap())),
            StreamHeader::Remote(port),
            StreamHeader::Network,
            StreamHeader::Resume(Claim { name, receipt: Receipt::decode(receipt) }),
        ] {
            prop_assert_eq!(decode_header(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn codes_round_trip(value: u64, byte in 1..=u8::MAX, close in 0..8_u32) {
        prop_assert_eq!(CloseCode::from_value(close.into()).map(CloseCode::value), Some(close));
        prop_assert_eq!(CloseCode::from_value(value.saturating_add(8)), None);
        prop_assert_eq!(StreamCode::from_value(value).value(), value);
        prop_assert_eq!(ListenCode::from_value(byte).map(ListenCode::value), Some(byte));
    }
}
