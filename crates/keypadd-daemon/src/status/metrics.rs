//! Serves one daemon's metrics over HTTP (`--metrics ADDR:PORT`): OpenMetrics for clients that
//! accept it, else Prometheus's older text format. Also serves /healthz and /readyz. Requests must
//! be for this host ([`host`]).
//!
//! Each daemon has its own registry. Connections are capped and time out; when the cap is reached,
//! a new one displaces the oldest.

mod host;
mod page;
mod text_format;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use keypadd_cli::error::{Error, Exit, bind_hint, system};
use keypadd_share::{Bucket, Rate, Waiting};
use keypadd_tunnel::LinkState;
use keypadd_tunnel::handover::Handover;
use prometheus_client::collector::Collector;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::status::sources::Sources;

use page::{Pages, Text};

/// What the encoder writes: OpenMetrics 1.0, which Prometheus has read since 2.5.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Prometheus's older text format.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All other answers.
const TEXT: &str = "text/plain; charset=utf-8";

/// How long to wait when the system is out of descriptors.
const RETRY: Duration = Duration::from_secs(1);

/// Connections open at once; a scrape needs one for some milliseconds.
pub(crate) const CONNECTIONS_MAX: usize = 32;

/// How long a connection may take from accept to the end of the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of a request: each read of a longer one would parse it anew.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Takes the port before anything else of the daemon starts.
///
/// # Errors
/// Exit 6: the address cannot be bound.
pub(crate) fn bind(address: SocketAddr, handover: &Handover) -> Result<TcpListener, Error> {
    let listener = handover.take_tcp(address).map_or_else(|| listen(address), Ok);
    listener.and_then(TcpListener::from_std).map_err(|error| {
        let error = handover.explain(error, address.port());
        Error::new(
            Exit::BindFailed,
            format!("metrics: cannot listen on tcp {address}: {}", system(&error)),
        )
        .hint(bind_hint(&error, "127.0.0.1:9465"))
    })
}

fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    // It sets SO_REUSEADDR: a restarted daemon can bind its port again.
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers scrapes until dropped, even during shutdown. A panic ends only its own scrape's
/// connection.
pub(crate) async fn serve(listener: Arc<TcpListener>, figures: impl Collector, sources: Sources) {
    let own_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let served = Arc::new(Served { pages: Pages::new(figures), sources, own_name });
    let mut connections = JoinSet::new();
    let mut open = Waiting::default();
    let mut displaced = Displaced::default();
    loop {
        match listener.accept().await {
            Ok((stream, remote)) => {
                if open.count() >= CONNECTIONS_MAX && open.displace() {
                    displaced.closed(remote, Instant::now());
                }
                let served = Arc::clone(&served);
                let answer = service_fn(move |request| {
                    let answer = served.answer(&request);
                    async { Ok::<_, Infallible>(answer) }
                });
                // One answer per connection: an idle one would hold a descriptor.
                let connection = http1::Builder::new()
                    .keep_alive(false)
                    .max_buf_size(REQUEST_BYTES_MAX)
                    .serve_connection(TokioIo::new(stream), answer);
                let making_room = open.add(());
                connections.spawn(timeout(CONNECTION_TIMEOUT, async {
                    tokio::select! {
                        _ = making_room => {}
                        _ = connection => {}
                    }
                }));
            }
            Err(error) => {
                tracing::debug!(%error, "metrics: cannot accept");
                sleep(RETRY).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Connections closed to make room.
#[derive(Debug, Default)]
struct Displaced {
    closed: u64,
    log_limit: Bucket,
}

impl Displaced {
    fn closed(&mut self, newest: SocketAddr, now: Instant) {
        self.closed += 1;
        if self.log_limit.take(Rate::ONE_A_MINUTE, now.into_std()).is_ok() {
            let (closed, max) = (self.closed, CONNECTIONS_MAX);
            tracing::warn!(%newest, closed, max, "metrics: too many connections; closed the \
                oldest");
        }
    }
}

/// What requests are answered from.
struct Served {
    pages: Pages,
    sources: Sources,
    /// This host's name.
    own_name: String,
}

impl Served {
    fn answer(&self, request: &Request<Incoming>) -> Response<Text> {
        let mut response = Response::new(Text::default());
        let (version, target) = (request.version(), request.uri());
        if let Err(status) = host::check(version, target, request.headers(), &self.own_name) {
            let own_name = &self.own_name;
            *response.body_mut() = match status {
                StatusCode::MISDIRECTED_REQUEST => format!(
                    "this server answers requests for an IP address, localhost or {own_name}\n"
                ),
                _ => "the request does not say clearly which host it is for\n".to_owned(),
            }
            .into();
            *response.status_mut() = status;
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
            return response;
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET,HEAD"));
            return response;
        }
        let content = match request.uri().path() {
            "/metrics" => match self.pages.current() {
                Ok(page) if accepts_openmetrics(request.headers()) => {
                    *response.body_mut() = page.openmetrics.into();
                    OPENMETRICS
                }
                Ok(page) => {
                    *response.body_mut() = page.prometheus.into();
                    PROMETHEUS
                }
                Err(_) => {
                    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                    TEXT
                }
            },
            "/healthz" => {
                *response.body_mut() = "ok\n".into();
                TEXT
            }
            "/readyz" => {
                let (status, body) = self.readiness();
                (*response.status_mut(), *response.body_mut()) = (status, body.into());
                TEXT
            }
            _ => {
                *response.status_mut() = StatusCode::NOT_FOUND;
                TEXT
            }
        };
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
        response
    }

    /// Ready once every peer that the daemon connects to is connected; a server without such peers
    /// is ready immediately, and while it accepts new sessions.
    fn readiness(&self) -> (StatusCode, String) {
        if self.sources.server().is_some_and(|(_, draining)| draining.is_on()) {
            return (StatusCode::SERVICE_UNAVAILABLE, "draining: accepts no new sessions\n".into());
        }
        let mut down = self.sources.dialed();
        down.retain(|dialing| dialing.link.status().state != LinkState::Connected);
        if down.is_empty() {
            return (StatusCode::OK, "ok\n".into());
        }
        let lines = down.iter().map(|dialing| format!("not connected: {}\n", dialing.peer));
        (StatusCode::SERVICE_UNAVAILABLE, lines.collect())
    }
}

/// Whether a client accepts OpenMetrics; with weight 0 it does not (RFC 9110 section 12.4.2).
fn accepts_openmetrics(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|range| {
        let weight = range.rsplit_once("q=").map_or("1", |(_, weight)| weight.trim());
        range.contains("application/openmetrics-text")
            && weight.contains(|c| !matches!(c, '0' | '.'))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use prometheus_client::encoding::DescriptorEncoder;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    const PUBLIC_KEY: &str = "D0XbYHn9sJqlis8CDNgJkkZJ9mE6rbU+xBMj9RFj4R0=";

    /// A report whose first collection panics.
    #[derive(Debug)]
    struct PanicsOnce(AtomicBool);

    impl Collector for PanicsOnce {
        fn encode(&self, _: DescriptorEncoder<'_>) -> std::fmt::Result {
            assert!(self.0.swap(true, Relaxed), "these figures fail, as the test wants it");
            Ok(())
        }
    }

    async fn scrape(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn a_panicking_scrape_ends_only_its_own_connection() {
        let listener = bind("127.0.0.1:0".parse().unwrap(), &Handover::default()).unwrap();
        let address = listener.local_addr().unwrap();
        let sources = Sources::new(PUBLIC_KEY.parse().unwrap(), Vec::new());
        let serving =
            tokio::spawn(serve(Arc::new(listener), PanicsOnce(AtomicBool::new(false)), sources));
        assert_eq!(scrape(address).await, "");
        let answer = scrape(address).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        serving.abort();
    }

    #[test]
    fn openmetrics_is_for_those_who_accept_it() {
        let accepts = |value| {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(value))]);
            accepts_openmetrics(&headers)
        };
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3";
        assert!(accepts(prometheus) && accepts("text/plain, application/openmetrics-text"));
        assert!(!accepts("*/*") && !accepts("text/plain;q=1"));
        for refused in
            ["application/openmetrics-text;q=0", "application/openmetrics-text; q=0.000 ,*/*"]
        {
            assert!(!accepts(refused), "{refused}");
        }
    }
}
