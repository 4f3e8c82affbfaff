//! Implements Diffie-Hellman modulo a prime, as the papers measured it, for measurements only: RFC
//! 2409's groups 1 and 2, RFC 3526's group 15, and ffdhe3072 of RFC 7919 (shares and secrets as in
//! RFC 8446 4.2.8.1 and 7.4.1).
//!
//! All primes are safe primes and the generator is 2. Exponentiation is `crypto-bigint`'s,
//! constant-time for exponents of one length; what it leaves on the stack is wiped.

use std::fmt;
use std::sync::LazyLock;

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Odd, U256, U320, U768, U1024, U3072, Uint};
use rustls::crypto::{ActiveKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup};
use zeroize::Zeroizing;

use super::share::{INVALID_SHARE, fill_random};
use crate::wiped_stack::with_wiped_stack;

/// Upper bound on the stack of an exponentiation: sixteen powers of 384 bytes, a product, copies.
const POWER_STACK_BYTES: usize = 32 << 10;

/// From TLS's private-use range of finite-field groups (RFC 8446 4.2.7).
pub(super) static MODP_768: Modp<{ U768::LIMBS }, { U256::LIMBS }> =
    Modp::new(NamedGroup::Unknown(0x01FC), || {
        FixedMontyParams::new_vartime(Odd::from_be_hex(PRIME_768))
    });
/// From the same range.
pub(super) static MODP_1024: Modp<{ U1024::LIMBS }, { U256::LIMBS }> =
    Modp::new(NamedGroup::Unknown(0x01FD), || {
        FixedMontyParams::new_vartime(Odd::from_be_hex(PRIME_1024))
    });
/// From the same range.
pub(super) static MODP_3072: Modp<{ U3072::LIMBS }, { U320::LIMBS }> =
    Modp::new(NamedGroup::Unknown(0x01FE), || {
        FixedMontyParams::new_vartime(Odd::from_be_hex(PRIME_3072))
    });
/// TLS's own code point.
pub(super) static FFDHE3072: Modp<{ U3072::LIMBS }, { U320::LIMBS }> =
    Modp::new(NamedGroup::FFDHE3072, || {
        FixedMontyParams::new_vartime(Odd::from_be_hex(PRIME_FFDHE3072))
    });

/// A group: numbers of `N` limbs, exponents of `E`. Those are 256 bits for the shorter primes and
/// 320 for the longer ones, above twice the strength of the group (RFC 3526 8 has 260 and RFC 7919
/// A.2 has 275 bits as the least for theirs).
pub(super) struct Modp<const N: usize, const E: usize> {
    name: NamedGroup,
    params: LazyLock<FixedMontyParams<N>>,
}

impl<const N: usize, const E: usize> Modp<N, E> {
    const fn new(name: NamedGroup, params: fn() -> FixedMontyParams<N>) -> Self {
        Self { name, params: LazyLock::new(params) }
    }

    pub(super) fn exchange(&self, secret: Zeroizing<Uint<E>>) -> Exchange<N, E> {
        let share = power(&self.params, &Uint::from(2_u8), &secret);
        Exchange { name: self.name, params: *self.params, secret, share }
    }
}

impl<const N: usize, const E: usize> fmt::Debug for Modp<N, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Modp").field(&self.name).finish()
    }
}

impl<const N: usize, const E: usize> SupportedKxGroup for Modp<N, E> {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let mut bytes = Zeroizing::new(vec![0; Uint::<E>::BYTES]);
        fill_random(&mut bytes)?;
        // Full length, so that all exponents take the same time, and none is 0 or 1.
        bytes[0] |= 0x80;
        Ok(Box::new(self.exchange(Zeroizing::new(Uint::from_be_slice(&bytes)))))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        self.name
    }
}

/// One exchange: our exponent and our share.
pub(super) struct Exchange<const N: usize, const E: usize> {
    name: NamedGroup,
    params: FixedMontyParams<N>,
    secret: Zeroizing<Uint<E>>,
    share: Vec<u8>,
}

