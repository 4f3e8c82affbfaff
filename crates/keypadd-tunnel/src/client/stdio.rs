//! Forwards one connection that is no socket: standard input and output (`connect -W`).

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::{Client, ClientSession};
use crate::{
    addresses::{forward::Destination, target::Target},
    error::ClientError,
    forwards::{
        connection_log::ConnectionRecord,
        open_stream::{OpenError, open_stream},
        proxy_protocol::LOCAL_HEADER,
        splice::splice_pair,
        splice_error::SpliceError,
    },
    sessions::session::LiveSession,
    wire::StreamHeader,
};

impl Client {
    /// Forwards a reader and a writer to `target` (`-W`), behind a local PROXY header if one is to
    /// be sent. Shuts down the writer when the target has finished; returns when the reader has
    /// ended as well. If the connection is lost meanwhile and held, connects again.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the server cannot connect or the connection is reset,
    /// [`ClientError::Local`] if the reader or the writer fails, [`ClientError::Lost`].
    pub async fn forward_stdio(
        &self,
        session: ClientSession,
        target: &Target,
        reader: impl AsyncRead + Unpin,
        writer: impl AsyncWrite + Unpin,
    ) -> Result<(), ClientError> {
        let live = Arc::clone(&session.registration.session);
        let _count = live.count_connection(&format!("-W {target}"));
        let refused = |code| ClientError::Refused { target: target.clone(), code };
        let header = StreamHeader::Destination(Destination::Tcp(target.clone()));
        let lost = || self.lost_error(&live);
        let mut record = ConnectionRecord::new(&live.limits);
        record.set_peer(live.peer());
        record.set_forward("-W", None);
        record.set_target(&target.to_string());
        let stream = match open_stream(&live, &header).await {
            Ok(stream) => stream,
            Err(OpenError::Refused(code)) => {
                record.refused(code);
                return Err(refused(code));
            }
            Err(OpenError::Lost) => return Err(lost().await),
        };
        let mut current = Some(session);
        let header = if self.headers.get().send { &LOCAL_HEADER[..] } else { &[] };
        let reader = header.chain(reader);
        let spliced = tokio::select! {
            biased;
            spliced = splice_pair(reader, writer, stream, &mut record) => spliced,
            never = self.stay_connected(&mut current), if live.hold.is_some() => match never {},
            never = self.keep_left() => match never {},
        };
        match spliced {
            Ok(()) => Ok(()),
            Err(SpliceError::Remote(code)) => Err(refused(code)),
            Err(SpliceError::Local(error)) => Err(ClientError::Local(error)),
            Err(SpliceError::Lost) => Err(lost().await),
        }
    }

    async fn lost_error(&self, session: &LiveSession) -> ClientError {
        ClientError::Lost { server: self.server.clone(), cause: session.ended().await }
    }
}
