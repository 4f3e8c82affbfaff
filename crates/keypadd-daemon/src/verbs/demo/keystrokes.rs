//! Shows keystrokes beside a download, through keypadd and over plain TCP, both over a slow line.
//!
//! The lines are relays of this process ([`Link`]), with a queue of 50 ms. The one for TCP shows no
//! loss: its queue is always full, and Linux's default congestion control keeps it nearly so.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use keypadd_cli::error::Error;
use keypadd_traffic::{Exchange, Host, Link, Path, Requester, Requests};
use serde::Serialize;
use tokio::time::sleep;

use super::page::{Page, Verdict};
use super::traffic::{self, LatencyRecorder, Typed, broken, mbit};
use super::{LINE, failed, tunnel};

/// How long the download runs before keys are pressed.
const LEAD: Duration = Duration::from_millis(700);
/// How long keys are pressed.
const TYPING_TIME: Duration = Duration::from_millis(3_300);
/// Keys a second, on average.
const KEYS_PER_SECOND: u32 = 60;

/// A piece of the download, and how many are asked for at once: more than the line and its queue
/// hold.
const PIECE_BYTES: u64 = 64 << 10;
const PIECES_UNDERWAY: usize = 8;
/// Longer than any part; the download ends with the keystrokes.
const WITHOUT_END: Duration = Duration::from_secs(3_600);

/// Waits that differ by less than this factor are called equal.
const MARGIN: f64 = 1.1;

/// What was measured each way.
#[derive(Debug, Serialize)]
pub(super) struct Keystrokes {
    keypadd: Beside,
    tcp: Beside,
}

/// Keystrokes, and the download beside them.
#[derive(Clone, Copy, Debug, Serialize)]
struct Beside {
    keystrokes: Typed,
    download_mbit: f64,
}

/// Types through keypadd, then over plain TCP.
///
/// # Errors
/// A connection breaks, or a byte was altered.
pub(super) async fn run(page: &mut Page) -> Result<Keystrokes, Error> {
    page.heading("2  Keystrokes beside a download on 20 Mbit/s, 20 ms; TCP fills a 50 ms queue.");
    let fault = |error: &dyn std::fmt::Display| failed(format!("keystrokes: {error}"));
    page.draw(["   through keypadd ..."]);
    let path = Path::over(&Link::new(LINE), tunnel(), 0).await.map_err(|error| fault(&error))?;
    let keypadd = beside_a_download(&path).await?;
    let _ = path.close().await;
    page.draw([&line("keypadd", &keypadd), "   over plain TCP ..."]);
    let host = Host::start().map_err(|error| fault(&error))?;
    let path = Path::plain(&Link::new(LINE), host, Ipv4Addr::LOCALHOST.into()).await;
    let tcp = beside_a_download(&path.map_err(|error| fault(&error))?).await?;
    Ok(Keystrokes { keypadd, tcp })
}

/// Types while something is downloaded over another connection of the path.
async fn beside_a_download(path: &Path) -> Result<Beside, Error> {
    let of_download = |error| broken("a download beside keystrokes", &error);
    let download = Requester::open(path.address()).await.map_err(of_download)?;
    let download = download.at_most(PIECES_UNDERWAY);
    let received = download.received();
    let typing = async {
        sleep(LEAD).await;
        let (before, start) = (received.load(Relaxed), Instant::now());
        let latencies = LatencyRecorder::default();
        let keys = traffic::schedule(TYPING_TIME, KEYS_PER_SECOND);
        traffic::type_keys(path, keys, latencies.clone()).await?;
        let download_mbit = mbit(received.load(Relaxed) - before, start.elapsed());
        let keystrokes = Typed::of(&latencies.so_far());
        let keystrokes = keystrokes.ok_or_else(|| failed("no key was pressed"))?;
        Ok(Beside { keystrokes, download_mbit })
    };
    let pieces = Requests::WithoutPause(Exchange::new(0, PIECE_BYTES), WITHOUT_END);
    tokio::select! {
        typed = typing => typed,
        ended = download.run(pieces, Instant::now(), (), |(), _| ()) => {
            ended.map_err(of_download)?;
            Err(failed("the download beside keystrokes came to its end"))
        }
    }
}

