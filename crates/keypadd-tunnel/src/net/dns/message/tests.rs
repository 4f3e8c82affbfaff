//! Answers as servers and attackers write them.

use proptest::prelude::*;
use testbed::dns::{Answer, NXDOMAIN, answer, truncated};

use super::*;

const NAME: &str = "_keypadd._udp.example.com";

fn question() -> SrvQuestion {
    SrvQuestion::with_id(0x4b44, &NAME.parse().unwrap())
}

fn read(records: &[Answer<'_>]) -> Option<SrvReply> {
    question().read(&answer(&question().encode(), 0, records))
}

fn record(priority: u16, weight: u16, target: Option<&str>) -> SrvRecord {
    SrvRecord { priority, weight, target: target.map(|target| target.parse().unwrap()) }
}

#[test]
fn a_question_is_what_rfc_1035_says() {
    let head = b"\x4b\x44\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00";
    let asked = b"\x08_keypadd\x04_udp\x07example\x03com\x00\x00\x21\x00\x01";
    assert_eq!(question().encode(), [&head[..], asked].concat());
}

#[test]
fn records_are_read_with_their_priorities_weights_ports_and_targets() {
    let records =
        [Answer::Srv(10, 60, 4433, "a.example.com"), Answer::Srv(20, 0, 99, "B.example.")];
    let expected =
        [record(10, 60, Some("a.example.com:4433")), record(20, 0, Some("B.example:99"))];
    assert_eq!(read(&records), Some(SrvReply::Records(expected.into())));
    assert_eq!(read(&[]), Some(SrvReply::Records(Vec::new())));
    assert_eq!(
        read(&[Answer::Srv(0, 0, 0, ".")]),
        Some(SrvReply::Records(vec![record(0, 0, None)]))
    );
}

#[test]
fn records_that_lead_nowhere_or_are_of_another_name_do_not_count() {
    let records = [
        Answer::Srv(1, 1, 0, "port.example"),
        Answer::Srv(1, 1, 9, "127.0.0.1"),
        Answer::Srv(1, 1, 9, "a b.example"),
        Answer::SrvAt("_other._udp.example.com", 1, 1, 9, "c.example"),
        Answer::SrvAt("_KEYPADD._udp.Example.com", 1, 1, 9, "good.example"),
    ];
    assert_eq!(read(&records), Some(SrvReply::Records(vec![record(1, 1, Some("good.example:9"))])));
}

#[test]
fn aliases_are_followed_in_any_order_and_loops_of_them_end() {
    let records = [
        Answer::SrvAt("c.example", 1, 2, 3, "good.example"),
        Answer::Cname("b.example", "c.example"),
        Answer::Cname(NAME, "b.example"),
    ];
    assert_eq!(read(&records), Some(SrvReply::Records(vec![record(1, 2, Some("good.example:3"))])));
    let loops = [Answer::Cname(NAME, "b.example"), Answer::Cname("b.example", NAME)];
    assert_eq!(read(&loops), Some(SrvReply::Records(Vec::new())));
}

#[test]
fn codes_and_truncation_are_told_apart() {
    let asked = question().encode();
    let code = |code| question().read(&answer(&asked, code, &[]));
    assert_eq!(code(NXDOMAIN), Some(SrvReply::NoName));
    assert_eq!(code(2), Some(SrvReply::Refused(Rcode::SERVFAIL)));
    assert_eq!(question().read(&truncated(&asked)), Some(SrvReply::Truncated));
}

#[test]
fn the_answer_to_another_question_is_none() {
    let good = answer(&question().encode(), 0, &[Answer::Srv(1, 1, 1, "a.example")]);
    assert!(question().read(&good).is_some());
    let changed = |at: usize, value: u8| {
        let mut bad = good.clone();
        bad[at] = value;
        question().read(&bad)
    };
    // Its ID, that it is an answer, how many questions it repeats, and their name, type and class.
    let length = question().encode().len();
    for (at, value) in
        [(0, 1), (2, 0x01), (5, 2), (5, 0), (13, b'x'), (length - 3, 1), (length - 1, 3)]
    {
        assert_eq!(changed(at, value), None, "byte {at}");
    }
    assert_eq!(question().read(&[]), None);
}

#[test]
fn names_that_point_to_themselves_and_lengths_that_lie_are_malformed() {
    let asked = question().encode();
    let head = |data: &[u8]| {
        let mut message = answer(&asked, 0, &[]);
        message[7] = 1;
        [&message[..], data].concat()
    };
    let here = u8::try_from(asked.len()).unwrap();
    let fixed = b"\x00\x21\x00\x01\x00\x00\x00\x3c";
    let at_itself = head(&[&[0xc0, here][..], fixed, b"\x00\x07\0\0\0\0\0\x01\x00"].concat());
    let target_at_itself =
        head(&[&b"\xc0\x0c"[..], fixed, b"\x00\x08\0\0\0\0\0\x01", &[0xc0, here + 18]].concat());
    let too_long = head(&[&b"\xc0\x0c"[..], fixed, b"\xff\xff\0\0\0\0\0\x01\x00"].concat());
    let too_short = head(&[&b"\xc0\x0c"[..], fixed, b"\x00\x03\0\0\0\0\0\x01\x00"].concat());
    let missing = head(&[]);
    for bad in [at_itself, target_at_itself, too_long, too_short, missing] {
        assert_eq!(question().read(&bad), Some(SrvReply::Malformed), "{bad:?}");
    }
}

#[test]
fn an_answer_of_64_kib_full_of_aliases_is_read() {
    let asked = question().encode();
    let mut message = answer(&asked, 0, &[]);
    // Aliases of the name to itself, as short as they can be.
    let alias = b"\xc0\x0c\x00\x05\x00\x01\x00\x00\x00\x3c\x00\x02\xc0\x0c";
    let count = (usize::from(u16::MAX) - message.len()) / alias.len();
    message[6..8].copy_from_slice(&u16::try_from(count).unwrap().to_be_bytes());
    message.extend(alias.repeat(count));
    assert_eq!(question().read(&message), Some(SrvReply::Records(Vec::new())));
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer_or_none(
        body in prop::collection::vec(any::<u8>(), 0..600),
        counts in any::<[u8; 6]>(),
    ) {
        let _ = question().read(&body);
        // Behind a head and a question that are good.
        let mut message = answer(&question().encode(), 0, &[]);
        message[6..12].copy_from_slice(&counts);
        message.extend(body);
        let _ = question().read(&message);
    }

    #[test]
    fn an_answer_with_changed_bytes_is_read_or_not(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let records = [
            Answer::Cname(NAME, "b.example"),
            Answer::SrvAt("b.example", 1, 1, 1, "a.example"),
            Answer::Srv(2, 2, 2, "c.example"),
        ];
        let mut message = answer(&question().encode(), 0, &records);
        for (at, value) in changes {
            let at = at.index(message.len());
            message[at] = value;
        }
        message.truncate(cut.index(message.len()) + 1);
        let _ = question().read(&message);
    }
}
