//! Provides what tests of stepped event loops share: configurations of two ends, and futures that are polled by hand.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use keypadd_keystream::Suite;
use keypadd_provider::{
    AllowList, CryptoSettings, PrivateKey, PublicKey, client_config, server_config,
};
use keypadd_transport::{ClientConfig, ServerConfig};

#[derive(Debug)]
struct AllowAll;

impl AllowList for AllowAll {
    fn allows(&self, _: &PublicKey) -> bool {
        true
    }
}

/// A client that accepts only this server, and a server that accepts everyone, without a pool.
pub fn configs(suite: Suite) -> (ClientConfig, ServerConfig) {
    let [client, server] =
        [(); 2].map(|()| CryptoSettings::plain(Arc::new(PrivateKey::generate().unwrap()), suite));
    let client = client_config(&client, server.key.public()).unwrap();
    let server = server_config(&server, Arc::new(AllowAll)).unwrap();
    (ClientConfig::new(client), ServerConfig::with_crypto(server))
}

pub type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// Polls a task once.
pub fn poll<T>(task: &mut Task<T>) -> Option<T> {
    match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}
