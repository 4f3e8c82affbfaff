//! Lowers the peer's `max_udp_payload_size` (RFC 9000 section 18.2) if the suite limits packet
//! size.
//!
//! quinn-proto's connection settings are fixed before the suite is negotiated, so they cannot
//! depend on it. The peer's transport parameters are read afterwards, and path MTU discovery
//! respects them.

use bytes::{Buf, BufMut};
use quinn_proto::VarInt;
use quinn_proto::coding::{Codec, UnexpectedEnd};

/// `max_udp_payload_size`, RFC 9000 section 18.2. Without it, all sizes are accepted.
const MAX_UDP_PAYLOAD_SIZE: VarInt = VarInt::from_u32(0x03);

/// Lowers `max_udp_payload_size` in encoded transport parameters to `most`. Malformed parameters
/// stay unchanged: quinn-proto rejects them.
pub(crate) fn bounded(parameters: &[u8], most: u16) -> Vec<u8> {
    bound(parameters, most).unwrap_or_else(|_| parameters.to_vec())
}

fn bound(mut parameters: &[u8], most: u16) -> Result<Vec<u8>, UnexpectedEnd> {
    let mut bounded = Vec::with_capacity(parameters.len() + 8);
    let mut is_stated = false;
    while !parameters.is_empty() {
        let from = parameters;
        let id = VarInt::decode(&mut parameters)?;
        let bytes = VarInt::decode(&mut parameters)?;
        let bytes = usize::try_from(bytes.into_inner()).map_err(|_| UnexpectedEnd)?;
        let mut value = parameters.get(..bytes).ok_or(UnexpectedEnd)?;
        parameters.advance(bytes);
        if id == MAX_UDP_PAYLOAD_SIZE {
            is_stated = true;
            let size = VarInt::decode(&mut value)?;
            if value.is_empty() && size > most.into() {
                write(&mut bounded, most);
                continue;
            }
        }
        bounded.put_slice(&from[..from.len() - parameters.len()]);
    }
    if !is_stated {
        write(&mut bounded, most);
    }
    Ok(bounded)
}

fn write(parameters: &mut Vec<u8>, size: u16) {
    let size = VarInt::from(size);
    let mut value = Vec::new();
    size.encode(&mut value);
    MAX_UDP_PAYLOAD_SIZE.encode(parameters);
    VarInt::from_u32(value.len() as u32).encode(parameters);
    parameters.put_slice(&value);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `max_idle_timeout` of 30 s.
    const OTHER: [u8; 4] = [0x01, 0x02, 0x75, 0x30];
    /// A size of 1,452 bytes.
    const BOUND: [u8; 4] = [0x03, 0x02, 0x45, 0xac];

    fn bounded_to_1452(parts: &[&[u8]]) -> Vec<u8> {
        bounded(&parts.concat(), 1_452)
    }

    #[test]
    fn a_larger_size_is_lowered_and_nothing_else_changes() {
        let larger: [&[u8]; 2] = [&[0x03, 0x02, 0x45, 0xad], &[0x03, 0x04, 0x80, 0x00, 0xff, 0xf7]];
        for size in larger {
            assert_eq!(bounded_to_1452(&[&OTHER, size, &OTHER]), [OTHER, BOUND, OTHER].concat());
        }
    }

    #[test]
    fn a_missing_size_is_added() {
        assert_eq!(bounded_to_1452(&[&OTHER]), [OTHER, BOUND].concat());
        assert_eq!(bounded_to_1452(&[]), BOUND);
    }

    #[test]
    fn a_smaller_size_is_kept() {
        for size in [[0x03, 0x02, 0x44, 0xb0], BOUND] {
            assert_eq!(bounded_to_1452(&[&size, &OTHER]), [size, OTHER].concat());
        }
    }

    #[test]
    fn malformed_parameters_are_left_for_quinn_to_reject() {
        let malformed: [&[u8]; 5] = [
            &[0x03],
            &[0x03, 0x02, 0x45],
            &[0x03, 0x00],
            // Longer than its number.
            &[0x03, 0x03, 0x45, 0xad, 0x00],
            // Twice.
            &[0x03, 0x02, 0x44, 0xb0, 0x03, 0x02, 0x44, 0xb0],
        ];
        for parameters in malformed {
            assert_eq!(bounded(parameters, 1_452), parameters);
        }
    }
}
