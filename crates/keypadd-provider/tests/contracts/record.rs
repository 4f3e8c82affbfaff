//! Records what quinn does with the sealing keys of one end.

use std::sync::{Arc, Mutex, PoisonError};

use interposer::{Interposer, Origin};
use quinn_proto::crypto::PacketKey;

/// Something that quinn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Made(Origin),
    Sealed { by: Origin, form: Form, number: u64, room_for_tag: bool },
    Dropped(Origin),
}

/// A packet's type, by its first byte (RFC 9000 17.2, 17.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Initial,
    ZeroRtt,
    Handshake,
    Retry,
    Short,
}

impl Form {
    fn of(header: &[u8]) -> Self {
        match (header[0] & 0x80, header[0] >> 4 & 3) {
            (0, _) => Self::Short,
            (_, 0) => Self::Initial,
            (_, 1) => Self::ZeroRtt,
            (_, 2) => Self::Handshake,
            _ => Self::Retry,
        }
    }
}

/// A packet before its header is protected.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) number: u64,
    pub(crate) header: Vec<u8>,
    pub(crate) sealed: Vec<u8>,
}

/// All events, in order.
pub(crate) struct Record {
    acts: Mutex<Vec<Act>>,
    initials: Mutex<Vec<Packet>>,
    /// The limit reported to quinn instead of the key's own.
    limit: Option<u64>,
}

impl Record {
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self { acts: Mutex::default(), initials: Mutex::default(), limit }
    }

    fn note(&self, act: Act) {
        self.acts.lock().unwrap_or_else(PoisonError::into_inner).push(act);
    }

    pub(crate) fn acts(&self) -> Vec<Act> {
        self.acts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The Initial packets as they were sealed.
    pub(crate) fn initials(&self) -> Vec<Packet> {
        self.initials.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Numbers sealed by the key that this call made.
    pub(crate) fn sealed_by(&self, origin: Origin) -> Vec<u64> {
        let acts = self.acts().into_iter();
        let sealed = acts.filter_map(|act| match act {
            Act::Sealed { by, number, .. } if by == origin => Some(number),
            _ => None,
        });
        sealed.collect()
    }
}

impl Interposer for Record {
    fn seal(
        &self,
        by: Origin,
        key: &dyn PacketKey,
        number: u64,
        buf: &mut [u8],
        header_len: usize,
    ) {
        let room_for_tag = buf.len() >= header_len + key.tag_len();
        let form = Form::of(buf);
        self.note(Act::Sealed { by, form, number, room_for_tag });
        key.encrypt(number, buf, header_len);
        if form == Form::Initial {
            let (header, sealed) = buf.split_at(header_len);
            let packet = Packet { number, header: header.into(), sealed: sealed.into() };
            self.initials.lock().unwrap_or_else(PoisonError::into_inner).push(packet);
        }
    }

    fn made(&self, origin: Origin, _: &Arc<dyn PacketKey>) {
        self.note(Act::Made(origin));
    }

    fn dropped(&self, origin: Origin) {
        self.note(Act::Dropped(origin));
    }

    fn confidentiality_limit(&self, key: &dyn PacketKey) -> u64 {
        self.limit.unwrap_or_else(|| key.confidentiality_limit())
    }
}
