//! `--metrics ADDR:PORT`: serves one daemon's figures over HTTP, in Prometheus's text format, at `GET
//! /metrics` alone; each daemon has a registry of its own. However many connections come, few are open and
//! each ends soon: the oldest makes room for a new one.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Error, Exit, bind_hint, system};
use crate::figures::Figures;

/// What the encoder writes: OpenMetrics 1.0, which Prometheus has read since 2.5.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long to wait when the system has no descriptor for a connection.
const RETRY: Duration = Duration::from_secs(1);

/// Connections open at once; a scrape needs one for some milliseconds.
const CONNECTIONS_MAX: usize = 32;

/// How long a connection may take from accept to the end of the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two lines about connections that were closed to make room.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Takes the port before anything else of the daemon starts.
///
/// # Errors
/// Exit 6: the address cannot be bound.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| {
        Error::new(
            Exit::BindFailed,
            format!("metrics: cannot listen on tcp {address}: {}", system(&error)),
        )
        .hint(bind_hint(&error, "127.0.0.1:9465"))
    })
}

/// Answers scrapes until it is dropped, also while the daemon ends.
pub(crate) async fn serve(listener: TcpListener, figures: Figures) {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(figures));
    let registry = Arc::new(registry);
    let mut connections = JoinSet::new();
    // Oldest first.
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    let mut crowd = Crowd::default();
    loop {
        match listener.accept().await {
            Ok((stream, remote)) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() >= CONNECTIONS_MAX
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                    crowd.closed(remote, Instant::now());
                }
                let registry = Arc::clone(&registry);
                let answer = service_fn(move |request| {
                    let answer = answer(&request, &registry);
                    async { Ok::<_, Infallible>(answer) }
                });
                // One answer a connection: an idle one would take a descriptor.
                let connection = http1::Builder::new()
                    .keep_alive(false)
                    .serve_connection(TokioIo::new(stream), answer);
                open.push_back(connections.spawn(timeout(CONNECTION_TIMEOUT, connection)));
            }
            Err(error) => {
                tracing::debug!(%error, "metrics: cannot accept");
                sleep(RETRY).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Connections closed to make room, and when that was last logged.
#[derive(Debug, Default)]
struct Crowd {
    closed: u64,
    logged: Option<Instant>,
}

impl Crowd {
    fn closed(&mut self, newest: SocketAddr, now: Instant) {
        self.closed += 1;
        if self.logged.is_none_or(|logged| now.saturating_duration_since(logged) >= LOG_INTERVAL) {
            self.logged = Some(now);
            let (closed, max) = (self.closed, CONNECTIONS_MAX);
            tracing::warn!(%newest, closed, max, "metrics: too many connections; closed the oldest");
        }
    }
}

fn answer(request: &Request<Incoming>, registry: &Registry) -> Response<String> {
    let mut response = Response::new(String::new());
    if request.uri().path() != "/metrics" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    } else if ![Method::GET, Method::HEAD].contains(request.method()) {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET,HEAD"));
    } else if encode(response.body_mut(), registry).is_err() {
        response.body_mut().clear();
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    } else {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(OPENMETRICS));
    }
    response
}
