//! Expands a pseudorandom key by HKDF-SHA-256, as the private suites do (RFC 5869 2.3).

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

/// What a MAC's key is expanded with.
pub(crate) const MAC_INFO: [&[u8]; 1] = [b"keypadd mac"];

/// A pseudorandom key of HKDF-SHA-256, absorbed into the two hash states that it keys.
pub(crate) struct Prk(Hkdf<Sha256>);

impl Prk {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(Hkdf::from_prk(key).expect("32 bytes are one SHA-256 output"))
    }

    /// HKDF-Expand with the concatenation of `info`, over all of `out`.
    pub(crate) fn expand(&self, info: &[&[u8]], out: &mut [u8]) {
        self.0.expand_multi_info(info, out).expect("far below 255 hash outputs");
    }

    pub(crate) fn expanded<const N: usize>(&self, info: &[&[u8]]) -> Zeroizing<[u8; N]> {
        let mut key = Zeroizing::new([0; N]);
        self.expand(info, &mut *key);
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors;

    #[test]
    fn rfc_5869_expansions_are_reproduced() {
        let text = include_str!("../tests/vectors/rfc5869.txt");
        for case in vectors::blocks(text) {
            let prk = Prk::new(&case.array("prk"));
            let mut okm = vec![0; case.bytes("okm").len()];
            prk.expand(&[&case.bytes("info")], &mut okm);
            assert_eq!(okm, case.bytes("okm"));
        }
    }
}
