//! Tests pairing: who is accepted, who is refused, and what each end learns.

use std::{sync::Arc, time::Duration};

use keypadd_keystream::Suite;
use keypadd_provider::{
    PairingSecret, PrivateKey, PublicKey, Refusal, inviter_config, joiner_config,
};
use keypadd_tunnel::{
    AuthError, Client, ClientError, ClientSettings, Forward, Host, Invitation, Inviter,
    InviterSettings, Joined, NotConfirmed, ServerAddress, wire::Instance,
};

use crate::support::{crypto, new_key, within};

/// An inviting end, and the values in its invitation.
struct Inviting {
    inviter: Inviter,
    key: PublicKey,
    secret: Arc<PairingSecret>,
}

impl Inviting {
    fn start() -> Self {
        let (private, secret) = (new_key(), Arc::new(PairingSecret::generate().unwrap()));
        let inviter = Inviter::bind(InviterSettings {
            listen: "127.0.0.1:0".parse().unwrap(),
            crypto: inviter_config(&crypto(&private, Suite::AES_128_GCM)).unwrap(),
            key: private.public(),
            secret: Arc::clone(&secret),
        });
        Self { inviter: inviter.unwrap(), key: private.public(), secret }
    }

    fn invitation(&self) -> Invitation {
        self.invitation_with(Arc::clone(&self.secret))
    }

    fn invitation_with(&self, secret: Arc<PairingSecret>) -> Invitation {
        let address = self.inviter.local_addr();
        Invitation {
            key: self.key,
            secret,
            expires: 0,
            pairing: ServerAddress { host: Host::Address(address.ip()), port: address.port() },
            tunnel_port: 4433,
            name: "lab".into(),
        }
    }
}

/// Joins with this key; the client must live as long as the pairing.
async fn join(
    invitation: &Invitation,
    key: &Arc<PrivateKey>,
) -> (Client, Result<Joined, ClientError>) {
    let crypto = joiner_config(&crypto(key, Suite::AES_128_GCM), invitation.key).unwrap();
    let timeout = Duration::from_secs(30);
    let settings = ClientSettings::joining(invitation, crypto, timeout, Instance([0; 16]));
    let client = Client::bind(settings).await.unwrap();
    let joined = client.join(invitation, key.public()).await;
    (client, joined)
}

#[tokio::test]
async fn both_ends_learn_the_others_key_and_confirm() {
    let (inviting, key) = (Inviting::start(), new_key());
    let invitation = inviting.invitation();
    let far = async {
        let mut joiner = inviting.inviter.wait().await.unwrap();
        assert_eq!(joiner.key, key.public());
        let suggestion = Forward::Local("2222:localhost:22".parse().unwrap());
        joiner.accept(Some(&suggestion)).await.unwrap();
        joiner.done().await;
    };
    let near = async {
        let (_client, joined) = join(&invitation, &key).await;
        let joined = joined.unwrap();
        assert_eq!(joined.suggestion.as_ref().unwrap().to_string(), "-L 2222:localhost:22");
        joined.confirm().await.unwrap();
    };
    within(async { tokio::join!(far, near) }).await;
}

#[tokio::test]
async fn wrong_secrets_are_turned_away_and_use_nothing_up() {
    let (inviting, key) = (Inviting::start(), new_key());
    let far = async {
        let joiner = inviting.inviter.wait().await.unwrap();
        assert_eq!(joiner.key, key.public());
        joiner.refuse("this is the right one");
    };
    let near = async {
        for _ in 0..5 {
            let wrong = inviting.invitation_with(Arc::new(PairingSecret::generate().unwrap()));
            let (_client, joined) = join(&wrong, &new_key()).await;
            let refused = joined.unwrap_err();
            assert!(matches!(&refused, ClientError::NotPaired { .. }), "{refused}");
            assert!(refused.to_string().contains("not the invitation"), "{refused}");
        }
        let (_client, joined) = join(&inviting.invitation(), &key).await;
        let refused = joined.unwrap_err().to_string();
        assert!(refused.ends_with(": this is the right one"), "{refused}");
    };
    within(async { tokio::join!(far, near) }).await;
}

