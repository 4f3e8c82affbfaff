//! Sends and receives frames with descriptors over a unix socket (unix(7), SCM_RIGHTS), and tells
//! which user has sent them (SCM_CREDENTIALS).
//!
//! A frame is `u32 length, u32 length`, then a JSON text and bytes of those lengths; descriptors
//! are attached to the lengths. Both ends are processes of the same user. Texts may have tokens of
//! sessions, and are wiped.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::pin;
use std::time::Duration;

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, send, sendmsg, shutdown,
};
use rustix::process::{Pid, Uid};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::{Message, STALL_TIMEOUT, SUSPENDED_STALL_TIMEOUT};

/// Bytes before a frame's text.
const HEAD_BYTES: usize = 8;

/// Longest text: what lists all clients, or all unix sockets.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// Most bytes of one stream.
const DATA_BYTES_MAX: usize = 256 << 20;

/// The most descriptors of a frame: a daemon's standard streams.
const DESCRIPTORS_MAX: usize = 3;

/// One end of the socket between the two processes.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: UnixStream,
    /// How long the other process may take to read a frame.
    stall_timeout: Duration,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A frame with its bytes and descriptors.
#[derive(Debug)]
pub(crate) struct Received<F = Message> {
    pub(crate) frame: F,
    pub(crate) data: Vec<u8>,
    pub(crate) descriptors: Descriptors,
    /// The real user of the process that has sent all of it, if the socket asked the kernel for
    /// this before (SO_PASSCRED). None if several users have.
    pub(crate) sender: Option<Uid>,
}

/// The descriptors of a frame.
#[derive(Debug)]
pub(crate) struct Descriptors {
    received: Vec<OwnedFd>,
    /// The kernel dropped some, as this process may have no more.
    lacks_some: bool,
}

/// What was received with a piece of a frame.
#[derive(Default)]
struct Attached {
    descriptors: Vec<OwnedFd>,
    is_cut: bool,
    sender: Option<Uid>,
}

