//! Pairs two hosts: one invites, the other joins, and each learns the other's key.
//!
//! An [`Invitation`] is a line of text that a person carries from one to the other. The messages are
//! in docs/DESIGN.md, "Pairing". Knows no files: what is written when is up to the caller, between
//! [`Joiner::accept`] and [`Joiner::done`] at one end, [`Client::join`](crate::Client::join) and
//! [`Joined::confirm`](crate::Joined::confirm) at the other.

pub(crate) mod invitation;
pub(crate) mod inviter;

use std::time::Duration;

use keypadd_provider::PAIRING_PROOF_BYTES;

pub use invitation::{Invitation, InvitationError};
pub use inviter::{InviteError, Inviter, InviterSettings, Joiner};

/// Version of the messages, the first byte of the first one.
pub(crate) const VERSION: u8 = 1;

/// The joining end's first message: version and proof.
pub(crate) const JOIN_BYTES: usize = 1 + PAIRING_PROOF_BYTES;

/// The joining end has written its files.
pub(crate) const JOINED: u8 = 1;

/// The inviting end has written its own.
pub(crate) const DONE: u8 = 2;

/// Timeout for one message, which may wait for files to be written.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