#[tokio::test]
async fn strangers_that_send_no_proof_make_room_for_the_host_that_has_it() {
    let (inviting, key) = (Inviting::start(), new_key());
    let invitation = inviting.invitation();
    let far = async {
        let mut joiner = inviting.inviter.wait().await.unwrap();
        assert_eq!(joiner.key, key.public());
        joiner.accept(None).await.unwrap();
        joiner.done().await;
    };
    let near = async {
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let crypto = joiner_config(&crypto(&key, Suite::AES_128_GCM), invitation.key).unwrap();
        let config = quinn::ClientConfig::new(crypto);
        let mut silent = Vec::new();
        // More than are served at once, of either lane.
        for _ in 0..200 {
            let address = inviting.inviter.local_addr();
            let connecting = endpoint.connect_with(config.clone(), address, "keypadd").unwrap();
            silent.push(connecting.await);
        }
        let evicted = silent.remove(0).unwrap().closed().await.to_string();
        assert!(evicted.contains("try again"), "{evicted}");
        let (_client, joined) = join(&invitation, &key).await;
        joined.unwrap().confirm().await.unwrap();
    };
    within(async { tokio::join!(far, near) }).await;
}

#[tokio::test]
async fn whoever_comes_after_the_one_that_proved_the_secret_is_not_let_in() {
    let (inviting, key) = (Inviting::start(), new_key());
    let invitation = inviting.invitation();
    within(async {
        let far = async { inviting.inviter.wait().await.unwrap() };
        let near = join(&invitation, &key);
        tokio::pin!(near);
        let joiner = tokio::select! {
            joiner = far => joiner,
            _ = &mut near => panic!("accepted by nobody"),
        };
        let (_client, late) = join(&invitation, &new_key()).await;
        assert!(matches!(late, Err(ClientError::Unreachable { .. })), "{late:?}");
        joiner.refuse("done");
    })
    .await;
}

#[tokio::test]
async fn an_inviting_end_that_writes_nothing_says_so_after_the_others_confirmation() {
    let (inviting, key) = (Inviting::start(), new_key());
    let invitation = inviting.invitation();
    let far = async {
        let mut joiner = inviting.inviter.wait().await.unwrap();
        joiner.accept(None).await.unwrap();
        joiner.refuse("the disk is full");
    };
    let near = async {
        let (_client, joined) = join(&invitation, &key).await;
        let refused = joined.unwrap().confirm().await;
        assert_eq!(refused, Err(NotConfirmed::Refused("the disk is full".into())));
    };
    within(async { tokio::join!(far, near) }).await;
}

#[tokio::test]
async fn an_inviting_end_that_vanishes_leaves_the_other_in_doubt() {
    let (inviting, key) = (Inviting::start(), new_key());
    let invitation = inviting.invitation();
    let far = async {
        let mut joiner = inviting.inviter.wait().await.unwrap();
        joiner.accept(None).await.unwrap();
        drop(joiner);
    };
    let near = async {
        let (_client, joined) = join(&invitation, &key).await;
        let doubt = joined.unwrap().confirm().await.unwrap_err();
        assert!(matches!(doubt, NotConfirmed::Unknown(_)), "{doubt}");
    };
    within(async { tokio::join!(far, near) }).await;
}

#[tokio::test]
async fn a_host_with_another_key_is_not_joined() {
    let (inviting, key) = (Inviting::start(), new_key());
    let invitation = Invitation { key: new_key().public(), ..inviting.invitation() };
    let near = async {
        let (_client, joined) = join(&invitation, &key).await;
        let refused = joined.unwrap_err();
        let expected = AuthError::Refused(Refusal::NotPinned(inviting.key));
        assert!(
            matches!(&refused, ClientError::Auth { cause, .. } if *cause == expected),
            "{refused}"
        );
    };
    within(async {
        tokio::select! {
            joiner = inviting.inviter.wait() => panic!("{joiner:?}"),
            () = near => {}
        }
    })
    .await;
}

#[tokio::test]
async fn either_end_that_cannot_go_on_tells_the_other_why() {
    let key = new_key();
    let inviting = Inviting::start();
    let far = async { inviting.inviter.wait().await.unwrap().refuse("the disk is full") };
    let invitation = inviting.invitation();
    let (_, (_client, joined)) = within(async { tokio::join!(far, join(&invitation, &key)) }).await;
    let refused = joined.unwrap_err().to_string();
    assert!(refused.ends_with(": the disk is full"), "{refused}");

    let inviting = Inviting::start();
    let invitation = inviting.invitation();
    let far = async { inviting.inviter.wait().await.unwrap().accept(None).await.unwrap_err() };
    let near = async {
        let (client, joined) = join(&invitation, &key).await;
        joined.unwrap().abandon("no space");
        client
    };
    let (error, _client) = within(async { tokio::join!(far, near) }).await;
    assert!(error.to_string().contains("no space"), "{error}");
}
