//! Encodes and decodes what hellos say: whose run it is, whether streams are held, and by which ID
//! a balancer finds the server.

use keypadd_provider::{TOKEN_PROOF_BYTES, TokenProof};
use keypadd_transport::ServerId;

use crate::wire::{error::WireError, fields::Fields};

/// Version of the fields of hellos about holding. A peer without them, or with another version,
/// holds nothing.
const HOLD_VERSION: u8 = 1;

/// In place of that version, before more fields.
const NO_HOLD: u8 = 0;

/// Length of a server ID.
const SERVER_ID_BYTES: u8 = 8;

/// In place of a proof: none is all zeros.
const NO_PROOF: TokenProof = [0; TOKEN_PROOF_BYTES];

/// A random number that a client draws at start; it identifies the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance(pub [u8; 16]);

impl Instance {
    /// Draws a number.
    ///
    /// # Errors
    /// The system's random number generator failed.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut instance = [0; 16];
        getrandom::fill(&mut instance)?;
        Ok(Self(instance))
    }
}

/// What a client says of holding streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRequest {
    /// How long it holds them.
    pub seconds: u32,
    /// Proves that it has the token of its last session, if there is one.
    pub proof: Option<TokenProof>,
}

/// What a server answers to that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldGrant {
    /// How long it holds them.
    pub seconds: u32,
    /// The number of this connection in the names of streams.
    pub epoch: u32,
    /// Proves that it has the token of the client's last session, whose streams it resumes; `None`
    /// if it resumes none.
    pub proof: Option<TokenProof>,
}

pub(super) fn encode_request(request: &HoldRequest) -> Vec<u8> {
    let HoldRequest { seconds, proof } = request;
    [&[HOLD_VERSION][..], &seconds.to_be_bytes(), &proof.unwrap_or(NO_PROOF)].concat()
}

pub(super) fn encode_answer(grant: Option<&HoldGrant>, home: Option<ServerId>) -> Vec<u8> {
    let grant = grant.map(encode_grant);
    let Some(ServerId(id)) = home else { return grant.unwrap_or_default() };
    [&grant.unwrap_or_else(|| vec![NO_HOLD])[..], &[SERVER_ID_BYTES], &id].concat()
}

fn encode_grant(grant: &HoldGrant) -> Vec<u8> {
    let HoldGrant { seconds, epoch, proof } = grant;
    let numbers = [seconds.to_be_bytes(), epoch.to_be_bytes()].concat();
    [&[HOLD_VERSION][..], &numbers, &proof.unwrap_or(NO_PROOF)].concat()
}

impl Fields<'_> {
    fn proof(&mut self) -> Result<Option<TokenProof>, WireError> {
        Ok(Some(self.array()?).filter(|proof| *proof != NO_PROOF))
    }

    pub(super) fn hold_request(&mut self) -> Result<Option<HoldRequest>, WireError> {
        if !matches!(self.byte(), Ok(HOLD_VERSION)) {
            return Ok(None);
        }
        Ok(Some(HoldRequest { seconds: self.long()?, proof: self.proof()? }))
    }

    /// Ends a server's hello. An ID of another length is of another format, which a client need not
    /// know.
    pub(super) fn server_id(&mut self) -> Option<ServerId> {
        let has_ours = self.byte().is_ok_and(|length| length == SERVER_ID_BYTES);
        has_ours.then(|| self.array().ok().map(ServerId)).flatten()
    }

    pub(super) fn hold_grant(&mut self) -> Result<Option<HoldGrant>, WireError> {
        match self.byte() {
            Ok(HOLD_VERSION) => {
                let (seconds, epoch, proof) = (self.long()?, self.long()?, self.proof()?);
                return Ok(Some(HoldGrant { seconds, epoch, proof }));
            }
            Ok(NO_HOLD) => {}
            // Nobody here knows where the next field is.
            _ => self.rest = &[],
        }
        Ok(None)
    }
}
