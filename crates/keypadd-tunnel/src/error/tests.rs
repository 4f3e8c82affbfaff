//! Tests what a failed connection stands for, and records what a user reads of it.

use keypadd_transport::{ApplicationClose, ConnectionClose};

use super::*;

/// A public key.
const KEY: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

/// This end failed the handshake.
fn found_here(code: TransportErrorCode, reason: &str) -> ConnectionError {
    let mut error = ConnectionError::TransportError(code.into());
    if let ConnectionError::TransportError(error) = &mut error {
        error.reason = reason.replace("{key}", KEY);
    }
    error
}

/// The peer failed the handshake.
fn told(error_code: TransportErrorCode, reason: &str) -> ConnectionError {
    let reason = reason.replace("{key}", KEY).into();
    ConnectionError::ConnectionClosed(ConnectionClose { error_code, frame_type: None, reason })
}

/// The peer closed the connection after the handshake.
fn closed(code: CloseCode, reason: &'static str) -> ConnectionError {
    let close = ApplicationClose { error_code: code.value().into(), reason: reason.into() };
    ConnectionError::ApplicationClosed(close)
}

/// What a user reads who connects to `a.example`.
fn shown(error: &ConnectionError) -> String {
    match ConnectFailure::of(error).refusal("a.example".parse().unwrap()) {
        Ok(refusal) => refusal.to_string(),
        Err(cause) => format!("cannot reach a.example:4433: {cause}"),
    }
}

#[test]
fn what_a_user_reads_of_a_failed_handshake_is_as_recorded() {
    // The alerts access_denied and handshake_failure (RFC 8446, section 6.2).
    let [denied, failed] = [49, 40].map(TransportErrorCode::crypto);
    let twelve = ["aes-256-ctr-hmac-sha256"; 12].join(", ");
    let long = format!("no common suite: offered {twelve}, 9 more; allowed aes-128-gcm");
    let cut = format!("a.example:4433: {}...", long.split_at(200).0);
    for (error, expected) in [
        (
            told(denied, "key not allowed: {key}"),
            "a.example:4433: the server does not allow this key: {key}",
        ),
        (
            told(denied, "key expired: {key}"),
            "a.example:4433: the server's valid-until for this key has passed: {key}",
        ),
        (
            found_here(denied, "server key not pinned: {key}"),
            "a.example:4433: SERVER KEY MISMATCH: expected another key, got {key}",
        ),
        // Only this end can say that.
        (
            told(denied, "server key not pinned: {key}"),
            "a.example:4433: the handshake failed: closed by peer: the cryptographic handshake \
             failed: error 49: \"server key not pinned: {key}\"",
        ),
        (
            told(failed, "no common suite: offered aes-128-gcm, 0x1234; allowed aes-256-gcm"),
            "a.example:4433: no common suite: offered aes-128-gcm, 0x1234; allowed aes-256-gcm",
        ),
        (told(failed, &long), &cut),
        (
            told(failed, "no common key exchange: offered x25519; allowed secp384r1, ffdhe2048"),
            "a.example:4433: no common key exchange: offered x25519; allowed secp384r1, ffdhe2048",
        ),
        // Nor is what holds no key a refusal.
        (
            told(denied, "key not allowed: \u{1b}[2Jmine"),
            "a.example:4433: the handshake failed: closed by peer: the cryptographic handshake \
             failed: error 49: \"key not allowed: ?[2Jmine\"",
        ),
        (found_here(failed, "a reason"), "a.example:4433: the handshake failed: a reason"),
        (
            found_here(failed, ""),
            "a.example:4433: the handshake failed: the cryptographic handshake failed: error 40",
        ),
        (
            told(failed, "a \"reason\"\n"),
            "a.example:4433: the handshake failed: closed by peer: the cryptographic handshake \
             failed: error 40: \"a 'reason'?\"",
        ),
        (
            told(TransportErrorCode::CONNECTION_REFUSED, ""),
            "cannot reach a.example:4433: the server accepts no new connections now: it has too \
             many, is draining, or is shutting down",
        ),
        (
            told(TransportErrorCode::PROTOCOL_VIOLATION, "a reason"),
            "cannot reach a.example:4433: closed by peer: detected an error with protocol \
             compliance that was not covered by more specific error codes: \"a reason\"",
        ),
        (
            closed(CloseCode::KeyFull, "this key already has 16 sessions (max-sessions-per-key)"),
            "a.example:4433: this key already has 16 sessions (max-sessions-per-key)",
        ),
        (
            closed(CloseCode::Unlisted, "this key is not listed"),
            "cannot reach a.example:4433: closed by peer: \"this key is not listed\"",
        ),
        (
            ConnectionError::Reset,
            "cannot reach a.example:4433: the server dropped the handshake (it is busy) or has \
             restarted",
        ),
        (ConnectionError::TimedOut, "cannot reach a.example:4433: timeout"),
        (
            ConnectionError::VersionMismatch,
            "cannot reach a.example:4433: peer doesn't implement any supported version",
        ),
        (ConnectionError::LocallyClosed, "cannot reach a.example:4433: closed"),
        (ConnectionError::CidsExhausted, "cannot reach a.example:4433: CIDs exhausted"),
    ] {
        assert_eq!(shown(&error), expected.replace("{key}", KEY));
    }
}

#[test]
fn what_a_server_refuses_lasts_and_what_cannot_be_reached_may_come_back() {
    let server = || "a.example".parse::<ServerAddress>().unwrap();
    for failure in [
        ConnectFailure::Auth(AuthError::Handshake(String::new())),
        ConnectFailure::Auth(AuthError::NotResumed),
        ConnectFailure::TooMany(String::new()),
        ConnectFailure::NotPaired(String::new()),
    ] {
        let refusal = failure.refusal(server()).unwrap();
        assert!(refusal.is_refusal(), "{refusal:?}");
    }
    assert!(ConnectFailure::Unreachable(Cause::Forgotten).refusal(server()).is_err());
}
