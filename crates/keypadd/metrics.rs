//! `--metrics ADDR:PORT`: one daemon's figures over HTTP, in Prometheus's text format. `GET /metrics` and
//! nothing else; each daemon has a registry of its own.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::error::{Error, Exit, bind_hint, system};
use crate::figures::Figures;

/// What the encoder writes: OpenMetrics 1.0, which Prometheus has read since 2.5.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
    let router = Router::new().route("/metrics", get(scrape)).with_state(Arc::new(registry));
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "metrics are no longer served");
    }
}

async fn scrape(State(registry): State<Arc<Registry>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