impl Channel {
    /// Needs a tokio runtime.
    pub(crate) fn new(socket: StdUnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket: UnixStream::from_std(socket)?, stall_timeout: STALL_TIMEOUT })
    }

    /// The process that listens on the socket to which this one has connected; none if it is in a
    /// namespace that this one does not see.
    pub(crate) fn listener(&self) -> io::Result<Option<Pid>> {
        Ok(self.socket.peer_cred()?.pid().and_then(Pid::from_raw))
    }

    /// From now on all traffic waits for the other process.
    pub(crate) fn suspended(self) -> Self {
        Self { stall_timeout: SUSPENDED_STALL_TIMEOUT, ..self }
    }

    /// Sends a frame without bytes or descriptors.
    pub(crate) async fn tell(&mut self, frame: &impl Serialize) -> io::Result<()> {
        self.send(frame, &[], &[]).await
    }

    /// Sends a frame with bytes and at most three descriptors.
    ///
    /// # Errors
    /// The other process has exited, or does not read.
    pub(crate) async fn send(
        &mut self,
        frame: &impl Serialize,
        data: &[&[u8]],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let text = text_of(frame)?;
        timeout(self.stall_timeout, self.send_all(&text, data, descriptors)).await?
    }

    async fn send_all(
        &mut self,
        text: &[u8],
        data: &[&[u8]],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let head = head(text.len(), data.iter().map(|piece| piece.len()).sum())?;
        let sent = self.socket.async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut attached = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                attached.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            Ok(sendmsg(&self.socket, &[IoSlice::new(&head)], &mut attached, SendFlags::NOSIGNAL)?)
        });
        if sent.await? != HEAD_BYTES {
            return Err(ErrorKind::WriteZero.into());
        }
        self.socket.write_all(text).await?;
        for piece in data {
            self.socket.write_all(piece).await?;
        }
        Ok(())
    }

    /// Stops receiving, and sends a last frame if there is room for it at once.
    pub(crate) fn end_with(&self, frame: &impl Serialize) {
        let ended = || -> io::Result<()> {
            shutdown(&self.socket, Shutdown::Read)?;
            let text = text_of(frame)?;
            let message = Zeroizing::new([&head(text.len(), 0)?, &**text].concat());
            send(&self.socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
            Ok(())
        };
        // Fails if the other process has exited, or still has much to read. It cannot answer that.
        let _ = ended();
    }

    /// Receives the next frame. Waits no longer than `limit`, then stops receiving: what the other
    /// process has not sent by then fails there.
    ///
    /// # Errors
    /// `TimedOut` after the limit, else as for [`receive`](Self::receive).
    pub(crate) async fn receive_last(&self, limit: Duration) -> io::Result<Received> {
        let mut receiving = pin!(self.receive());
        if let Ok(received) = timeout(limit, receiving.as_mut()).await {
            return received;
        }
        shutdown(&self.socket, Shutdown::Read)?;
        // All of it may have come meanwhile.
        receiving.await.map_err(|_| ErrorKind::TimedOut.into())
    }

    /// Receives the next frame of a handover.
    ///
    /// # Errors
    /// The other process has exited, or sends something else.
    pub(crate) async fn receive(&self) -> io::Result<Received> {
        self.receive_as().await
    }

    /// Receives the next frame of this kind.
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    pub(crate) async fn receive_as<F: DeserializeOwned>(&self) -> io::Result<Received<F>> {
        let Received { frame, data, descriptors, sender } = self.receive_text().await?;
        // Not serde_json's `UnexpectedEof`, which here means that the other process has exited.
        let invalid = |error| io::Error::new(ErrorKind::InvalidData, error);
        let frame = serde_json::from_slice(&frame).map_err(invalid)?;
        Ok(Received { frame, data, descriptors, sender })
    }

    /// Receives the next frame, as its text.
    async fn receive_text(&self) -> io::Result<Received<Zeroizing<Vec<u8>>>> {
        let (mut head, mut read) = ([0; HEAD_BYTES], 0);
        let mut descriptors = Descriptors { received: Vec::new(), lacks_some: false };
        let mut sender = None;
        while read < HEAD_BYTES {
            let mut space =
                [MaybeUninit::uninit(); cmsg_space!(ScmCredentials(1), ScmRights(DESCRIPTORS_MAX))];
            let (bytes, attached) = self.receive_some(&mut head[read..], &mut space).await?;
            sender = if read == 0 { attached.sender } else { common(sender, attached.sender) };
            read += bytes;
            // Also cut if there is no room for them all; then those that there is room for have
            // come.
            descriptors.lacks_some |=
                attached.is_cut && attached.descriptors.len() < DESCRIPTORS_MAX;
            descriptors.received.extend(attached.descriptors);
        }
        let length = |at: usize| {
            let field = head[at..at + 4].try_into().expect("4 of 8 bytes");
            u32::from_be_bytes(field) as usize
        };
        let frame = self.read(length(0), TEXT_BYTES_MAX, &mut sender).await?;
        let mut data = self.read(length(4), DATA_BYTES_MAX, &mut sender).await?;
        Ok(Received { frame, data: std::mem::take(&mut data), descriptors, sender })
    }

    async fn read(
        &self,
        bytes: usize,
        max: usize,
        sender: &mut Option<Uid>,
    ) -> io::Result<Zeroizing<Vec<u8>>> {
        if bytes > max {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let (mut buffer, mut filled) = (Zeroizing::new(vec![0; bytes]), 0);
        while filled < bytes {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmCredentials(1))];
            let (read, attached) = self.receive_some(&mut buffer[filled..], &mut space).await?;
            filled += read;
            *sender = common(*sender, attached.sender);
        }
        Ok(buffer)
    }

    /// Receives some bytes, all from one process, and as much of what is attached as the space has
    /// room for.
    async fn receive_some(
        &self,
        into: &mut [u8],
        space: &mut [MaybeUninit<u8>],
    ) -> io::Result<(usize, Attached)> {
        let receiving = self.socket.async_io(Interest::READABLE, || {
            let (mut messages, mut attached) =
                (RecvAncillaryBuffer::new(space), Attached::default());
            let into = &mut [IoSliceMut::new(into)];
            let received = recvmsg(&self.socket, into, &mut messages, RecvFlags::CMSG_CLOEXEC)?;
            for message in messages.drain() {
                match message {
                    RecvAncillaryMessage::ScmRights(rights) => attached.descriptors.extend(rights),
                    RecvAncillaryMessage::ScmCredentials(process) => {
                        attached.sender = Some(process.uid);
                    }
                    _ => {}
                }
            }
            attached.is_cut = received.flags.contains(ReturnFlags::CTRUNC);
            Ok((received.bytes, attached))
        });
        match receiving.await? {
            (0, _) => Err(ErrorKind::UnexpectedEof.into()),
            some => Ok(some),
        }
    }
}

impl Descriptors {
    /// The only one, if there is one.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub(crate) fn take_optional(self) -> io::Result<Option<OwnedFd>> {
        if self.received.is_empty() && !self.lacks_some {
            return Ok(None);
        }
        self.take().map(|[descriptor]| Some(descriptor))
    }

    /// All descriptors of the record, of which there must be this many.
    ///
    /// # Errors
    /// This process has too many open files, or the other process has sent another number.
    pub(crate) fn take<const N: usize>(self) -> io::Result<[OwnedFd; N]> {
        self.received.try_into().map_err(|descriptors: Vec<_>| {
            if self.lacks_some && descriptors.len() < N {
                return Errno::MFILE.into();
            }
            let cause = format!("a frame has {} descriptors, not {N}", descriptors.len());
            io::Error::new(ErrorKind::InvalidData, cause)
        })
    }
}

