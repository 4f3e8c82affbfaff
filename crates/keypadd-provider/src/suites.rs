//! Registers our suites with rustls: code points, hashes, and algorithms that hand over keys.
//!
//! rustls runs the handshake and derives keys with ring's hashes; packet protection is ours, so a
//! suite's QUIC algorithm only passes keys on (`key_extraction.rs`). Header protection is ring's:
//! that of its own suite for the suites of TLS (RFC 9001 section 5.4), AES-256 for private suites,
//! since DES must not protect headers.

use std::sync::{Mutex, PoisonError};

use keypadd_keystream::{Cipher, Mac, Protection, Suite};
use rustls::crypto::CipherSuiteCommon;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, Iv, MessageDecrypter, MessageEncrypter,
    OutboundOpaqueMessage, OutboundPlainMessage, Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::quic::{Algorithm, HeaderProtectionKey, PacketKey};
use rustls::{
    CipherSuite, ConnectionTrafficSecrets, Error, SupportedCipherSuite, Tls13CipherSuite,
};

use crate::key_extraction::ExtractableKey;
use crate::limits::KeyLimits;

/// The suite's TLS code point. The suites of TLS have its own (RFC 8446 appendix B.4); the others
/// are in the private-use range 0xFFxx: cipher in the high digit, MAC in the low, 0 for none.
pub(crate) fn code_point(suite: Protection) -> CipherSuite {
    let cipher = match suite.cipher() {
        Cipher::Aes128 => 0x10,
        Cipher::Aes256 => 0x20,
        Cipher::TripleDes => 0x30,
        Cipher::Des => 0x40,
        Cipher::Measured(cipher) => cipher.digit() << 4,
        // Only in a suite of TLS.
        Cipher::ChaCha20 => 0x00,
    };
    match suite.mac() {
        Mac::Poly1305 => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        Mac::Ghash if suite.cipher() == Cipher::Aes128 => CipherSuite::TLS13_AES_128_GCM_SHA256,
        Mac::Ghash => CipherSuite::TLS13_AES_256_GCM_SHA384,
        Mac::HmacSha1 => CipherSuite::Unknown(0xFF00 | cipher | 1),
        Mac::HmacSha256 => CipherSuite::Unknown(0xFF00 | cipher | 2),
        Mac::Measured(mac) => CipherSuite::Unknown(0xFF00 | cipher | mac.digit()),
    }
}

/// The suite with this code point, of those that users choose from and these.
pub(crate) fn from_code_point(code: CipherSuite, others: &[Protection]) -> Option<Protection> {
    let all = Suite::ALL.into_iter().map(Suite::protection).chain(others.iter().copied());
    all.into_iter().find(|&suite| code_point(suite) == code)
}

/// The suite, for rustls, which wants it for as long as the process runs: made once.
pub(crate) fn tls_suite(suite: Protection) -> SupportedCipherSuite {
    static MADE: Mutex<Vec<&'static Tls13CipherSuite>> = Mutex::new(Vec::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let known = made.iter().copied().find(|known| known.common.suite == code_point(suite));
    SupportedCipherSuite::Tls13(known.unwrap_or_else(|| {
        let algorithm = Box::leak(Box::new(SuiteAlgorithm { suite }));
        let new = Box::leak(Box::new(tls13_suite(algorithm)));
        made.push(new);
        new
    }))
}

/// Uses ring's hash and HKDF: SHA-384 for AES-256-GCM, as in TLS, else SHA-256.
fn tls13_suite(algorithm: &'static SuiteAlgorithm) -> Tls13CipherSuite {
    let suite = algorithm.suite;
    let stock = stock(suite).unwrap_or_else(|| of_tls13(&TLS13_AES_128_GCM_SHA256));
    Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: code_point(suite),
            hash_provider: stock.common.hash_provider,
            confidentiality_limit: KeyLimits::of(suite).reported,
        },
        hkdf_provider: stock.hkdf_provider,
        aead_alg: algorithm,
        quic: Some(algorithm),
    }
}

