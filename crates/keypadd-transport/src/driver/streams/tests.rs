//! Tests the table of streams with streams that carry nothing.

use std::time::Duration;

use quinn_proto::VarInt;

use super::*;

/// A stream as the schedule sees it.
#[derive(Debug, Default, PartialEq)]
struct Fake {
    class: Option<Class>,
    lingers_until: Option<Instant>,
    is_delivered: bool,
}

impl Scheduled for Fake {
    fn class(&self) -> Option<Class> {
        self.class
    }

    fn lingers_until(&self) -> Option<Instant> {
        self.lingers_until
    }

    fn is_failed_and_delivered(&self) -> bool {
        self.is_delivered
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn id(number: u32) -> StreamId {
    StreamId::from(VarInt::from_u32(number))
}

fn sends(class: Class) -> Fake {
    Fake { class: Some(class), ..Fake::default() }
}

fn failed(lingers_until: Instant) -> Fake {
    Fake { lingers_until: Some(lingers_until), ..Fake::default() }
}

fn with(channels: impl IntoIterator<Item = Fake>) -> StreamTable<Fake> {
    let mut streams = StreamTable::default();
    for (number, channel) in (0..).zip(channels) {
        streams.insert(id(number), channel);
    }
    streams
}

fn all_failed(streams: &mut StreamTable<Fake>, now: Instant) -> Vec<StreamId> {
    std::iter::from_fn(|| streams.next_failed(now)).collect()
}

#[test]
fn a_stream_waits_once_among_those_of_its_class_and_again_after_its_turn() {
    let mut streams =
        with([sends(Class::Bulk), sends(Class::Sparse), sends(Class::Sparse), Fake::default()]);
    assert!(!streams.some_wait());
    for number in [0, 2, 1, 2, 3, 4] {
        streams.may_send(id(number));
    }
    assert_eq!([Class::Sparse, Class::Bulk].map(|class| streams.waiting(class)), [2, 1]);
    assert_eq!(streams.next(Class::Sparse), Some(id(2)));
    streams.may_send(id(2));
    assert_eq!(streams.next(Class::Sparse), Some(id(1)));
    assert_eq!(streams.next(Class::Sparse), Some(id(2)));
    assert_eq!(streams.next(Class::Sparse), None);
    assert!(streams.some_wait(), "the one of the other class");
    assert_eq!(streams.next(Class::Bulk), Some(id(0)));
    assert!(!streams.some_wait());
}

#[test]
fn a_stream_that_replaces_another_waits_on_its_own() {
    let mut streams = with([sends(Class::Bulk)]);
    streams.may_send(id(0));
    assert!(streams.is_alone_in_bulk(id(0)) && !streams.is_alone_in_bulk(id(1)));
    assert_eq!(streams.remove(id(0)), Some(sends(Class::Bulk)));
    assert_eq!(streams.next(Class::Bulk), Some(id(0)), "its turn comes all the same");
    assert!(streams.is_alone_in_bulk(id(1)));
    streams.insert(id(0), sends(Class::Sparse));
    streams.may_send(id(0));
    assert_eq!(streams.waiting(Class::Sparse), 1);
}

#[test]
fn a_failed_stream_ends_when_the_peer_has_everything_or_its_time_is_over() {
    let start = Instant::now();
    let mut streams = with([failed(start + 2 * SECOND), failed(start + SECOND), Fake::default()]);
    for number in 0..3 {
        streams.fail(id(number));
    }
    assert!(streams.has_some_to_end());
    assert_eq!(streams.deadline(), Some(start + SECOND));
    assert_eq!(all_failed(&mut streams, start), []);
    assert!(!streams.has_some_to_end());
    assert_eq!(all_failed(&mut streams, start + SECOND), [id(1)]);
    assert_eq!(streams.deadline(), Some(start + 2 * SECOND));
    streams.get_mut(id(0)).unwrap().is_delivered = true;
    assert_eq!(all_failed(&mut streams, start + SECOND), [], "nothing has asked");
    streams.fail(id(0));
    assert_eq!(all_failed(&mut streams, start + SECOND), [id(0)]);
}

#[test]
fn a_stream_that_still_sends_lingers_longer() {
    let start = Instant::now();
    let mut streams = with([failed(start + SECOND)]);
    streams.linger(id(0));
    streams.linger(id(0));
    let channel = streams.get_mut(id(0)).unwrap();
    *channel = Fake { class: Some(Class::Sparse), ..failed(start + 3 * SECOND) };
    assert_eq!(all_failed(&mut streams, start + SECOND), []);
    assert_eq!(streams.deadline(), Some(start + 3 * SECOND));
    assert_eq!(streams.next(Class::Sparse), Some(id(0)), "what it has is sent first");
    assert_eq!(all_failed(&mut streams, start + 3 * SECOND), [id(0)]);
    assert_eq!(streams.deadline(), None);
}

#[test]
fn streams_of_a_lost_connection_end_one_after_the_other() {
    let mut streams = with([sends(Class::Bulk), Fake::default()]);
    assert!(!streams.is_empty() && !streams.has_left());
    streams.lose();
    assert!(streams.get(id(0)).is_none() && streams.has_left() && !streams.is_empty());
    let mut ended = Vec::new();
    while let Some(id) = streams.next_left() {
        ended.push(id);
        assert!(streams.remove(id).is_some());
    }
    ended.sort();
    assert_eq!(ended, [id(0), id(1)]);
    assert!(streams.is_empty() && !streams.has_left());
}

#[test]
fn all_streams_are_found_those_that_are_left_too() {
    let mut streams = with([sends(Class::Bulk), sends(Class::Bulk)]);
    streams.lose();
    streams.insert(id(9), Fake::default());
    assert_eq!(streams.iter().map(|(id, _)| id).collect::<Vec<_>>(), [id(9)]);
    for (_, channel) in streams.iter_mut() {
        channel.class = Some(Class::Sparse);
    }
    let classes: Vec<_> = streams.into_all().map(|channel| channel.class).collect();
    assert_eq!(classes, [Class::Bulk, Class::Bulk, Class::Sparse].map(Some));
}

#[test]
fn what_is_not_read_stays_before_what_arrives_meanwhile() {
    let mut streams = StreamTable::<Fake>::default();
    for number in [1, 2, 2, 3] {
        streams.arrived(id(number));
    }
    assert!(streams.has_arrived());
    assert!(streams.arrived_last(id(3)) && !streams.arrived_last(id(2)));
    let arrived = streams.take_arrived();
    assert!(!streams.has_arrived());
    streams.arrived(id(1));
    streams.put_back(arrived, 2);
    assert_eq!(streams.take_arrived(), [2, 3, 1].map(id));
}

#[test]
fn a_long_list_has_each_stream_once() {
    let mut streams = StreamTable::<Fake>::default();
    for number in 0..LISTED_AGAIN_MIN as u32 {
        streams.arrived(id(number / 2));
    }
    let arrived = streams.take_arrived();
    assert_eq!(arrived.len(), LISTED_AGAIN_MIN, "a short list is left alone");
    streams.put_back(arrived, 0);
    streams.arrived(id(0));
    assert_eq!(streams.take_arrived().len(), LISTED_AGAIN_MIN / 2);
}

#[test]
fn a_search_for_cut_splices_is_made_once() {
    let mut streams = StreamTable::<Fake>::default();
    assert!(!streams.has_some_to_end() && !streams.take_sweep());
    streams.sweep();
    assert!(streams.has_some_to_end() && streams.take_sweep());
    assert!(!streams.take_sweep());
}
