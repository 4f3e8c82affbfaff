//! Joins segments of TCP into what the host's stack takes at once, as its own GRO would.
//!
//! Segments are joined only if cutting them gives the same packets again: their headers differ in
//! lengths, numbers and checksums alone. One with a wrong checksum is not joined: it would become
//! right. The packets of a connection keep their order; those of others may overtake them. Nothing
//! waits here for long: the caller flushes when it has passed on all that has arrived.

use std::io::IoSlice;

use bytes::Bytes;

use crate::{
    checksum,
    device_header::{ChecksumAt, Cut, DEVICE_HEADER_BYTES, DeviceHeader, Segments},
    packet::{
        ICMP, ICMPV6, TCP, TCP_BYTES, UDP, pseudo_header, set_length, set_short, short, v4, v6,
    },
    super_packet::TCP_CHECKSUM_AT,
};

/// Connections whose segments are joined at the same time, as many as Linux joins in one place.
pub(crate) const CONNECTIONS_MAX: usize = 8;

/// Segments that are joined at most.
pub(crate) const SEGMENTS_MAX: usize = 64;

/// Bytes of what is joined, with its headers.
const JOINED_BYTES_MAX: usize = u16::MAX as usize;

/// Flags of TCP, in byte 13.
const ACK: u8 = 0x10;
const PUSH: u8 = 0x08;

/// Joins the packets for one device.
#[derive(Debug, Default)]
pub struct Coalescer {
    /// At most one of each connection, the oldest first.
    runs: Vec<Run>,
}

/// What a device is given at once: a packet, or segments that have been joined.
#[derive(Debug)]
pub struct Joined {
    /// The device's header, and the headers of what is joined.
    head: Vec<u8>,
    /// The packets as they came.
    packets: Vec<Bytes>,
    /// What of each packet comes after `head`.
    payload_at: usize,
}

/// Segments that follow one another, to be joined.
#[derive(Debug)]
struct Run {
    packets: Vec<Bytes>,
    first: Segment,
    /// The sequence number that follows.
    next: u32,
    payload_bytes: usize,
    /// Whether the last one was as long as the first, and without PSH.
    may_grow: bool,
    has_push: bool,
}

/// Where things are in a segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    transport_at: usize,
    payload_at: usize,
    payload_bytes: usize,
    sequence: u32,
    has_push: bool,
}

/// What a packet means for those that wait.
enum Class {
    /// A segment that may be joined to others.
    Joinable(Segment),
    /// Another one of a connection, whose header of TCP begins here.
    OfConnection(usize),
    /// No packet of TCP.
    NotTcp,
    /// Anything else.
    Unknown,
}

impl Coalescer {
    /// Takes a valid packet ([`Packet::parse`](crate::Packet::parse)). Calls `write` with what is
    /// not to wait any more, in its order.
    pub fn push(&mut self, packet: Bytes, mut write: impl FnMut(Joined)) {
        match Class::of(&packet) {
            Class::Joinable(segment) => {
                let connection = self.position(&packet, segment.transport_at);
                let run = connection.and_then(|at| self.runs.get_mut(at));
                if let Some(run) = run.filter(|run| run.takes(&packet, &segment)) {
                    return run.add(packet, &segment);
                }
                if let Some(at) = connection {
                    write(self.runs.remove(at).join());
                } else if self.runs.len() >= CONNECTIONS_MAX {
                    write(self.runs.remove(0).join());
                }
                self.runs.push(Run::new(packet, segment));
            }
            Class::OfConnection(transport_at) => {
                if let Some(at) = self.position(&packet, transport_at) {
                    write(self.runs.remove(at).join());
                }
                write(Joined::one(packet));
            }
            Class::NotTcp => write(Joined::one(packet)),
            Class::Unknown => {
                self.flush(&mut write);
                write(Joined::one(packet));
            }
        }
    }

