//! Holds what a device gives at once: a packet, or up to 64 KiB of one flow that the host's stack
//! has left uncut (TSO, USO).
//!
//! A super-packet waits whole, and is cut into packets when they are sent. Segments of TCP are cut
//! to fit the path of that moment, whatever length the stack has asked for; datagrams of UDP keep
//! theirs.

use bytes::{BufMut, BytesMut};

use crate::{
    checksum,
    device_header::{ChecksumAt, Cut, DEVICE_HEADER_BYTES, DeviceHeader, Segments},
    packet::{
        Malformed, Packet, Part, TCP, Transport, UDP, UDP_BYTES, pseudo_header, set_length,
        set_short, short, v4,
    },
};

/// Flags of TCP, in byte 13: the first packet alone may have one, the last alone the others.
const CWR: u8 = 0x80;
const PUSH: u8 = 0x08;
const FIN: u8 = 0x01;

/// Where a checksum is, in the header of its transport.
pub(crate) const TCP_CHECKSUM_AT: usize = 16;
const UDP_CHECKSUM_AT: usize = 6;

/// Payload that a packet is cut to, at least: every path of QUIC carries more (RFC 9000 14).
const PAYLOAD_BYTES_MIN: usize = 512;

/// What the header of a frame from a device says about its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many packets it is.
    pub packets: usize,
    /// The length of the longest of them.
    pub packet_bytes_max: usize,
    cut: Option<Cutting>,
}

/// How a packet is cut, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cutting {
    transport: Cuttable,
    /// Where the header of the transport begins.
    transport_at: usize,
    /// Where the payload begins.
    payload_at: usize,
    /// Bytes of payload in each packet.
    size: usize,
    /// Bytes of payload that have been cut off.
    taken: usize,
    /// Packets that have been cut off.
    nth: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cuttable {
    Tcp,
    Udp,
}

impl Shape {
    /// Whether its packets are cut to fit the path.
    pub fn adapts(&self) -> bool {
        self.cut.is_some_and(|cut| cut.transport == Cuttable::Tcp)
    }

    /// Reads the header of a frame from a device, and finishes the checksum of its packet if that
    /// is left to do and the packet is not to be cut. The packet follows the header's
    /// [`DEVICE_HEADER_BYTES`].
    ///
    /// # Errors
    /// The frame has no such packet.
    pub fn read(frame: &mut [u8]) -> Result<Self, Malformed> {
        let (header, packet) =
            frame.split_first_chunk_mut::<DEVICE_HEADER_BYTES>().ok_or(Malformed::Headers)?;
        let header = DeviceHeader::decode(header)?;
        let Some(cut) = header.cut else {
            if let Some(at) = header.checksum {
                finish_checksum(packet, at)?;
            }
            return Ok(Self { packets: 1, packet_bytes_max: packet.len(), cut: None });
        };
        Self::cut(packet, cut)
    }

    /// Believes neither lengths nor places but those in the packet itself: a packet that is
    /// forwarded may have been built by any host.
    fn cut(bytes: &[u8], cut: Cut) -> Result<Self, Malformed> {
        let packet = Packet::parse(bytes)?;
        let transport_at = packet.payload_at();
        let (transport, header_bytes) = match (packet.transport(), cut.into) {
            (Transport::Tcp { .. }, Segments::TcpV4 | Segments::TcpV6) => (
                Cuttable::Tcp,
                bytes.get(transport_at + 12).map_or(0, |it| usize::from(it >> 4) * 4),
            ),
            (Transport::Udp(_), Segments::Udp) => (Cuttable::Udp, UDP_BYTES),
            (_, _) => return Err(Malformed::Offload),
        };
        let payload_at = transport_at + header_bytes;
        let payload_bytes = bytes.len().checked_sub(payload_at).ok_or(Malformed::Headers)?;
        if packet.part() != Part::Whole || payload_bytes == 0 {
            return Err(Malformed::Offload);
        }
        let size = usize::from(cut.payload_bytes);
        let cutting = Cutting { transport, transport_at, payload_at, size, taken: 0, nth: 0 };
        Ok(Self {
            packets: payload_bytes.div_ceil(size),
            packet_bytes_max: payload_at + size.min(payload_bytes),
            cut: Some(cutting),
        })
    }
}

/// Adds what a checksum covers to the sum of the pseudo-header that it holds.
fn finish_checksum(packet: &mut [u8], at: ChecksumAt) -> Result<(), Malformed> {
    let (start, offset) = (usize::from(at.start), usize::from(at.offset));
    let covered = packet.get_mut(start..).ok_or(Malformed::Offload)?;
    let checksum = checksum_of(offset, checksum::sum(covered));
    set_short(covered, offset, checksum).ok_or(Malformed::Offload)
}

/// The checksum for this sum, at this place of the header: in UDP, zero means that there is none
/// (RFC 768).
fn checksum_of(at: usize, sum: u16) -> u16 {
    match (at, !sum) {
        (UDP_CHECKSUM_AT, 0) => u16::MAX,
        (_, checksum) => checksum,
    }
}