/// The sender of two pieces; none if they have different ones.
fn common(one: Option<Uid>, other: Option<Uid>) -> Option<Uid> {
    one.filter(|_| one == other)
}

/// What precedes a frame's text and bytes.
fn head(text_bytes: usize, data_bytes: usize) -> io::Result<[u8; HEAD_BYTES]> {
    let mut head = [0; HEAD_BYTES];
    for (field, length) in head.chunks_exact_mut(4).zip([text_bytes, data_bytes]) {
        let length = u32::try_from(length).map_err(|_| ErrorKind::FileTooLarge)?;
        field.copy_from_slice(&length.to_be_bytes());
    }
    Ok(head)
}

/// The error for a frame that is not expected here.
pub(crate) fn unexpected(frame: &Message) -> io::Error {
    if let Message::Continues = frame {
        return io::Error::other("it has given up, and continues");
    }
    // As it is sent: `"name"` or `{"name":...`.
    let text = text_of(frame).unwrap_or_default();
    let name = text.split(|byte| *byte == b'"').nth(1).unwrap_or_default();
    let cause = format!("unexpected {}", String::from_utf8_lossy(name));
    io::Error::new(ErrorKind::InvalidData, cause)
}

/// A frame's text, wiped when dropped. Its buffer does not grow, which would leave copies.
fn text_of(frame: &impl Serialize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut length = Length(0);
    serde_json::to_writer(&mut length, frame)?;
    let mut text = Zeroizing::new(Vec::with_capacity(length.0));
    serde_json::to_writer(&mut *text, frame)?;
    Ok(text)
}