    /// Lets go of all that waits.
    pub fn flush(&mut self, mut write: impl FnMut(Joined)) {
        self.runs.drain(..).for_each(|run| write(run.join()));
    }

    /// The run of a packet's connection.
    fn position(&self, packet: &[u8], transport_at: usize) -> Option<usize> {
        let connection = connection(packet, transport_at)?;
        let is_of = |run: &Run| {
            let of_run = run.packets.first();
            of_run.and_then(|first| self::connection(first, run.first.transport_at))
                == Some(connection)
        };
        self.runs.iter().position(is_of)
    }
}

/// Addresses and ports.
fn connection(packet: &[u8], transport_at: usize) -> Option<(&[u8], &[u8])> {
    let addresses = if is_v4(packet) { 12..v4::HEADER_BYTES } else { 8..v6::HEADER_BYTES };
    Some((packet.get(addresses)?, packet.get(transport_at..transport_at + 4)?))
}

fn is_v4(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 4)
}

impl Class {
    fn of(packet: &[u8]) -> Self {
        // Headers without options and without fragments: those of almost all packets.
        let (protocol, transport_at) = match *packet {
            [0x45, _, _, _, _, _, fragment, offset, _, protocol, ..]
                if fragment & 0x3f == 0 && offset == 0 =>
            {
                (protocol, v4::HEADER_BYTES)
            }
            [first, _, _, _, _, _, protocol, ..] if first >> 4 == 6 => (protocol, v6::HEADER_BYTES),
            _ => return Self::Unknown,
        };
        match protocol {
            TCP => Segment::joinable(packet, transport_at)
                .map_or(Self::OfConnection(transport_at), Self::Joinable),
            UDP | ICMP | ICMPV6 => Self::NotTcp,
            _ => Self::Unknown,
        }
    }
}

impl Segment {
    /// Reads a segment that carries data and says nothing else.
    fn joinable(packet: &[u8], transport_at: usize) -> Option<Self> {
        let transport = packet.get(transport_at..)?;
        let header: &[u8; TCP_BYTES] = transport.first_chunk()?;
        let [_, _, _, _, s0, s1, s2, s3, .., offset, flags, _, _, _, _, _, _] = *header;
        let header_bytes = usize::from(offset >> 4) * 4;
        let payload_bytes = transport.len().checked_sub(header_bytes).filter(|it| *it > 0)?;
        let is_data = flags & !PUSH == ACK && offset & 0x0f == 0;
        // As right as 0, which it would be cut with.
        let is_odd = header.get(TCP_CHECKSUM_AT..TCP_CHECKSUM_AT + 2) == Some(&[0xff; 2]);
        let sum =
            checksum::add(pseudo_header(packet, TCP, transport.len())?, checksum::sum(transport));
        (is_data && !is_odd && sum == u16::MAX).then_some(Self {
            transport_at,
            payload_at: transport_at + header_bytes,
            payload_bytes,
            sequence: u32::from_be_bytes([s0, s1, s2, s3]),
            has_push: flags & PUSH != 0,
        })
    }
}

impl Run {
    fn new(packet: Bytes, first: Segment) -> Self {
        Self {
            packets: vec![packet],
            first,
            next: next(&first),
            payload_bytes: first.payload_bytes,
            may_grow: !first.has_push,
            has_push: first.has_push,
        }
    }

    /// Whether a segment of its connection can be joined to it.
    fn takes(&self, packet: &[u8], segment: &Segment) -> bool {
        let bytes = self.first.payload_at + self.payload_bytes + segment.payload_bytes;
        self.may_grow
            && segment.sequence == self.next
            && segment.payload_at == self.first.payload_at
            && segment.payload_bytes <= self.first.payload_bytes
            && bytes <= JOINED_BYTES_MAX
            && self.packets.len() < SEGMENTS_MAX
            && self.packets.first().is_some_and(|first| self.has_same_headers(first, packet))
    }

