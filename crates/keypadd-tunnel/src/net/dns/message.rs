//! Writes questions for SRV records and reads the answers (RFC 1035, section 4; RFC 2782).
//!
//! An answer may come from anybody: reading never panics, and takes time in proportion to its
//! length.

use std::{io, net::IpAddr};

use domain::{
    base::{
        Message, Name, ParsedName, Record,
        iana::{Class, Rcode, Rtype},
        message::RecordSection,
        name::ToName,
    },
    rdata::{Cname, Srv},
};

use crate::addresses::{
    service::ServiceName,
    target::{Host, ServerAddress},
};

/// Aliases followed within an answer.
const ALIASES_MAX: usize = 8;

/// The head of a question: recursion desired, one question.
const FLAGS_AND_COUNTS: [u8; 10] = [1, 0, 0, 1, 0, 0, 0, 0, 0, 0];

/// A question for the SRV records of a service.
#[derive(Debug)]
pub struct SrvQuestion {
    id: u16,
    /// The name, as on the wire.
    name: Vec<u8>,
}

/// The result of a question.
#[derive(Debug, PartialEq, Eq)]
pub enum SrvReply {
    /// The records; perhaps none.
    Records(Vec<SrvRecord>),
    /// There is no such name.
    NoName,
    /// The server does not answer this, with its reason.
    Refused(Rcode),
    /// The answer does not fit into a datagram.
    Truncated,
    /// The datagram is not a well-formed answer.
    Malformed,
}

/// One SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvRecord {
    /// Lower ones first.
    pub priority: u16,
    /// Its share among those of the same priority.
    pub weight: u16,
    /// Where the service is; `None` for `.`, which means that there is no such service.
    pub target: Option<ServerAddress>,
}

type Answers<'a> = RecordSection<'a, [u8]>;
type InMessage<'a> = ParsedName<&'a [u8]>;

impl SrvQuestion {
    /// A question with a random ID.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn new(name: &ServiceName) -> io::Result<Self> {
        let id = getrandom::u32().map_err(io::Error::other)? as u16;
        Ok(Self::with_id(id, name))
    }

    /// A question with this ID.
    pub fn with_id(id: u16, name: &ServiceName) -> Self {
        let mut wire = Vec::new();
        for label in name.labels() {
            // 63 at most: the name was checked.
            wire.push(label.len() as u8);
            wire.extend(label.bytes());
        }
        wire.push(0);
        Self { id, name: wire }
    }

    /// The question as sent.
    pub fn encode(&self) -> Vec<u8> {
        let kind = [Rtype::SRV.to_int().to_be_bytes(), Class::IN.to_int().to_be_bytes()];
        [&self.id.to_be_bytes()[..], &FLAGS_AND_COUNTS, &self.name, &kind.concat()].concat()
    }

    /// Reads a message; `None` if it is not the answer to this question.
    pub fn read(&self, message: &[u8]) -> Option<SrvReply> {
        let message = Message::from_slice(message).ok()?;
        let asked = Name::from_slice(&self.name).ok()?;
        let (header, question) = (message.header(), message.sole_question().ok()?);
        let is_ours = header.qr()
            && header.id() == self.id
            && (question.qtype(), question.qclass()) == (Rtype::SRV, Class::IN)
            && question.qname().name_eq(asked);
        if !is_ours {
            return None;
        }
        Some(match header.rcode() {
            _ if header.tc() => SrvReply::Truncated,
            Rcode::NOERROR => match message.answer().ok().and_then(|all| records(all, asked)) {
                Some(records) => SrvReply::Records(records),
                None => SrvReply::Malformed,
            },
            Rcode::NXDOMAIN => SrvReply::NoName,
            code => SrvReply::Refused(code),
        })
    }
}

/// The SRV records of a name or of what it is an alias of; `None` if an answer is malformed.
fn records(all: Answers<'_>, asked: &Name<[u8]>) -> Option<Vec<SrvRecord>> {
    let mut alias: Option<InMessage<'_>> = None;
    for _ in 0..=ALIASES_MAX {
        let is_owner = |name: &InMessage<'_>| match &alias {
            Some(alias) => name.name_eq(alias),
            None => name.name_eq(asked),
        };
        let mut found = Vec::new();
        for record in all.limit_to_in::<Srv<_>>() {
            let record: Record<InMessage<'_>, Srv<InMessage<'_>>> = record.ok()?;
            if is_owner(record.owner()) {
                found.extend(usable(record.data()));
            }
        }
        if !found.is_empty() {
            return Some(found);
        }
        let mut next = None;
        for record in all.limit_to_in::<Cname<_>>() {
            let record: Record<InMessage<'_>, Cname<InMessage<'_>>> = record.ok()?;
            if next.is_none() && is_owner(record.owner()) {
                next = Some(*record.data().cname());
            }
        }
        let Some(next) = next else { return Some(found) };
        alias = Some(next);
    }
    Some(Vec::new())
}

/// A record with a target, or one that says there is none.
fn usable(record: &Srv<InMessage<'_>>) -> Option<SrvRecord> {
    let (priority, weight, port) = (record.priority(), record.weight(), record.port());
    if record.target().is_root() {
        return Some(SrvRecord { priority, weight, target: None });
    }
    let host = match record.target().to_string().parse().ok()? {
        // DNS cannot have a name that looks like an address.
        Host::Address(IpAddr::V4(_) | IpAddr::V6(_)) => return None,
        name => name,
    };
    let target = (port != 0).then_some(ServerAddress { host, port })?;
    Some(SrvRecord { priority, weight, target: Some(target) })
}

#[cfg(test)]
mod tests;