fn line(name: &str, beside: &Beside) -> String {
    let Beside { keystrokes: Typed { p50_us, p99_us, .. }, download_mbit } = beside;
    let [half, most] = [p50_us, p99_us].map(|us| us / 1e3);
    let answered = format!("median {half:.0} ms, 99th percentile {most:.0} ms");
    format!("   {name:<10} {answered}; download {download_mbit:.1} Mbit/s")
}

impl Keystrokes {
    /// A line for each way.
    pub(super) fn lines(&self) -> Vec<String> {
        vec![line("keypadd", &self.keypadd), line("plain TCP", &self.tcp)]
    }

    /// Which of them answers sooner, and what that costs.
    pub(super) fn verdict(&self) -> Verdict {
        let Self { keypadd, tcp } = self;
        let sooner = tcp.keystrokes.p99_us / keypadd.keystrokes.p99_us;
        let rate = keypadd.download_mbit / tcp.download_mbit;
        let keys = if sooner >= MARGIN {
            let why = "keypadd keeps the queue short";
            let digits = if sooner < 10.0 { 1 } else { 0 };
            format!("Keystrokes are echoed {sooner:.digits$} times faster: {why}.")
        } else if sooner > 1.0 / MARGIN {
            "Keystrokes are echoed as fast as over plain TCP: no gain.".into()
        } else {
            format!("Keystrokes take {:.1} times as long as over plain TCP: a loss.", 1.0 / sooner)
        };
        let download = if rate > 1.0 / MARGIN {
            "The download is about as fast.".into()
        } else {
            format!("The download has {:.0} % of plain TCP's rate.", rate * 100.0)
        };
        let lines = vec![keys, download];
        Verdict { speaks_for_us: sooner >= MARGIN && rate > 1.0 / MARGIN, lines }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(p99_us: f64, download_mbit: f64) -> Beside {
        let keystrokes = Typed { count: 210, p50_us: p99_us / 2.0, p99_us };
        Beside { keystrokes, download_mbit }
    }

    #[test]
    fn the_verdict_is_that_of_the_slowest_keys_and_names_what_they_cost() {
        let verdict = |ours, theirs| Keystrokes { keypadd: ours, tcp: theirs }.verdict();
        let won = verdict(beside(28_000.0, 18.6), beside(84_000.0, 19.1));
        assert!(won.speaks_for_us);
        assert_eq!(
            won.lines,
            [
                "Keystrokes are echoed 3.0 times faster: keypadd keeps the queue short.",
                "The download is about as fast."
            ]
        );
        let dear = verdict(beside(28_000.0, 9.0), beside(84_000.0, 18.0));
        assert!(!dear.speaks_for_us);
        assert_eq!(dear.lines[1], "The download has 50 % of plain TCP's rate.");
        let level = verdict(beside(80_000.0, 18.6), beside(84_000.0, 19.1));
        assert!(!level.speaks_for_us && level.lines[0].contains("no gain"), "{level:?}");
        let lost = verdict(beside(84_000.0, 18.6), beside(28_000.0, 19.1));
        assert!(!lost.speaks_for_us && lost.lines[0].contains("a loss"), "{lost:?}");
    }

    #[test]
    fn every_line_fits_eighty_columns() {
        let slow = beside(9_999_000.0, 19.9);
        let keystrokes = Keystrokes { keypadd: beside(10_000.0, 9.9), tcp: slow };
        let verdict = keystrokes.verdict().lines.into_iter().map(|line| format!("      {line}"));
        for line in keystrokes.lines().into_iter().chain(verdict) {
            assert!(line.len() <= 80, "{} {line}", line.len());
        }
    }
}
