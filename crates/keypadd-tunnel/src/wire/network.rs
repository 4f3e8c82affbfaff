//! Encodes and decodes the messages in the stream of a network, which have the form of control
//! frames: `u16 length | u8 type | body`.
//!
//! They are for people who look for a mistake: what an end accepts, it decides by its own file.

use std::net::IpAddr;

use keypadd_network::Prefix;

use crate::wire::{FRAME_HEAD_BYTES, error::WireError, fields::Fields};

const TYPE_ANNOUNCE: u8 = 1;

const FAMILY_V4: u8 = 4;
const FAMILY_V6: u8 = 6;

/// Most networks of one peer.
pub const NETWORKS_MAX: usize = 256;

/// What an end says about the packets that it accepts. A later message replaces the ones before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkAnnouncement {
    /// The MTU of its device.
    pub mtu: u16,
    /// The networks that it accepts packets from.
    pub accepts: Vec<Prefix>,
}

impl NetworkAnnouncement {
    /// Longest body of a message; in a longer body the rest is skipped.
    pub const BODY_BYTES_MAX: usize = 4 + NETWORKS_MAX * (1 + 16 + 1);

    /// Encodes the message: head and body. Leaves out networks beyond [`NETWORKS_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let accepts = &self.accepts[..self.accepts.len().min(NETWORKS_MAX)];
        let mut body = self.mtu.to_be_bytes().to_vec();
        body.extend((accepts.len() as u16).to_be_bytes());
        for prefix in accepts {
            match prefix.first() {
                IpAddr::V4(address) => {
                    body.push(FAMILY_V4);
                    body.extend(address.octets());
                }
                IpAddr::V6(address) => {
                    body.push(FAMILY_V6);
                    body.extend(address.octets());
                }
            }
            body.push(prefix.bits());
        }
        let length = u16::try_from(body.len()).expect("256 networks are below 64 KiB");
        [&length.to_be_bytes()[..], &[TYPE_ANNOUNCE], &body].concat()
    }

    /// Decodes a body; `None` for an unknown type. Bytes after the known fields are skipped, so
    /// that later versions can add fields.
    ///
    /// # Errors
    /// The body is malformed.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Option<Self>, WireError> {
        if kind != TYPE_ANNOUNCE {
            return Ok(None);
        }
        let mut fields = Fields { kind, rest: body };
        let (mtu, count) = (fields.number()?, fields.number()?);
        let mut accepts = Vec::new();
        for _ in 0..usize::from(count).min(NETWORKS_MAX) {
            let family = fields.byte()?;
            let address = match family {
                FAMILY_V4 => IpAddr::from(fields.array::<4>()?),
                FAMILY_V6 => IpAddr::from(fields.array::<16>()?),
                _ => return Err(WireError::UnknownFamily(family)),
            };
            let bits = fields.byte()?;
            let prefix = format!("{address}/{bits}").parse::<Prefix>();
            accepts.push(prefix.map_err(|_| WireError::BadPrefix)?);
        }
        Ok(Some(Self { mtu, accepts }))
    }
}

const _: () = assert!(FRAME_HEAD_BYTES + NetworkAnnouncement::BODY_BYTES_MAX <= u16::MAX as usize);
