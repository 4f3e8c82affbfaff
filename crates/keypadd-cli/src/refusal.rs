//! Says why a client could not connect, with what to do about it.

use keypadd_provider::PublicKey;
use keypadd_tunnel::wire::ListenCode;
use keypadd_tunnel::{AuthError, ClientError, ListenPermit};

use crate::error::{Error, Exit, listen_hint, system};

/// The tunnel's errors with an exit code and a way out. `own` is this host's key, `peer` the server's.
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
                    "if that is the right server, --peer {shown}; expected was {peer}"
                )),
                AuthError::KeyNotAllowed(_) => {
                    error.hint(format!("on the server: keypadd serve --allow {own} ..."))
                }
                AuthError::NoCommonSuite(_) => error
                    .hint("choose one of the server's with --suite, or add yours to its --suite"),
                AuthError::NoCommonKeyExchange(_) => {
                    error.hint("choose one of the server's with --kex, or add yours to its --kex")
                }
                _ => error.hint("both ends need the same keypadd"),
            }
        }
        ClientError::Unreachable { cause: why, .. } if why.starts_with("no such host") => {
            Error::new(Exit::Unreachable, cause)
                .hint("is the name right, and does DNS work here? an address will do as well")
        }
        ClientError::Unreachable { cause: why, .. } if why.starts_with("this name means") => {
            Error::new(Exit::Unreachable, cause)
                .hint("an address of the server in place of its name will do")
        }
        ClientError::Unreachable { .. } => Error::new(Exit::Unreachable, cause).hint(
            "is `keypadd serve` running there, and does a firewall let its UDP port through?",
        ),
        ClientError::NotListening { forward, code: ListenCode::NotPermitted } => {
            let permit = ListenPermit::for_listen(&forward.listen);
            Error::new(Exit::Runtime, cause)
                .hint(format!("on the server: keypadd serve --permit-listen {permit} ..."))
        }
        ClientError::NotListening { code: ListenCode::TooMany, .. } => {
            Error::new(Exit::Runtime, cause).hint("fewer -R in one command")
        }
        ClientError::NotListening { .. } => Error::new(Exit::BindFailed, cause)
            .hint("choose an address that is free on the server, as in -R 8081:localhost:80"),
        // `-W` is used by programs: one line says it all.
        _ => Error::new(Exit::Runtime, cause),
    }
}
