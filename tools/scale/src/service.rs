//! Serves the forwards' targets in its own process; a connection's first byte says what it wants.

use std::io::Write;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::Outcome;

/// Echoes what it receives.
pub(crate) const ECHO: u8 = b'e';
/// Sends for as long as the other end reads.
pub(crate) const SOURCE: u8 = b's';
/// The same with the smallest possible buffer.
pub(crate) const SMALL_SOURCE: u8 = b'm';
/// Sends [`FETCH_BYTES`].
pub(crate) const FETCH: u8 = b'f';
/// Reads all.
pub(crate) const SINK: u8 = b'r';
/// Stops reading, with the smallest possible buffer.
pub(crate) const STALL: u8 = b'n';
/// Reads [`READ_FIRST_BYTES`] at full speed, reports that with one byte, then stops reading.
pub(crate) const STALL_LATER: u8 = b'l';

/// Bytes that later-stalling streams carry first: enough to move them to the bulk connection.
pub(crate) const READ_FIRST_BYTES: usize = 512 << 10;

/// Bytes of one download.
pub(crate) const FETCH_BYTES: usize = 256 << 10;

/// Buffers of a stalling socket, kept small: kernel memory is not what is measured.
const STALLED_BUFFER_BYTES: usize = 16 << 10;

/// Binds a port, prints it, and serves forever.
pub(crate) async fn run() -> Outcome<()> {
    let failed = |error: std::io::Error| format!("service: {error}");
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", listener.local_addr().map_err(failed)?.port()).map_err(failed)?;
    out.flush().map_err(failed)?;
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                tokio::spawn(async move {
                    // The peer sees the failure.
                    let _ = serve(connection).await;
                });
            }
            Err(error) => {
                eprintln!("service: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Shrinks a socket's buffers.
pub(crate) fn shrink_buffers(socket: &TcpStream) {
    let socket = SockRef::from(socket);
    let _ = socket.set_recv_buffer_size(STALLED_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(STALLED_BUFFER_BYTES);
}

async fn serve(mut connection: TcpStream) -> std::io::Result<()> {
    connection.set_nodelay(true)?;
    match connection.read_u8().await? {
        ECHO => echo(connection).await,
        kind @ (SOURCE | SMALL_SOURCE) => {
            if kind == SMALL_SOURCE {
                shrink_buffers(&connection);
            }
            let block = vec![0x5a; 64 << 10];
            loop {
                connection.write_all(&block).await?;
            }
        }
        FETCH => connection.write_all(&vec![0x5a; FETCH_BYTES]).await,
        SINK => {
            let mut block = vec![0; 256 << 10];
            while connection.read(&mut block).await? > 0 {}
            Ok(())
        }
        STALL => {
            shrink_buffers(&connection);
            std::future::pending().await
        }
        STALL_LATER => {
            connection.read_exact(&mut vec![0; READ_FIRST_BYTES]).await?;
            shrink_buffers(&connection);
            connection.write_all(&[STALL_LATER]).await?;
            std::future::pending().await
        }
        _ => Ok(()),
    }
}

/// Ten thousand of these are idle at once, so an idle connection has no buffer.
async fn echo(mut connection: TcpStream) -> std::io::Result<()> {
    loop {
        connection.readable().await?;
        let mut block = [0; 4096];
        match connection.try_read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(bytes) => connection.write_all(&block[..bytes]).await?,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
