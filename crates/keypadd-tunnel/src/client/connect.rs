//! One attempt to reach the server: its name, its addresses in turn, the handshake, the hellos.
//!
//! Bounded by the time to connect, and given up when a clock jumps: the keys that an attempt has
//! agreed on go with it. Knows no listeners and makes no second attempt.

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError},
    time::Duration,
};

use keypadd_transport::{ConnectingError, Lane};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, timeout, timeout_at},
};
use tracing::debug;

use super::{Client, ClientSession, bulk::BulkDialer, incoming::attend, publish};
use crate::{
    clock::monitor::Jumps,
    error::{Attempt, ClientError},
    forwards::dial::share_of,
    net::lookup::{is_another_name_of_this_host, resolve},
    permits::peers::short,
    sessions::{
        control::Control,
        session::{FRAMES_MAX, NewSession, proved},
        status::Role,
    },
    spec::target::ServerAddress,
    transport::SERVER_NAME,
    wire::{Frame, VERSION},
};

impl Client {
    /// Resolves the server, tries its addresses in turn, and returns when it has said hello.
    ///
    /// # Errors
    /// [`ClientError::Auth`] at once when the ends do not accept each other, else
    /// [`ClientError::Unreachable`] within the time to connect.
    pub async fn connect(&self) -> Result<ClientSession, ClientError> {
        let deadline = Instant::now() + self.connect_timeout;
        let unreachable = |cause| ClientError::Unreachable { server: self.server.clone(), cause };
        let ServerAddress { host, port } = &self.server;
        let no_name = |error: std::io::Error| unreachable(format!("no such host: {error}"));
        let addresses = match timeout_at(deadline, resolve(host, *port, &self.lookups)).await {
            Ok(addresses) => addresses.map_err(no_name)?,
            Err(_) => return Err(unreachable("the name did not resolve in time".into())),
        };
        // An address that the user gave is in the message already.
        let given = self.server.to_string();
        let of = |address: SocketAddr, cause: String| match address.to_string() == given {
            true => cause,
            false => format!("{address}: {cause}"),
        };
        let mut causes = Vec::new();
        for (tried, &address) in addresses.iter().enumerate() {
            let share = share_of(deadline, addresses.len() - tried);
            let cause = match timeout(share, self.attempt(address)).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(Attempt::Auth(cause))) => {
                    return Err(ClientError::Auth { server: self.server.clone(), cause });
                }
                Ok(Err(Attempt::Failed(cause))) => of(address, cause),
                Err(_) => {
                    // Whole milliseconds: the share has lost some microseconds since it was given.
                    let waited = Duration::from_millis(share.as_micros().div_ceil(1000) as u64);
                    of(address, format!("no answer in {waited:?}"))
                }
            };
            causes.push(cause);
        }
        let mut cause = causes.join("; ");
        if is_another_name_of_this_host(host, &addresses) {
            cause.insert_str(0, "this name means this host itself here: ");
        }
        Err(unreachable(cause))
    }

    /// One attempt. Given up, whatever keys it has agreed on are gone.
    async fn attempt(&self, address: SocketAddr) -> Result<ClientSession, Attempt> {
        let (mut jumps, for_session) = (self.watchman.jumps(), self.watchman.jumps());
        let shaking = async {
            self.watchman.egress().reopen(&self.endpoint).await;
            self.shake_hands(address, for_session).await
        };
        tokio::select! {
            jump = jumps.next() => Err(Attempt::Failed(jump.to_string())),
            session = shaking => session,
        }
    }

    /// Handshake and hellos.
    async fn shake_hands(
        &self,
        address: SocketAddr,
        jumps: Jumps,
    ) -> Result<ClientSession, Attempt> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let connection =
            match self.endpoint.connect(config, address, SERVER_NAME, Lane::Sparse).await {
                Ok(connection) => connection,
                Err(ConnectingError::Failed(error)) => return Err(Attempt::of(&error)),
                Err(error) => return Err(Attempt::Failed(error.to_string())),
            };
        let proved = proved(&connection)
            .ok_or_else(|| Attempt::Failed("the handshake proved no key".into()))?;

        let stream = connection.open_bi().await.map_err(|error| Attempt::of(&error))?;
        let mut control = Control::new(stream);
        let hello = Frame::HelloClient { version: VERSION, instance: self.instance };
        // The server judges our key last: a refusal arrives when we are already done.
        let answer = match control.say(&hello).await {
            Ok(()) => control.hear().await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(Frame::HelloServer { version: VERSION }) => {}
            Ok(Frame::HelloServer { version }) => {
                let cause = format!("the server speaks version {version} of the control protocol");
                return Err(Attempt::Failed(cause));
            }
            Ok(_) => {
                return Err(Attempt::Failed("this is not a keypadd server".into()));
            }
            Err(error) => {
                return Err(match connection.close_reason() {
                    Some(error) => Attempt::of(&error),
                    None => Attempt::Failed(error.to_string()),
                });
            }
        }
        let (frames, to_say) = mpsc::channel(FRAMES_MAX);
        let listed = self.sessions.add(NewSession {
            label: self.name.clone().unwrap_or_else(|| short(&proved.key)),
            role: Role::Client,
            instance: self.instance,
            proved,
            connection,
            to_say: frames,
            forwards: &self.forward_names(),
        });
        let session = Arc::clone(&listed.session);
        let (carried, lookups) = (self.carried.clone(), self.lookups.clone());
        let dialer =
            BulkDialer { endpoint: self.endpoint.clone(), config: Arc::clone(&self.config) };
        tokio::spawn(async move {
            let (heard, frames) = mpsc::channel(FRAMES_MAX);
            let bulk_wanted = Notify::new();
            tokio::select! {
                lost = session.supervise(control, to_say, heard, jumps) => {
                    debug!(peer = session.peer(), cause = %lost, "session ended");
                }
                () = attend(&session, frames, &carried, &lookups, &bulk_wanted) => {}
                () = dialer.run(&session, &bulk_wanted) => {}
            }
        });
        let made = ClientSession { listed };
        let live = &made.listed.session;
        publish(live, &self.remote_forwards()).await;
        let lost = tokio::select! {
            () = live.remotes.settled() => None,
            lost = made.lost() => Some(lost),
        };
        lost.map_or(Ok(made), |lost| Err(Attempt::Failed(lost.to_string())))
    }
}