impl<const N: usize, const E: usize> ActiveKeyExchange for Exchange<N, E> {
    /// RFC 7919 5.1: "Peers MUST validate each other's public key Y (dh_Ys offered by the server or
    /// dh_Yc offered by the client) by ensuring that 1 < Y < p-1." Others lead to a secret that
    /// anyone knows.
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        if peer.len() != Uint::<N>::BYTES {
            return Err(INVALID_SHARE);
        }
        let peer = Uint::<N>::from_be_slice(peer);
        let last = self.params.modulus().as_ref().wrapping_sub(&Uint::ONE);
        if peer <= Uint::ONE || peer >= last {
            return Err(INVALID_SHARE);
        }
        Ok(SharedSecret::from(power(&self.params, &peer, &self.secret)))
    }

    fn pub_key(&self) -> &[u8] {
        &self.share
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn group(&self) -> NamedGroup {
        self.name
    }
}

/// `base` to the power of `exponent`, as long as the prime; wipes the stack.
fn power<const N: usize, const E: usize>(
    params: &FixedMontyParams<N>,
    base: &Uint<N>,
    exponent: &Uint<E>,
) -> Vec<u8> {
    with_wiped_stack::<POWER_STACK_BYTES, _>(|| {
        let power = FixedMontyForm::new(base, params).pow(exponent).retrieve();
        power.to_be_bytes().as_ref().to_vec()
    })
}

/// RFC 2409 6.1.
const PRIME_768: &str = concat!(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22",
    "514A08798E3404DDEF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6",
    "F44C42E9A63A3620FFFFFFFFFFFFFFFF",
);

/// RFC 2409 6.2.
const PRIME_1024: &str = concat!(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22",
    "514A08798E3404DDEF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6",
    "F44C42E9A637ED6B0BFF5CB6F406B7EDEE386BFB5A899FA5AE9F24117C4B1FE649286651ECE65381",
    "FFFFFFFFFFFFFFFF",
);

/// RFC 3526 4.
const PRIME_3072: &str = concat!(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22",
    "514A08798E3404DDEF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6",
    "F44C42E9A637ED6B0BFF5CB6F406B7EDEE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3D",
    "C2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F83655D23DCA3AD961C62F356208552BB",
    "9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3BE39E772C180E8603",
    "9B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510",
    "15728E5A8AAAC42DAD33170D04507A33A85521ABDF1CBA64ECFB850458DBEF0A8AEA71575D060C7D",
    "B3970F85A6E1E4C7ABF5AE8CDB0933D71E8C94E04A25619DCEE3D2261AD2EE6BF12FFA06D98A0864",
    "D87602733EC86A64521F2B18177B200CBBE117577A615D6C770988C0BAD946E208E24FA074E5AB31",
    "43DB5BFCE0FD108E4B82D120A93AD2CAFFFFFFFFFFFFFFFF",
);

/// RFC 7919 A.2.
const PRIME_FFDHE3072: &str = concat!(
    "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FB",
    "CC939DCE249B3EF97D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0",
    "856365553DED1AF3B557135E7F57C935984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE735",
    "30ACCA4F483A797ABC0AB182B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4",
    "AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F619172FE9CE98583FF",
    "8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA",
    "886B4238611FCFDCDE355B3B6519035BBC34F4DEF99C023861B46FC9D6E6C9077AD91D2691F7F7EE",
    "598CB0FAC186D91CAEFE130985139270B4130C93BC437944F4FD4452E2D74DD364F2E21E71F54BFF",
    "5CAE82AB9C9DF69EE86D2BC522363A0DABC521979B0DEADA1DBF9A42D5C4484E0ABCD06BFA53DDEF",
    "3C1B20EE3FD59D7C25E41D2B66C62E37FFFFFFFFFFFFFFFF",
);
