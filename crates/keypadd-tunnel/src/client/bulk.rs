//! A client's second connection to its server, which carries the session's bulk streams.
//!
//! Made when either end has bulk data for the first time, under the same keys and permits. Without
//! it the first connection carries everything.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use keypadd_transport::{ClientConfig, Endpoint, Lane};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tracing::debug;

use crate::{
    sessions::{
        control::Control,
        session::{LiveSession, proved},
    },
    transport::SERVER_NAME,
    wire::{Frame, SessionToken, VERSION},
};

/// Time from the first packet to the server's hello.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Rest after an attempt that failed.
const RETRY: Duration = Duration::from_secs(5);

/// What an attempt is made with.
#[derive(Clone)]
pub(super) struct BulkDialer {
    pub(super) endpoint: Endpoint,
    pub(super) config: Arc<Mutex<ClientConfig>>,
}

impl BulkDialer {
    /// Makes the connection when it is wanted and watches over it, for as long as it is polled.
    pub(super) async fn run(&self, session: &LiveSession, wanted: &Notify) {
        loop {
            tokio::select! {
                () = wanted.notified() => {}
                () = session.connection.bulk_wanted() => {}
            }
            // A server that offers nothing takes no such connection.
            let Some(token) = session.token.get() else { continue };
            match timeout(CONNECT_TIME, self.attach(session, *token)).await {
                Ok(Ok(_control)) => session.supervise_bulk().await,
                Ok(Err(cause)) => debug!(cause, "no bulk connection"),
                Err(_) => debug!("no bulk connection: no answer in time"),
            }
            sleep(RETRY).await;
        }
    }

    async fn attach(&self, session: &LiveSession, token: SessionToken) -> Result<Control, String> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let address = session.connection.remote_address();
        let connecting = self.endpoint.connect(config, address, SERVER_NAME, Lane::Bulk);
        let connection = connecting.await.map_err(|error| error.to_string())?;
        let proved = proved(&connection).ok_or("the handshake proved no key")?;
        let stream = connection.open_bi().await.map_err(|error| error.to_string())?;
        let mut control = Control::new(stream);
        let hello = Frame::HelloBulk { version: VERSION, token };
        control.say(&hello).await.map_err(|error| error.to_string())?;
        match control.hear().await {
            Ok(Frame::HelloServer { version: VERSION }) => {}
            Ok(_) => return Err("the server answers with another frame".into()),
            Err(error) => return Err(error.to_string()),
        }
        match session.attach_bulk(&connection, &proved) {
            true => Ok(control),
            false => Err("it agreed on other packet protection".into()),
        }
    }
}
