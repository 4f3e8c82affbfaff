//! Explains why a client could not connect, with a hint.

use keypadd_provider::PublicKey;
use keypadd_tunnel::wire::ListenCode;
use keypadd_tunnel::{AuthError, ClientError, ListenPermit};

use crate::error::{Error, Exit, listen_hint, system};

/// Adds an exit code and a hint to the tunnel's errors. `own` is this host's key, `peer` the
/// server's.
pub fn explain(error: ClientError, own: PublicKey, peer: PublicKey) -> Error {
    let cause = error.to_string();
    match error {
        ClientError::Bind(error) => Error::new(
            Exit::BindFailed,
            format!("cannot listen on {}: {}", error.address, system(&error.source)),
        )
        .hint(listen_hint(
            &error.address,
            &error.source,
            "-L 2223:localhost:22 or -D 1081",
        )),
        ClientError::Auth { cause: refusal, .. } => {
            let error = Error::new(Exit::Authentication, cause);
            match refusal {
                AuthError::ServerKey(shown) => error.hint(format!(
                    "expected {peer}; if this is the right server, use --peer {shown}"
                )),
                AuthError::KeyNotAllowed(_) => {
                    error.hint(format!("on the server, run: keypadd serve --allow {own} ..."))
                }
                AuthError::NoCommonSuite(_) => error.hint(
                    "choose one of the server's with --suite, or add yours to the server's --suite",
                ),
                AuthError::NoCommonKeyExchange(_) => error.hint(
                    "choose one of the server's with --kex, or add yours to the server's --kex",
                ),
                _ => error.hint("run the same version of keypadd on both ends"),
            }
        }
        ClientError::Unreachable { cause: why, .. } if why.starts_with("no such host") => {
            Error::new(Exit::Unreachable, cause).hint("check the name and DNS, or use an address")
        }
        ClientError::Unreachable { cause: why, .. } if why.starts_with("this name means") => {
            Error::new(Exit::Unreachable, cause)
                .hint("use an address of the server instead of its name")
        }
        ClientError::Unreachable { .. } => Error::new(Exit::Unreachable, cause).hint(
            "check that `keypadd serve` is running there and that firewalls allow its UDP port",
        ),
        ClientError::TooManySessions { .. } => Error::new(Exit::Authentication, cause)
            .hint("end another session of this key, or raise max-sessions-per-key on the server"),
        ClientError::NotListening { forward, code: ListenCode::NotPermitted } => {
            let permit = ListenPermit::for_listen(&forward.listen);
            Error::new(Exit::Runtime, cause)
                .hint(format!("on the server, run: keypadd serve --permit-listen {permit} ..."))
        }
        ClientError::NotListening { code: ListenCode::TooMany, .. } => {
            Error::new(Exit::Runtime, cause).hint("use fewer -R in one command")
        }
        ClientError::NotListening { code: ListenCode::OpenFiles, .. } => {
            Error::new(Exit::Runtime, cause)
                .hint("raise the server's limit of open files: `ulimit -n` or LimitNOFILE=")
        }
        ClientError::NotListening { .. } => Error::new(Exit::BindFailed, cause)
            .hint("choose a free address on the server, as in -R 8081:localhost:80"),
        _ => Error::new(Exit::Runtime, cause),
    }
}