    fn has_same_headers(&self, first: &[u8], packet: &[u8]) -> bool {
        let same = |from: usize, to: usize| first.get(from..to) == packet.get(from..to);
        let same_ip = if is_v4(first) {
            // With DF it means nothing (RFC 6864 4.1).
            let has_meaning = first.get(6).is_some_and(|flags| flags & 0x40 == 0);
            let number = short(first, 4).map(|it| it.wrapping_add(self.packets.len() as u16));
            (!has_meaning || short(packet, 4) == number)
                && same(0, 2)
                && same(6, 10)
                && same(12, v4::HEADER_BYTES)
        } else {
            same(0, 4) && same(6, v6::HEADER_BYTES)
        };
        let at = self.first.transport_at;
        let (flags_at, window_at, urgent_at) = (at + 13, at + 14, at + 18);
        // What was acknowledged and the length of the header; flags but PSH are the same in all.
        same_ip
            && same(at + 8, flags_at)
            && same(window_at, window_at + 2)
            && same(urgent_at, self.first.payload_at)
    }

    fn add(&mut self, packet: Bytes, segment: &Segment) {
        self.packets.push(packet);
        self.next = next(segment);
        self.payload_bytes += segment.payload_bytes;
        self.has_push = segment.has_push;
        self.may_grow = !segment.has_push && segment.payload_bytes == self.first.payload_bytes;
    }

    fn join(mut self) -> Joined {
        if self.packets.len() > 1
            && let Some(head) = self.head()
        {
            return Joined { head, packets: self.packets, payload_at: self.first.payload_at };
        }
        // There is one, at least.
        Joined::one(self.packets.pop().unwrap_or_default())
    }

    /// The device's header, and the headers of all segments as one.
    fn head(&self) -> Option<Vec<u8>> {
        let Segment { transport_at, payload_at, payload_bytes, .. } = self.first;
        let first = self.packets.first()?;
        let header = DeviceHeader {
            checksum: Some(ChecksumAt {
                start: u16::try_from(transport_at).ok()?,
                offset: TCP_CHECKSUM_AT as u16,
            }),
            cut: Some(Cut {
                into: if is_v4(first) { Segments::TcpV4 } else { Segments::TcpV6 },
                payload_bytes: u16::try_from(payload_bytes).ok()?,
                header_bytes: u16::try_from(payload_at).ok()?,
            }),
        };
        let mut head = header.encode().to_vec();
        head.extend_from_slice(first.get(..payload_at)?);
        let (ip, transport) =
            head.get_mut(DEVICE_HEADER_BYTES..)?.split_at_mut_checked(transport_at)?;
        let bytes = payload_at + self.payload_bytes;
        set_length(ip, bytes)?;
        if self.has_push {
            *transport.get_mut(13)? |= PUSH;
        }
        // The device's side adds the rest.
        set_short(transport, TCP_CHECKSUM_AT, pseudo_header(ip, TCP, bytes - transport_at)?)?;
        Some(head)
    }
}

fn next(segment: &Segment) -> u32 {
    // No segment is longer than 64 KiB.
    segment.sequence.wrapping_add(segment.payload_bytes as u32)
}

impl Joined {
    /// A packet as it came.
    pub fn one(packet: Bytes) -> Self {
        Self { head: DeviceHeader::default().encode().into(), packets: vec![packet], payload_at: 0 }
    }

    /// The packets as they came.
    pub fn packets(&self) -> &[Bytes] {
        &self.packets
    }

    /// What the device is given, one after the other.
    pub fn parts(&self) -> Vec<IoSlice<'_>> {
        let payloads = self.packets.iter().map(|packet| packet.get(self.payload_at..));
        let payloads = payloads.map(Option::unwrap_or_default);
        std::iter::once(&self.head[..]).chain(payloads).map(IoSlice::new).collect()
    }
}

#[cfg(test)]
mod tests;
