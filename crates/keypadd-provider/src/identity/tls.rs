//! Presents a key pair to rustls as a raw public key instead of a certificate (RFC 7250, RFC 8446
//! section 4.4.2), at either end.

use std::sync::Arc;

use rustls::Error;
use rustls::client::{AlwaysResolvesClientRawPublicKeys, ResolvesClientCert};
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};

use super::private::{KEY_STACK_BYTES, PrivateKey};
use crate::wiped_stack::with_wiped_stack;

impl PrivateKey {
    /// Resolves a client's credentials: always this key, never an X.509
    /// certificate.
    ///
    /// # Errors
    ///
    /// rustls's, if ring rejects the key; not expected, since ring has accepted it before.
    pub fn client_resolver(&self) -> Result<Arc<dyn ResolvesClientCert>, Error> {
        Ok(Arc::new(AlwaysResolvesClientRawPublicKeys::new(self.certified_key()?)))
    }

    /// Resolves a server's credentials, whatever server name the client requests.
    ///
    /// # Errors
    ///
    /// As [`PrivateKey::client_resolver`].
    pub fn server_resolver(&self) -> Result<Arc<dyn ResolvesServerCert>, Error> {
        Ok(Arc::new(AlwaysResolvesServerRawPublicKeys::new(self.certified_key()?)))
    }

    /// The chain of a raw public key is one entry, the SubjectPublicKeyInfo.
    fn certified_key(&self) -> Result<Arc<CertifiedKey>, Error> {
        let signer = with_wiped_stack::<KEY_STACK_BYTES, _>(|| self.signer())?;
        let spki = CertificateDer::from(self.public().spki().to_vec());
        Ok(Arc::new(CertifiedKey::new(vec![spki], signer)))
    }

    fn signer(&self) -> Result<Arc<dyn SigningKey>, Error> {
        let pkcs8 = self.pkcs8();
        any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8.as_slice()))
    }
}
