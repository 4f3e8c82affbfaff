//! Encodes and decodes the frames of the control stream.
//!
//! Knows bytes; what a frame asks for is decided by its reader.

use keypadd_provider::TokenProof;
use keypadd_transport::ServerId;

use crate::{
    addresses::{
        forward::{Bind, Listen, ProxyHeaders},
        target::HOST_BYTES_MAX,
    },
    wire::{
        code::ListenCode,
        error::WireError,
        fields::Fields,
        hello::{HoldGrant, HoldRequest, Instance, encode_answer, encode_request},
    },
};

/// Bytes before a frame's body: length and type.
pub const FRAME_HEAD_BYTES: usize = 3;

const TYPE_HELLO_CLIENT: u8 = 1;
const TYPE_HELLO_SERVER: u8 = 2;
const TYPE_LISTEN: u8 = 3;
const TYPE_LISTENING: u8 = 4;
const TYPE_UNLISTEN: u8 = 5;
const TYPE_PING: u8 = 6;
const TYPE_BULK_OFFER: u8 = 7;
const TYPE_BULK_WANTED: u8 = 8;
const TYPE_HELLO_BULK: u8 = 9;
const TYPE_CLAIMS: u8 = 10;
const TYPE_RENEW: u8 = 11;
const TYPE_MAX_FORWARDS: u8 = 12;
const TYPE_LEAVE: u8 = 13;

// What a listener has to do with PROXY headers.
const SEND_PROXY: u8 = 1;
const ACCEPT_PROXY: u8 = 2;

const LISTEN_TCP: u8 = 1;
const LISTEN_UNIX: u8 = 2;
const LISTEN_UDP: u8 = 3;

/// A control frame of a known type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The client's first frame.
    HelloClient {
        /// The client's version.
        version: u8,
        /// The client's run.
        instance: Instance,
        /// Whether it holds streams.
        hold: Option<HoldRequest>,
    },
    /// The server's first frame. The client may open streams then.
    HelloServer {
        /// The server's version.
        version: u8,
        /// Whether streams are held.
        hold: Option<HoldGrant>,
        /// By which a balancer finds the server.
        home: Option<ServerId>,
    },
    /// From the client: listen there, and open a stream with this number for each connection.
    Listen {
        /// The client's number for the forward, unused in this session.
        id: u16,
        /// Where to listen.
        listen: Listen,
        /// What to do with PROXY headers. A server without that feature must not be asked: it would
        /// not notice.
        headers: ProxyHeaders,
    },
    /// From the server: the answer to a `Listen`.
    Listening {
        /// The client's number.
        id: u16,
        /// The bound port (0 for a unix socket), or why it failed.
        outcome: Result<u16, ListenCode>,
    },
    /// From the client: stop listening. Open connections stay.
    Unlisten {
        /// The client's number.
        id: u16,
    },
    /// From either end: liveness check. QUIC's acknowledgment is the answer.
    Ping,
    /// From the server: the client may make a second connection for bulk streams.
    BulkOffer,
    /// From the server: it has bulk data to send, or on a long path may have soon, so the client
    /// should make that connection.
    BulkWanted,
    /// The first frame of either end on that connection.
    HelloBulk {
        /// The sender's version.
        version: u8,
        /// The client's run.
        instance: Instance,
        /// Proves that the sender has the session's token.
        proof: TokenProof,
    },
    /// From the client, once: how many streams it resumes. The server ends the others that it
    /// holds.
    Claims {
        /// So many streams begin with a claim.
        count: u32,
    },
    /// From the server: its keys have served long enough, so the client should connect again and
    /// take its streams along.
    Renew,
    /// From either end, after the hellos: the most streams for connections that the other end may
    /// have open.
    MaxForwards {
        /// So many at once.
        count: u32,
    },
    /// From the server, which is drained: the client should make its new connections at another
    /// server, and leave those that are open here.
    Leave {
        /// Otherwise it may stay.
        leave: bool,
    },
}

/// The first three bytes of a control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Length of the body.
    pub body_bytes: u16,
    /// The frame's type, known or not.
    pub kind: u8,
}

impl FrameHead {
    /// Decodes the three bytes; every value is valid.
    pub fn decode(bytes: [u8; FRAME_HEAD_BYTES]) -> Self {
        let [high, low, kind] = bytes;
        Self { body_bytes: u16::from_be_bytes([high, low]), kind }
    }
}

impl Frame {
    /// Longest body of a known frame; in a longer body the rest is skipped.
    pub const BODY_BYTES_MAX: usize = 7 + HOST_BYTES_MAX;

