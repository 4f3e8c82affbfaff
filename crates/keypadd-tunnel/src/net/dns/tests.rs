//! Lookups at servers on loopback.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use testbed::dns::{Answer, DnsServer, DnsTransport, NXDOMAIN, answer, truncated};
use tokio::time::Instant;

use super::*;

const GOOD: &[Answer<'_>] = &[Answer::Srv(1, 0, 4433, "good.example")];

async fn server(
    reply: impl Fn(&[u8], DnsTransport) -> Vec<Vec<u8>> + Send + Sync + 'static,
) -> DnsServer {
    DnsServer::start(reply).await.unwrap()
}

/// A server that answers with these records, or this code.
async fn answering(code: u8, records: &'static [Answer<'static>]) -> DnsServer {
    server(move |asked, _| vec![answer(asked, code, records)]).await
}

async fn targets_at(servers: &[&DnsServer]) -> Result<Vec<String>, SrvError> {
    let nameservers = Nameservers::new(servers.iter().map(|server| server.address()).collect());
    let found = nameservers.targets(&"_keypadd._udp.example.com".parse().unwrap()).await?;
    Ok(found.into_iter().map(|target| target.address.to_string()).collect())
}

#[tokio::test]
async fn targets_come_by_priority() {
    const RECORDS: &[Answer<'_>] = &[
        Answer::Srv(30, 0, 3, "c.example"),
        Answer::Srv(10, 5, 1, "a.example"),
        Answer::Srv(20, 9, 2, "b.example"),
    ];
    let dns = answering(0, RECORDS).await;
    assert_eq!(targets_at(&[&dns]).await.unwrap(), ["a.example:1", "b.example:2", "c.example:3"]);
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_asked_for_by_tcp() {
    let dns = server(|asked, by| match by {
        DnsTransport::Udp => vec![truncated(asked)],
        DnsTransport::Tcp => vec![answer(asked, 0, GOOD)],
    });
    assert_eq!(targets_at(&[&dns.await]).await.unwrap(), ["good.example:4433"]);
}

#[tokio::test]
async fn answers_with_another_id_or_question_are_skipped() {
    let dns = server(|asked, _| {
        let forged: &[_] = &[Answer::Srv(1, 0, 4433, "forged.example")];
        let (mut other_id, mut other_name) = (answer(asked, 0, forged), answer(asked, 0, forged));
        other_id[0] ^= 1;
        other_name[14] ^= 1;
        vec![other_id, other_name, Vec::new(), vec![0; 3], answer(asked, 0, GOOD)]
    });
    assert_eq!(targets_at(&[&dns.await]).await.unwrap(), ["good.example:4433"]);
}

#[tokio::test]
async fn the_next_server_is_asked_if_one_is_silent_or_refuses_or_answers_with_garbage() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let silent = server(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        Vec::new()
    });
    let (silent, refusing) = (silent.await, answering(5, &[]).await);
    let good = answering(0, GOOD).await;
    let malformed = server(|asked, _| {
        let whole = answer(asked, 0, GOOD);
        vec![whole[..whole.len() - 1].to_vec()]
    });
    let malformed = malformed.await;
    assert_eq!(targets_at(&[&refusing, &malformed, &good]).await.unwrap(), ["good.example:4433"]);
    assert_eq!(targets_at(&[&silent, &good]).await.unwrap(), ["good.example:4433"]);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_name_without_a_target_says_why() {
    let (nowhere, empty) =
        (answering(0, &[Answer::Srv(0, 0, 0, ".")]).await, answering(0, &[]).await);
    // The first server that knows decides.
    let unknown = answering(NXDOMAIN, &[]).await;
    let good = answering(0, GOOD).await;
    assert!(matches!(targets_at(&[&nowhere, &good]).await, Err(SrvError::NoService)));
    assert!(matches!(targets_at(&[&empty, &good]).await, Err(SrvError::NoRecord)));
    assert!(matches!(targets_at(&[&unknown, &good]).await, Err(SrvError::NoName)));
}

#[tokio::test]
async fn a_lookup_that_nobody_answers_fails_within_its_time_and_names_the_servers() {
    let (first, second) = (server(|_, _| Vec::new()).await, answering(2, &[]).await);
    let began = Instant::now();
    let error = targets_at(&[&first, &second]).await.unwrap_err().to_string();
    assert!(began.elapsed() < 2 * LOOKUP_TIMEOUT, "{:?}", began.elapsed());
    let (first, second) = (first.address(), second.address());
    let expected =
        format!("the SRV lookup failed: {first}: timed out; {second}: DNS error SERVFAIL");
    assert_eq!(error, expected);
}

#[test]
fn all_attempts_fit_into_the_time_of_a_lookup() {
    let server = |port| SocketAddr::from(([127, 0, 0, 1], port));
    for servers in 1..=3 {
        let all = Nameservers::new((1..=servers).map(server).collect());
        assert!(all.share() * all.attempts * u32::from(servers) <= LOOKUP_TIMEOUT);
    }
    let hasty = Nameservers { timeout: Duration::from_secs(1), ..Nameservers::default() };
    assert_eq!(hasty.share(), Duration::from_secs(1));
}
