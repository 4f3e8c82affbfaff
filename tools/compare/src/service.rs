//! Serves test traffic in the far namespace, one thread for each connection.
//!
//! The first byte of a connection says what it is, the next four the size of a message:
//! - echo: answers each message of that size with the same bytes;
//! - source: sends until the client sends a byte, then closes;
//! - sink: reads blocks until one is marked as the last, then answers with the number of bytes.
//!
//! Both bulk kinds end in band, so a tunnel need not support half-closed connections. Knows no
//! tunnels.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// First byte of an echo connection.
pub(crate) const ECHO: u8 = b'e';
/// First byte of a download.
pub(crate) const SOURCE: u8 = b's';
/// First byte of an upload.
pub(crate) const SINK: u8 = b'k';
/// Bytes of one bulk write, and of one block that a sink reads.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;
/// First byte of an upload's last block; others begin with zero.
pub(crate) const LAST: u8 = 1;
/// A limit on the size of echoed messages.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// Listens on every IPv4 address and serves until it is killed.
///
/// # Errors
/// One line: the port cannot be bound.
pub(crate) fn run(port: u16) -> Result<(), String> {
    let failed = |error: io::Error| format!("service, port {port}: {error}");
    accept(&TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(failed)?);
    Ok(())
}

/// Serves the connections of this listener; does not return.
pub(crate) fn accept(listener: &TcpListener) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        // A failed connection is reported by the client, which sees it close.
        let _ = thread::Builder::new().spawn(|| serve(stream));
    }
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut header = [0; 5];
    stream.read_exact(&mut header)?;
    let [kind, size @ ..] = header;
    match kind {
        ECHO => echo(&mut stream, u32::from_be_bytes(size).min(MESSAGE_BYTES_MAX)),
        SOURCE => source(&mut stream),
        SINK => sink(&mut stream),
        _ => Ok(()),
    }
}

fn echo(stream: &mut TcpStream, size: u32) -> io::Result<()> {
    let mut message = vec![0; size as usize];
    loop {
        stream.read_exact(&mut message)?;
        stream.write_all(&message)?;
    }
}

fn source(stream: &mut TcpStream) -> io::Result<()> {
    let block = vec![0; BLOCK_BYTES];
    let mut control = stream.try_clone()?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // A byte, end of stream or an error: the client wants no more.
            let _ = control.read(&mut [0]);
            stop.store(true, Ordering::Relaxed);
        });
        let sent = (|| {
            while !stop.load(Ordering::Relaxed) {
                stream.write_all(&block)?;
            }
            Ok(())
        })();
        // Shut down both ways, so that the thread above ends in any case.
        let both = stream.shutdown(std::net::Shutdown::Both);
        sent.and(both)
    })
}

fn sink(stream: &mut TcpStream) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut received: u64 = 0;
    loop {
        stream.read_exact(&mut block)?;
        received += BLOCK_BYTES as u64;
        if block.first() == Some(&LAST) {
            return stream.write_all(&received.to_be_bytes());
        }
    }
}