/// Packets of one flow that wait to be sent.
#[derive(Debug)]
pub struct SuperPacket {
    bytes: BytesMut,
    cut: Option<Cutting>,
}

impl SuperPacket {
    /// Takes a packet of this shape, which is a valid one ([`Packet::parse`]).
    pub fn new(packet: &[u8], shape: Shape) -> Self {
        Self { bytes: packet.into(), cut: shape.cut }
    }

    /// Takes a packet that is not to be cut.
    pub fn whole(packet: &[u8]) -> Self {
        Self { bytes: packet.into(), cut: None }
    }

    /// The packet, as it came.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many packets are left.
    pub(crate) fn packets(&self) -> usize {
        self.cut.map_or(1, |cut| {
            let left = self.bytes.len().saturating_sub(cut.payload_at + cut.taken);
            left.div_ceil(cut.size)
        })
    }

    /// Whether a part of it has been sent.
    pub(crate) fn has_begun(&self) -> bool {
        self.cut.is_some_and(|cut| cut.nth > 0)
    }

    /// Appends the next packet to a frame. If it is one of TCP, it is no longer than `room`.
    /// Returns whether there are more.
    pub(crate) fn next(&mut self, room: usize, frame: &mut BytesMut) -> bool {
        let Some(cut) = &mut self.cut else {
            frame.put_slice(&self.bytes);
            return false;
        };
        let (headers, payload) =
            self.bytes.split_at_checked(cut.payload_at).unwrap_or((&self.bytes, &[]));
        let left = payload.get(cut.taken..).unwrap_or_default();
        let taken = cut.size(room).min(left.len());
        let at = frame.len();
        frame.put_slice(headers);
        frame.put_slice(&left[..taken]);
        let is_last = taken == left.len();
        if let Some(packet) = frame.get_mut(at..) {
            cut.adapt(packet, is_last);
        }
        cut.take(taken);
        !is_last
    }

    /// Leaves out the next packet, which [`next`](Self::next) would append. Returns whether there
    /// are more.
    pub(crate) fn skip(&mut self, room: usize) -> bool {
        let Some(cut) = &mut self.cut else { return false };
        let left = self.bytes.len().saturating_sub(cut.payload_at + cut.taken);
        let taken = cut.size(room).min(left);
        cut.take(taken);
        taken < left
    }

    /// Marks it as having met congestion, with all of its packets (RFC 3168 5). Returns whether it
    /// can be: its hosts have to know of that.
    pub(crate) fn mark(&mut self) -> bool {
        mark(&mut self.bytes).is_some()
    }
}

impl Cutting {
    fn take(&mut self, payload_bytes: usize) {
        self.taken += payload_bytes;
        self.nth = self.nth.wrapping_add(1);
    }

    /// Bytes of payload in the next packet, of at most `room` with its headers if that is possible.
    fn size(&self, room: usize) -> usize {
        match (self.transport, room.checked_sub(self.payload_at)) {
            (Cuttable::Tcp, Some(fits)) if fits >= PAYLOAD_BYTES_MIN => self.size.min(fits),
            (Cuttable::Tcp | Cuttable::Udp, _) => self.size,
        }
    }

    /// Makes the headers right for this part of the payload. `None` if the packet is shorter than
    /// they are, which does not happen.
    fn adapt(&self, packet: &mut [u8], is_last: bool) -> Option<()> {
        let bytes = packet.len();
        let (ip, transport) = packet.split_at_mut_checked(self.transport_at)?;
        if ip.first()? >> 4 == 4 {
            let identification = short(ip, 4)?.wrapping_add(self.nth);
            set_short(ip, 4, identification)?;
        }
        set_length(ip, bytes)?;
        let (protocol, checksum_at) = match self.transport {
            Cuttable::Tcp => {
                let number: &mut [u8; 4] = transport.get_mut(4..)?.first_chunk_mut()?;
                let first = u32::from_be_bytes(*number);
                *number = first.wrapping_add(u32::try_from(self.taken).ok()?).to_be_bytes();
                let flags = transport.get_mut(13)?;
                *flags &= !if self.nth == 0 { 0 } else { CWR };
                *flags &= !if is_last { 0 } else { FIN | PUSH };
                (TCP, TCP_CHECKSUM_AT)
            }
            Cuttable::Udp => {
                set_short(transport, 4, u16::try_from(transport.len()).ok()?)?;
                (UDP, UDP_CHECKSUM_AT)
            }
        };
        set_short(transport, checksum_at, 0)?;
        let sum =
            checksum::add(pseudo_header(ip, protocol, transport.len())?, checksum::sum(transport));
        set_short(transport, checksum_at, checksum_of(checksum_at, sum))
    }
}

/// Sets CE in the header of a packet; `None` if its hosts do not know it.
fn mark(packet: &mut [u8]) -> Option<()> {
    let congested = match packet.first()? >> 4 {
        4 => 0x03,
        _ => 0x30,
    };
    let field = packet.get_mut(1)?;
    if *field & congested == 0 {
        return None;
    }
    *field |= congested;
    match packet.first()? >> 4 {
        4 => v4::set_checksum(packet),
        _ => Some(()),
    }
}

#[cfg(test)]
mod tests;