    /// Encodes the frame: head and body.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::HelloClient { version, instance, hold } => {
                let hold = hold.as_ref().map(encode_request).unwrap_or_default();
                (TYPE_HELLO_CLIENT, [&[*version][..], &instance.0, &hold].concat())
            }
            Self::HelloServer { version, hold, home } => {
                let answer = encode_answer(hold.as_ref(), *home);
                (TYPE_HELLO_SERVER, [&[*version][..], &answer].concat())
            }
            Self::Listen { id, listen, headers } => {
                (TYPE_LISTEN, encode_listen(*id, listen, *headers))
            }
            Self::Listening { id, outcome } => {
                let (code, port) = match outcome {
                    Ok(port) => (0, *port),
                    Err(code) => (code.value(), 0),
                };
                (TYPE_LISTENING, [&id.to_be_bytes()[..], &[code], &port.to_be_bytes()].concat())
            }
            Self::Unlisten { id } => (TYPE_UNLISTEN, id.to_be_bytes().to_vec()),
            Self::Ping => (TYPE_PING, Vec::new()),
            Self::BulkOffer => (TYPE_BULK_OFFER, Vec::new()),
            Self::BulkWanted => (TYPE_BULK_WANTED, Vec::new()),
            Self::HelloBulk { version, instance, proof } => {
                (TYPE_HELLO_BULK, [&[*version][..], &instance.0, proof].concat())
            }
            Self::Claims { count } => (TYPE_CLAIMS, count.to_be_bytes().to_vec()),
            Self::Renew => (TYPE_RENEW, Vec::new()),
            Self::MaxForwards { count } => (TYPE_MAX_FORWARDS, count.to_be_bytes().to_vec()),
            Self::Leave { leave } => (TYPE_LEAVE, vec![u8::from(*leave)]),
        };
        let length = u16::try_from(body.len()).expect("our own bodies are short");
        [&length.to_be_bytes()[..], &[kind], &body].concat()
    }

    /// Decodes a body; `None` for an unknown type. Bytes after the known fields are skipped, so
    /// that later versions can add fields.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Option<Self>, WireError> {
        let mut fields = Fields { kind, rest: body };
        Ok(Some(match kind {
            TYPE_HELLO_CLIENT => Self::HelloClient {
                version: fields.byte()?,
                instance: Instance(fields.array()?),
                hold: fields.hold_request()?,
            },
            TYPE_HELLO_SERVER => Self::HelloServer {
                version: fields.byte()?,
                hold: fields.hold_grant()?,
                home: fields.server_id(),
            },
            TYPE_LISTEN => Self::Listen {
                id: fields.number()?,
                listen: decode_listen(&mut fields)?,
                headers: decode_proxy_headers(&mut fields),
            },
            TYPE_LISTENING => {
                let (id, code, port) = (fields.number()?, fields.byte()?, fields.number()?);
                let outcome = ListenCode::from_value(code).map_or(Ok(port), Err);
                Self::Listening { id, outcome }
            }
            TYPE_UNLISTEN => Self::Unlisten { id: fields.number()? },
            TYPE_PING => Self::Ping,
            TYPE_BULK_OFFER => Self::BulkOffer,
            TYPE_BULK_WANTED => Self::BulkWanted,
            TYPE_HELLO_BULK => Self::HelloBulk {
                version: fields.byte()?,
                instance: Instance(fields.array()?),
                proof: fields.array()?,
            },
            TYPE_CLAIMS => Self::Claims { count: fields.long()? },
            TYPE_RENEW => Self::Renew,
            TYPE_MAX_FORWARDS => Self::MaxForwards { count: fields.long()? },
            TYPE_LEAVE => Self::Leave { leave: fields.byte()? != 0 },
            _ => return Ok(None),
        }))
    }
}

fn encode_listen(id: u16, listen: &Listen, headers: ProxyHeaders) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    let text = match listen {
        Listen::Tcp { bind, port } | Listen::Udp { bind, port } => {
            let is_udp = matches!(listen, Listen::Udp { .. });
            body.push(if is_udp { LISTEN_UDP } else { LISTEN_TCP });
            body.extend(port.to_be_bytes());
            match bind {
                Bind::Loopback => String::new(),
                Bind::All => "*".into(),
                Bind::Host(host) => host.to_string(),
            }
        }
        Listen::Unix(path) => {
            body.push(LISTEN_UNIX);
            path.to_string()
        }
    };
    debug_assert!(text.len() <= HOST_BYTES_MAX, "hosts and paths are at most 255 bytes");
    let text_bytes = u8::try_from(text.len()).unwrap_or(u8::MAX);
    body.push(text_bytes);
    body.extend(text.bytes().take(text_bytes.into()));
    let ProxyHeaders { send, accept } = headers;
    if send || accept {
        body.push((u8::from(send) * SEND_PROXY) | (u8::from(accept) * ACCEPT_PROXY));
    }
    body
}

fn decode_listen(fields: &mut Fields<'_>) -> Result<Listen, WireError> {
    match fields.byte()? {
        kind @ (LISTEN_TCP | LISTEN_UDP) => {
            let port = fields.number()?;
            let bind = match fields.text()? {
                "" => Bind::Loopback,
                "*" => Bind::All,
                host => Bind::Host(host.parse()?),
            };
            Ok(match kind {
                LISTEN_UDP => Listen::Udp { bind, port },
                _ => Listen::Tcp { bind, port },
            })
        }
        LISTEN_UNIX => Ok(Listen::Unix(fields.text()?.parse()?)),
        kind => Err(WireError::UnknownListen(kind)),
    }
}

/// None, if there is no such field.
fn decode_proxy_headers(fields: &mut Fields<'_>) -> ProxyHeaders {
    let bits = fields.byte().unwrap_or(0);
    ProxyHeaders { send: bits & SEND_PROXY != 0, accept: bits & ACCEPT_PROXY != 0 }
}
