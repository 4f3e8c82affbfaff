//! Computes and verifies the integrity tag of Retry packets (RFC 9001 section 5.8): AES-128-GCM
//! under a published key, which guards against accidents and off-path forgery, not against anyone
//! on the path.

use quinn_proto::ConnectionId;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use subtle::ConstantTimeEq;

/// RFC 9001 section 5.8, version 1.
const KEY: [u8; 16] = [
    0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e,
];
/// RFC 9001 section 5.8, version 1.
const NONCE: [u8; 12] = [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];

const TAG_BYTES: usize = 16;

/// The tag of a Retry packet in answer to an Initial with `orig_dst_cid`.
pub(crate) fn tag(orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; TAG_BYTES] {
    let mut pseudo_packet = Vec::with_capacity(1 + orig_dst_cid.len() + packet.len());
    pseudo_packet.push(orig_dst_cid.len() as u8);
    pseudo_packet.extend_from_slice(orig_dst_cid);
    pseudo_packet.extend_from_slice(packet);
    let key = UnboundKey::new(&AES_128_GCM, &KEY).expect("the key has AES-128's length");
    let tag = LessSafeKey::new(key)
        .seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(NONCE),
            Aad::from(pseudo_packet),
            &mut [],
        )
        .expect("an empty payload is within GCM's limit");
    tag.as_ref().try_into().expect("GCM's tag is 16 bytes")
}

/// Whether a Retry packet, with the tag at the end of `payload`, answers our Initial.
pub(crate) fn is_valid(orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
    let Some(tag_start) = payload.len().checked_sub(TAG_BYTES) else { return false };
    let (token, received) = payload.split_at(tag_start);
    let expected = tag(orig_dst_cid, &[header, token].concat());
    expected.ct_eq(received).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_9001_a4_retry_verifies_and_a_changed_one_does_not() {
        let original = ConnectionId::new(&[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08]);
        let packet =
            hex::decode("ff000000010008f067a5502a4262b5746f6b656e04a265ba2eff4d829058fb3f0f2496ba")
                .expect("hex");
        let (header, payload) = packet.split_at(15);
        assert!(is_valid(&original, header, payload));
        let mut changed = payload.to_vec();
        changed[0] ^= 1;
        assert!(!is_valid(&original, header, &changed));
        assert!(!is_valid(&original, header, &payload[..10]));
    }
}