/// ring's own version of a suite of TLS.
fn stock(suite: Protection) -> Option<&'static Tls13CipherSuite> {
    let stock =
        [&TLS13_AES_128_GCM_SHA256, &TLS13_AES_256_GCM_SHA384, &TLS13_CHACHA20_POLY1305_SHA256];
    stock.into_iter().find(|stock| stock.suite() == code_point(suite)).map(of_tls13)
}

fn of_tls13(suite: &'static SupportedCipherSuite) -> &'static Tls13CipherSuite {
    suite.tls13().expect("its name says TLS 1.3")
}

/// A suite's algorithm, for rustls.
#[derive(Debug)]
struct SuiteAlgorithm {
    suite: Protection,
}

impl Algorithm for SuiteAlgorithm {
    fn packet_key(&self, key: AeadKey, iv: Iv) -> Box<dyn PacketKey> {
        Box::new(ExtractableKey::new(key, iv))
    }

    fn header_protection_key(&self, key: AeadKey) -> Box<dyn HeaderProtectionKey> {
        let stock = stock(self.suite).unwrap_or_else(|| of_tls13(&TLS13_AES_256_GCM_SHA384));
        stock.quic.expect("ring's suites do QUIC").header_protection_key(key)
    }

    fn aead_key_len(&self) -> usize {
        self.suite.key_bytes()
    }
}

/// QUIC has no TLS records (RFC 9001 section 4.1.4), but rustls installs record keys anyway; they
/// are dropped at once, which wipes the key (rustls does not wipe IVs).
impl Tls13AeadAlgorithm for SuiteAlgorithm {
    fn encrypter(&self, _: AeadKey, _: Iv) -> Box<dyn MessageEncrypter> {
        Box::new(NoRecords)
    }

    fn decrypter(&self, _: AeadKey, _: Iv) -> Box<dyn MessageDecrypter> {
        Box::new(NoRecords)
    }

    fn key_len(&self) -> usize {
        self.suite.key_bytes()
    }

    fn extract_keys(
        &self,
        _: AeadKey,
        _: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Err(UnsupportedOperationError)
    }
}

/// Protects no TLS record.
struct NoRecords;

impl MessageEncrypter for NoRecords {
    fn encrypt(
        &mut self,
        _: OutboundPlainMessage<'_>,
        _: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        Err(Error::EncryptError)
    }

    fn encrypted_payload_len(&self, payload_len: usize) -> usize {
        payload_len
    }
}

impl MessageDecrypter for NoRecords {
    fn decrypt<'a>(
        &mut self,
        _: InboundOpaqueMessage<'a>,
        _: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        Err(Error::DecryptError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keypadd_keystream::MeasureSuite;

    #[test]
    fn code_points_are_distinct_and_map_back() {
        let all: Vec<_> = Protection::all().collect();
        for suite in &all {
            assert_eq!(from_code_point(code_point(*suite), &all), Some(*suite));
            let is_of_users = Suite::ALL.iter().any(|chosen| chosen.protection() == *suite);
            assert_eq!(from_code_point(code_point(*suite), &[]).is_some(), is_of_users);
        }
        let code = |suite: Protection| code_point(suite);
        let triple_des = Suite::TRIPLE_DES_CTR_HMAC_SHA1.into();
        assert_eq!(code(triple_des), CipherSuite::Unknown(0xFF31));
        assert_eq!(code(MeasureSuite::NULL_HMAC_SHA1.into()), CipherSuite::Unknown(0xFF01));
        let chacha20 = CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
        assert_eq!(from_code_point(chacha20, &[]), Some(Suite::CHACHA20_POLY1305.into()));
        assert_eq!(from_code_point(CipherSuite::TLS13_AES_128_CCM_SHA256, &all), None);
    }
}