/// Counts what is written.
struct Length(usize);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::unix::fs::FileExt;

    use rustix::net::sockopt::set_socket_passcred;
    use rustix::process::getuid;
    use tokio::time::Instant;

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (one, other) = StdUnixStream::pair().unwrap();
        (Channel::new(one).unwrap(), Channel::new(other).unwrap())
    }

    #[tokio::test]
    async fn a_frame_arrives_with_its_bytes_and_descriptors() {
        let (mut near, far) = pair();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let sending = async {
            near.tell(&Message::Begin).await.unwrap();
            near.send(&Message::Bye, &[b"ab", b"c"], &[read.as_fd()]).await.unwrap();
            near.tell(&Message::Done(7, Vec::new())).await.unwrap();
        };
        let receiving = async {
            let begun = far.receive().await.unwrap();
            assert!(matches!(begun.frame, Message::Begin) && begun.descriptors.take::<0>().is_ok());
            let bye = far.receive().await.unwrap();
            assert!(matches!(bye.frame, Message::Bye));
            assert_eq!(bye.data, b"abc");
            assert!(matches!(far.receive().await.unwrap().frame, Message::Done(7, _)));
            let [received] = bye.descriptors.take().unwrap();
            received
        };
        let ((), received) = tokio::join!(sending, receiving);
        rustix::io::write(&write, b"same pipe").unwrap();
        drop(write);
        let mut text = String::new();
        File::from(received).read_to_string(&mut text).unwrap();
        assert_eq!(text, "same pipe");
    }

    #[tokio::test]
    async fn a_frame_without_its_descriptors_is_invalid_and_not_a_lack_of_them() {
        let (mut near, far) = pair();
        near.tell(&Message::Begin).await.unwrap();
        let error = far.receive().await.unwrap().descriptors.take::<1>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let all = [far.as_fd(); DESCRIPTORS_MAX];
        near.send(&Message::Begin, &[], &all).await.unwrap();
        let error = far.receive().await.unwrap().descriptors.take::<1>().unwrap_err();
        assert_eq!(error.to_string(), "a frame has 3 descriptors, not 1");
    }

    #[tokio::test]
    async fn a_frame_says_who_has_sent_it_if_one_user_has_sent_all_of_it() {
        /// Stands for users that are not known (user_namespaces(7)).
        const OVERFLOW_USER: u32 = 65_534;
        let (mut near, far) = pair();
        near.tell(&Message::Begin).await.unwrap();
        assert_eq!(far.receive().await.unwrap().sender, None);
        set_socket_passcred(&far.socket, true).unwrap();
        let all = [far.as_fd(); DESCRIPTORS_MAX];
        near.send(&Message::Begin, &[b"bytes"], &all).await.unwrap();
        let received = far.receive().await.unwrap();
        assert_eq!(received.sender, Some(getuid()));
        received.descriptors.take::<DESCRIPTORS_MAX>().unwrap();
        if getuid().as_raw() == OVERFLOW_USER {
            return;
        }
        // The kernel notes no sender for what is sent to a socket that does not ask for it.
        let text = serde_json::to_vec(&Message::Begin).unwrap();
        for of_known in 0..HEAD_BYTES + text.len() {
            let message = [&head(text.len(), 0).unwrap(), &*text].concat();
            let (known, unknown) = message.split_at(of_known);
            near.socket.write_all(known).await.unwrap();
            set_socket_passcred(&far.socket, false).unwrap();
            near.socket.write_all(unknown).await.unwrap();
            set_socket_passcred(&far.socket, true).unwrap();
            assert_ne!(far.receive().await.unwrap().sender, Some(getuid()), "{of_known}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_reads_nothing_is_given_up_sooner_while_traffic_waits() {
        for suspended in [false, true] {
            let (mut near, _far) = pair();
            if suspended {
                near = near.suspended();
            }
            near.socket.writable().await.unwrap();
            while near.socket.try_write(&[0; 4096]).is_ok() {}
            let began = Instant::now();
            let error = near.tell(&Message::Begin).await.unwrap_err();
            let limit = if suspended { SUSPENDED_STALL_TIMEOUT } else { STALL_TIMEOUT };
            assert_eq!((error.kind(), began.elapsed()), (ErrorKind::TimedOut, limit));
        }
    }

    #[test]
    fn a_descriptor_that_may_be_missing_is_not_missing_for_lack_of_room() {
        let none = |lacks_some| Descriptors { received: Vec::new(), lacks_some };
        assert!(none(false).take_optional().unwrap().is_none());
        let error = none(true).take_optional().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
    }

    #[tokio::test]
    async fn an_end_that_dies_or_lies_about_a_length_is_an_error() {
        let (near, far) = pair();
        drop(near);
        assert_eq!(far.receive().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let (mut near, far) = pair();
        near.socket.write_all(&[0xff; HEAD_BYTES]).await.unwrap();
        assert_eq!(far.receive().await.unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    /// A frame with a token, and the text of eight of its bytes, inverted so that the search does
    /// not find it here. The rest of the text is wiped.
    fn with_token() -> (Message, Vec<u8>) {
        let mut token = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *token).unwrap();
        let text_of = |bytes: &[u8]| {
            let mut text = Zeroizing::new(Vec::with_capacity(1_024));
            for byte in bytes {
                write!(text, "{byte},").unwrap();
            }
            text.pop();
            text
        };
        let mut text = Zeroizing::new(Vec::with_capacity(4_096));
        text.extend_from_slice(
            br#"{"lineage":{"key":"","instance":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"#,
        );
        text.extend_from_slice(br#""epoch":1,"remaining_millis":1,"tokens":[["#);
        text.extend_from_slice(&text_of(&*token));
        text.extend_from_slice(b"],null]}}");
        let inverted = text_of(&token[12..20]).iter().map(|byte| !byte).collect();
        (serde_json::from_slice(&text).unwrap(), inverted)
    }

    /// Whether this, inverted, is in the memory of this process.
    fn is_in_memory(inverted: &[u8]) -> bool {
        const PIECE_BYTES: usize = 1 << 20;
        let memory = File::open("/proc/self/mem").unwrap();
        let mut piece = Zeroizing::new(vec![0; PIECE_BYTES]);
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains(" rw")).any(|line| {
            let (from, to) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
            let [from, to] = [from, to].map(|end| u64::from_str_radix(end, 16).unwrap());
            (from..to).step_by(PIECE_BYTES / 2).any(|at| {
                let bytes = &mut piece[..PIECE_BYTES.min((to - at) as usize)];
                let is_it =
                    |it: &[u8]| it.iter().zip(inverted).all(|(byte, other)| *byte == !other);
                memory.read_exact_at(bytes, at).is_ok() && bytes.windows(inverted.len()).any(is_it)
            })
        })
    }

    #[tokio::test]
    async fn frames_leave_no_token_in_memory_that_is_free_again() {
        let (mut near, far) = pair();
        let (frame, token) = with_token();
        near.tell(&frame).await.unwrap();
        let text = text_of(&frame).unwrap();
        assert!(is_in_memory(&token), "the search finds nothing");
        drop((frame, text));
        assert!(matches!(far.receive().await.unwrap().frame, Message::Lineage(_)));
        near.tell(&Message::Begin).await.unwrap();
        assert!(matches!(far.receive().await.unwrap().frame, Message::Begin));
        assert!(!is_in_memory(&token));
    }
}
