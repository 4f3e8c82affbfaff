//! Shows an outage: a download through keypadd and one over plain TCP, each over a line that is
//! silent for three seconds and then goes on with another address of the client.
//!
//! Both lines are relays of this process ([`Link`]). The one for TCP does what a NAT and the server
//! behind it do with segments from an address that has no connection: it resets. Every byte that
//! arrives is compared with what the service sends.

use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use keypadd_cli::error::Error;
use keypadd_traffic::{Broken, Due, Exchange, Host, Link, Path, Requester, Requests};
use serde::Serialize;
use tokio::time::MissedTickBehavior;

use super::page::{Page, Verdict};
use super::{LINE, failed, tunnel};

/// What is downloaded: four seconds of the line.
const DOWNLOAD_BYTES: u64 = 10_000_000;

/// When the line is cut, from the start of both downloads ...
const CUT_AT: Duration = Duration::from_secs(2);
/// ... and for how long.
const CUT_TIME: Duration = Duration::from_secs(3);

/// Where the server sees the clients before the outage, and after it.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];

/// Longest wait for both downloads.
const PATIENCE: Duration = Duration::from_secs(15);

/// How often the downloads are looked at ...
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// ... and how many looks are a mark on the page.
const LOOKS_PER_MARK: u32 = 25;
/// Most marks of a download.
const MARKS_MAX: usize = 36;

/// What became of both downloads.
#[derive(Debug, Serialize)]
pub(super) struct Outage {
    keypadd: Download,
    tcp: Download,
}

/// A download, as far as it came.
#[derive(Clone, Debug, Serialize)]
struct Download {
    /// Bytes that have arrived, all of them right.
    bytes: u64,
    /// Bytes that had arrived when the line was mended.
    bytes_before: Option<u64>,
    /// From then on, until the next byte arrived.
    resumed_after_seconds: Option<f64>,
    fate: Fate,
    /// A mark for each quarter of a second: `#` bytes came, `.` none did, `x` it ended early.
    marks: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Fate {
    Running,
    Complete,
    /// The download ended early, and why.
    Ended(String),
}

/// Runs both downloads and shows them meanwhile.
///
/// # Errors
/// A download could not begin, or a byte was altered.
pub(super) async fn run(page: &mut Page) -> Result<Outage, Error> {
    let seconds = [CUT_AT, CUT_TIME].map(|time| time.as_secs());
    let [cut_at, silent] = seconds;
    page.heading(&format!(
        "1  A download. After {cut_at} s: {silent} s without a network, then another address."
    ));
    let links = [(); 2].map(|()| Link::new(LINE));
    move_clients(&links, ADDRESSES[0]);
    let fault = |error: &dyn std::fmt::Display| failed(format!("a download: {error}"));
    let ours = Path::over(&links[0], tunnel(), 0).await.map_err(|error| fault(&error))?;
    let host = Host::start().map_err(|error| fault(&error))?;
    let plain = Path::plain(&links[1], host, Ipv4Addr::LOCALHOST.into()).await;
    let plain = plain.map_err(|error| fault(&error))?;

    let [near, direct] = [
        Requester::open(ours.address()).await.map_err(|error| fault(&error))?,
        Requester::open(plain.address()).await.map_err(|error| fault(&error))?,
    ];
    let mut watch = Watch::new([near.received(), direct.received()]);
    let (mut near, mut direct) = (pin!(download(near)), pin!(download(direct)));
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let start = Instant::now();
    while watch.is_running() && start.elapsed() < PATIENCE {
        let [keypadd, tcp] = [0, 1].map(|nth| watch.downloads[nth].fate == Fate::Running);
        tokio::select! {
            ended = &mut near, if keypadd => watch.end(0, ended)?,
            ended = &mut direct, if tcp => watch.end(1, ended)?,
            _ = ticks.tick() => {
                let time = start.elapsed();
                match watch.network {
                    Network::Before if time >= CUT_AT => {
                        watch.network = Network::Silent;
                        links.iter().for_each(|link| link.cut(true));
                    }
                    Network::Silent if time >= CUT_AT + CUT_TIME => {
                        watch.mend(Instant::now());
                        move_clients(&links, ADDRESSES[1]);
                        links.iter().for_each(|link| link.cut(false));
                    }
                    Network::Before | Network::Silent | Network::Back(_) => {}
                }
                if watch.look(Instant::now()) {
                    page.draw(watch.outage().lines());
                }
            }
        }
    }
    let outage = watch.outage();
    let _ = ours.close().await;
    Ok(outage)
}

fn move_clients(links: &[Link], to: Ipv4Addr) {
    links.iter().for_each(|link| link.move_clients(IpAddr::V4(to)));
}

/// Downloads over a connection; each byte is compared with what it has to be.
async fn download(requester: Requester) -> Result<(), Broken> {
    let exchange = Exchange::new(0, DOWNLOAD_BYTES);
    let requests = Requests::At(vec![Due { at: Duration::ZERO, exchange }]);
    requester.run(requests, Instant::now(), (), |(), _| ()).await.map(drop)
}

/// What both lines do.
#[derive(Clone, Copy)]
enum Network {
    /// They carry, before the outage.
    Before,
    /// They are cut.
    Silent,
    /// They carry again, since then, and the clients have another address.
    Back(Instant),
}

/// Looks at both downloads while they run.
struct Watch {
    received: [Arc<AtomicU64>; 2],
    downloads: [Download; 2],
    network: Network,
    looks: u32,
    /// Bytes at the last mark.
    marked: [u64; 2],
}

impl Watch {
    fn new(received: [Arc<AtomicU64>; 2]) -> Self {
        let download = Download {
            bytes: 0,
            bytes_before: None,
            resumed_after_seconds: None,
            fate: Fate::Running,
            marks: String::new(),
        };
        Self {
            received,
            downloads: [download.clone(), download],
            network: Network::Before,
            looks: 0,
            marked: [0; 2],
        }
    }

