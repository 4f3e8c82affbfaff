//! Tests one end of a pairing against a scripted peer that stops or refuses at a given step: what
//! each end is left with.

use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use keypadd_keystream::Suite;
use keypadd_provider::{CryptoSettings, PairingSecret, PrivateKey, inviter_config, joiner_config};
use keypadd_tunnel::wire::Instance;
use keypadd_tunnel::{
    Client, ClientSettings, Host, Invitation, Inviter, InviterSettings, Joined, Joiner,
    ServerAddress,
};

use super::{Hosts, fed, refused};
use crate::daemons::{text, write_file};

/// Packet protection of the scripted end.
fn crypto(key: &Arc<PrivateKey>) -> CryptoSettings {
    CryptoSettings::plain(Arc::clone(key), Suite::default())
}

/// Joins up to the far host's acceptance, then continues with `end`.
fn join_until(invitation: &Invitation, end: impl AsyncFnOnce(Joined)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let key = Arc::new(PrivateKey::generate().unwrap());
    runtime.block_on(async {
        let crypto = joiner_config(&crypto(&key), invitation.key).unwrap();
        let timeout = Duration::from_secs(30);
        let settings = ClientSettings::joining(invitation, crypto, timeout, Instance([0; 16]));
        let client = Client::bind(settings).await.unwrap();
        end(client.join(invitation, key.public()).await.unwrap()).await;
        client.close().await;
    });
}

/// Invites up to a valid proof, then continues with `end`; returns the output of `join`.
fn invite_until(hosts: &Hosts, end: impl AsyncFnOnce(Joiner)) -> Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let key = Arc::new(PrivateKey::generate().unwrap());
    let secret = Arc::new(PairingSecret::generate().unwrap());
    runtime.block_on(async {
        let inviter = Inviter::bind(InviterSettings {
            listen: "127.0.0.1:0".parse().unwrap(),
            crypto: inviter_config(&crypto(&key)).unwrap(),
            key: key.public(),
            secret: Arc::clone(&secret),
        });
        let inviter = inviter.unwrap();
        let address = inviter.local_addr();
        let pairing = ServerAddress { host: Host::Address(address.ip()), port: address.port() };
        let invitation = Invitation {
            key: key.public(),
            secret,
            expires: u64::MAX,
            pairing,
            tunnel_port: 4433,
            name: "lab".into(),
        };
        let mut join = hosts.near(&["join"]);
        let joining = tokio::task::spawn_blocking(move || fed(&mut join, &invitation.line()));
        end(inviter.wait().await.unwrap()).await;
        let output = joining.await.unwrap();
        inviter.close().await;
        output
    })
}

#[test]
fn a_joining_host_that_dies_before_it_confirms_leaves_the_inviting_one_as_it_was() {
    let hosts = Hosts::new();
    let before = hosts.far_file();
    for reason in [None, Some("no space there")] {
        let inviting = hosts.invite(&[]);
        join_until(&inviting.invitation(), async |joined| match reason {
            None => drop(joined),
            Some(reason) => joined.abandon(reason),
        });
        let (code, said) = inviting.ended();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("127.0.0.1 did not confirm (closed by peer"), "{said}");
        assert!(said.contains(reason.unwrap_or_default()), "{said}");
        assert!(said.contains("; nothing was written here\n  hint: "), "{said}");
        assert_eq!(hosts.far_file(), before);
    }
    assert_eq!(hosts.leftovers(), Vec::<String>::new());
}

#[test]
fn an_inviting_host_that_refuses_leaves_the_joining_one_as_it_was() {
    let hosts = Hosts::new();
    for before in [None, Some("# Mine.\n")] {
        if let Some(before) = before {
            write_file(&hosts.near.path("keypadd.toml"), before, 0o600);
        }
        let output = invite_until(&hosts, async |joiner| joiner.refuse("not you"));
        refused(&output, 4, ": not you");
        let output = invite_until(&hosts, async |mut joiner| {
            joiner.accept(None).await.unwrap();
            joiner.refuse("the disk is full");
        });
        refused(&output, 4, "lab: the disk is full");
        assert!(text(&output.stderr).contains("is unchanged; invite again there"));
        assert_eq!(hosts.near_file().as_deref(), before);
    }
    assert_eq!(hosts.leftovers(), Vec::<String>::new());
}

#[test]
fn a_joining_host_in_doubt_keeps_its_file_and_says_what_to_try() {
    let hosts = Hosts::new();
    let output = invite_until(&hosts, async |mut joiner| {
        joiner.accept(None).await.unwrap();
        drop(joiner);
    });
    refused(&output, 1, "lab may not have written its files");
    assert!(
        text(&output.stderr)
            .contains("if `keypadd connect @lab -L ...` is refused, remove [peer.lab]")
    );
    assert!(hosts.near_file().unwrap().contains("[peer.lab]"));
}

#[test]
fn a_file_edited_between_proof_and_confirmation_is_left_as_edited() {
    let hosts = Hosts::new();
    let inviting = hosts.invite(&[]);
    let edited = format!("{}# An edit.\n", hosts.far_file());
    join_until(&inviting.invitation(), async |joined| {
        write_file(&hosts.far.path("keypadd.toml"), &edited, 0o640);
        let refused = joined.confirm().await.unwrap_err().to_string();
        assert_eq!(refused, "the inviting host could not write its files");
    });
    let (code, said) = inviting.ended();
    assert!(code == Some(1) && said.contains("has changed meanwhile"), "{said}");
    assert_eq!(hosts.far_file(), edited);
}
