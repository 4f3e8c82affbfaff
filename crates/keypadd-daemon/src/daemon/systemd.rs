//! Tells systemd about the daemon's state, if systemd started this process (sd_notify(3)).

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

use humantime::format_duration;
use sd_notify::NotifyState;
use tracing::{debug, info};

/// How long to wait for a socket that is full.
const NOTIFY_TIMEOUT: Duration = Duration::from_millis(200);

/// How long shutdown takes beyond the drain timeout.
const SHUTDOWN_TIME: Duration = Duration::from_secs(5);

/// Tells systemd that the daemon is stopping and how long that may take.
pub(crate) fn notify_stopping(drain: Duration) {
    let micros = u32::try_from((drain + SHUTDOWN_TIME).as_micros()).unwrap_or(u32::MAX);
    let patience = NotifyState::ExtendTimeoutUsec(micros);
    notify(&[NotifyState::Stopping, patience]);
    if !drain.is_zero() {
        info!(
            "shutting down: draining for up to {}; signal again to stop now",
            format_duration(drain)
        );
    }
}

/// Tells systemd which process is the service.
pub(crate) fn notify_main_pid(pid: u32) {
    notify(&[NotifyState::MainPid(pid)]);
}

/// Notifies systemd, if it started this process (sd_notify(3)).
pub(crate) fn notify(states: &[NotifyState]) {
    if let Some(socket) = env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, states)
    {
        debug!(%error, "cannot notify systemd");
    }
}

/// Sends states to a socket, waiting at most [`NOTIFY_TIMEOUT`]: `sd_notify::notify` would wait for
/// ever for one that nobody reads, and this thread would do nothing else.
fn send(socket: &OsStr, states: &[NotifyState]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let message: String = states.iter().map(|state| format!("{state}\n")).collect();
    let sender = UnixDatagram::unbound()?;
    sender.set_write_timeout(Some(NOTIFY_TIMEOUT))?;
    sender.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn a_socket_that_nobody_reads_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let reader = UnixDatagram::bind(&path).unwrap();
        let error = loop {
            if let Err(error) = send(path.as_os_str(), &[NotifyState::Ready]) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let mut heard = [0; 16];
        let length = reader.recv(&mut heard).unwrap();
        assert_eq!(&heard[..length], b"READY=1\n");
    }

    #[test]
    fn an_abstract_socket_is_notified() {
        let name = format!("keypadd-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let reader = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), &[NotifyState::Ready, NotifyState::Stopping])
            .unwrap();
        let mut heard = [0; 32];
        let length = reader.recv(&mut heard).unwrap();
        assert_eq!(&heard[..length], b"READY=1\nSTOPPING=1\n");
    }
}