    fn is_running(&self) -> bool {
        self.downloads.iter().any(|download| download.fate == Fate::Running)
    }

    /// Notes how one has ended.
    ///
    /// # Errors
    /// A byte was altered.
    fn end(&mut self, nth: usize, ended: Result<(), Broken>) -> Result<(), Error> {
        let download = &mut self.downloads[nth];
        download.bytes = self.received[nth].load(Relaxed);
        download.fate = match ended {
            Ok(()) => Fate::Complete,
            Err(Broken::Altered) => return Err(failed(format!("a download: {}", Broken::Altered))),
            Err(Broken::Stopped(error)) => Fate::Ended(reason(&error)),
            Err(error @ Broken::Refused(..)) => Fate::Ended(error.to_string()),
        };
        if let Fate::Ended(_) = download.fate {
            download.marks.push('x');
        }
        Ok(())
    }

    fn mend(&mut self, now: Instant) {
        self.network = Network::Back(now);
        for (download, received) in self.downloads.iter_mut().zip(&self.received) {
            download.bytes_before = Some(received.load(Relaxed));
        }
    }

    /// Notes how far they are; returns whether there is something new to show.
    fn look(&mut self, now: Instant) -> bool {
        self.looks += 1;
        let is_marked = self.looks.is_multiple_of(LOOKS_PER_MARK);
        for (nth, download) in self.downloads.iter_mut().enumerate() {
            download.bytes = self.received[nth].load(Relaxed);
            let has_resumed = download.bytes_before.is_some_and(|before| download.bytes > before);
            if let Network::Back(since) = self.network
                && has_resumed
                && download.resumed_after_seconds.is_none()
            {
                download.resumed_after_seconds = Some((now - since).as_secs_f64());
            }
            let is_short = download.marks.len() < MARKS_MAX;
            if is_marked && is_short && download.fate == Fate::Running {
                download.marks.push(if download.bytes > self.marked[nth] { '#' } else { '.' });
                self.marked[nth] = download.bytes;
            }
        }
        is_marked
    }

    fn outage(&self) -> Outage {
        let [keypadd, tcp] = self.downloads.clone();
        Outage { keypadd, tcp }
    }
}

/// Why a connection ended, without the system's number.
fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionReset => "reset".into(),
        _ => keypadd_cli::error::system(error),
    }
}

impl Outage {
    /// A line for each download.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |(name, download): (&str, &Download)| {
            let Download { bytes, fate, marks, .. } = download;
            let megabytes = *bytes as f64 / 1e6;
            let fate = match fate {
                Fate::Running => String::new(),
                Fate::Complete => ", every byte right".into(),
                Fate::Ended(reason) => format!(", then {reason}"),
            };
            format!("   {name:<10} {marks}  {megabytes:.1} MB{fate}")
        };
        [("keypadd", &self.keypadd), ("plain TCP", &self.tcp)].map(line).into()
    }

    /// Whether the connection went on.
    pub(super) fn verdict(&self) -> Verdict {
        let Self { keypadd, tcp } = self;
        let has_gone_on = keypadd.fate == Fate::Complete;
        let ours = match (has_gone_on, keypadd.bytes_before, keypadd.resumed_after_seconds) {
            (true, Some(before), Some(seconds)) => format!(
                "With keypadd the same connection resumes after {seconds:.1} s, at byte {}.",
                grouped(before + 1),
            ),
            (true, ..) => "The download was over before the outage.".into(),
            (false, ..) => "With keypadd the download did not finish.".into(),
        };
        let theirs = match &tcp.fate {
            Fate::Complete => "It continued over TCP, too.",
            Fate::Running => "Over TCP it is stalled.",
            Fate::Ended(_) => {
                "A TCP connection cannot change its address: that download must start over."
            }
        };
        Verdict {
            speaks_for_us: has_gone_on && tcp.fate != Fate::Complete,
            lines: vec![ours, theirs.into()],
        }
    }
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use keypadd_cli::error::Exit;

    use super::*;

    fn download(fate: Fate, resumed_after_seconds: Option<f64>) -> Download {
        Download {
            bytes: DOWNLOAD_BYTES,
            bytes_before: Some(4_999_999),
            resumed_after_seconds,
            fate,
            marks: "#".repeat(MARKS_MAX),
        }
    }

    #[test]
    fn what_went_on_and_what_ended_are_said_as_they_were() {
        let ended = || Fate::Ended("reset".into());
        let verdict = |keypadd, tcp| Outage { keypadd, tcp }.verdict();
        let won = verdict(download(Fate::Complete, Some(0.14)), download(ended(), None));
        assert!(won.speaks_for_us);
        assert_eq!(
            won.lines[0],
            "With keypadd the same connection resumes after 0.1 s, at byte 5,000,000."
        );
        let lost = verdict(download(ended(), None), download(Fate::Complete, Some(0.1)));
        assert!(!lost.speaks_for_us);
        assert_eq!(
            lost.lines,
            ["With keypadd the download did not finish.", "It continued over TCP, too."]
        );
        let level =
            verdict(download(Fate::Complete, Some(0.1)), download(Fate::Complete, Some(0.1)));
        assert!(!level.speaks_for_us);
    }

    #[test]
    fn an_altered_byte_is_an_error_and_a_lost_connection_is_a_result() {
        let mut watch = Watch::new([Arc::default(), Arc::default()]);
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        watch.end(1, Err(Broken::Stopped(reset))).unwrap();
        assert_eq!(watch.downloads[1].fate, Fate::Ended("reset".into()));
        assert_eq!(watch.end(0, Err(Broken::Altered)).unwrap_err().exit(), Exit::Runtime);
    }

    #[test]
    fn the_first_byte_after_the_outage_is_noted_and_silence_is_drawn() {
        let received = [Arc::default(), Arc::default()];
        let mut watch = Watch::new(received.clone());
        let start = Instant::now();
        let look = |watch: &mut Watch| {
            (0..LOOKS_PER_MARK).for_each(|_| {
                watch.look(start);
            })
        };
        received[0].store(1_000, Relaxed);
        look(&mut watch);
        look(&mut watch);
        watch.mend(start - Duration::from_secs(1));
        look(&mut watch);
        received[0].store(1_001, Relaxed);
        look(&mut watch);
        let [keypadd, tcp] = &watch.downloads;
        assert_eq!((keypadd.bytes_before, keypadd.marks.as_str()), (Some(1_000), "#..#"));
        assert_eq!(keypadd.resumed_after_seconds, Some(1.0));
        assert_eq!((tcp.resumed_after_seconds, tcp.marks.as_str()), (None, "...."));
    }

    #[test]
    fn every_line_fits_eighty_columns() {
        let reason = Fate::Ended("reset".into());
        let outage =
            Outage { keypadd: download(Fate::Complete, Some(12.3)), tcp: download(reason, None) };
        let verdict = outage.verdict().lines.into_iter().map(|line| format!("      {line}"));
        for line in outage.lines().into_iter().chain(verdict) {
            assert!(line.len() <= 80, "{line}");
        }
    }
}
