//! Warns about peers whose `valid-until` is past or near. The caller passes the time.

use std::time::{Duration, SystemTime};

use crate::fault::{Fault, Place};
use crate::quote::shown;

/// How early a warning comes.
const WARNING: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Until when a peer is accepted, and where the file says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    pub(crate) peer: String,
    pub(crate) until: SystemTime,
    pub(crate) place: Place,
}

impl Expiry {
    /// Warns if the peer has expired, or will within a week.
    pub(crate) fn warning(&self, now: SystemTime) -> Option<Fault> {
        let peer = shown(&self.peer);
        let cause = match self.until.duration_since(now) {
            Ok(left) if left > WARNING => return None,
            Ok(left) if !left.is_zero() => {
                let left = match left.as_secs() / (24 * 60 * 60) {
                    0 => "in less than a day".to_owned(),
                    1 => "in 1 day".to_owned(),
                    days => format!("in {days} days"),
                };
                format!("valid-until: peer {peer} expires {left}")
            }
            _ => format!("valid-until: peer {peer} has expired"),
        };
        let hint = Some("set a later date, or remove the peer".into());
        Some(Fault { place: self.place.clone(), cause, hint })
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::values::valid_until;

    #[test]
    fn warnings_about_a_peer_begin_a_week_before_it_expires() {
        let text = "listen = \"[::]:1\"\npermit-open = \"a:1\"\n[peer.lab]\n\
            public-key = \"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"\nvalid-until = \
            \"2027-01-31\"\n";
        let config = Config::read(text, u64::MAX).unwrap();
        let warning = |now: &str| {
            let warnings = config.expiry_warnings(valid_until(now).unwrap());
            warnings.first().map(|warning| warning.to_string().lines().next().unwrap().to_owned())
        };
        assert_eq!(warning("2027-01-24T23:59:58Z"), None);
        for (now, said) in [
            ("2027-01-24T23:59:59Z", "expires in 7 days"),
            ("2027-01-29T23:59:59Z", "expires in 2 days"),
            ("2027-01-30T12:00:00Z", "expires in 1 day"),
            ("2027-01-31T12:00:00Z", "expires in less than a day"),
            ("2027-01-31T23:59:59Z", "has expired"),
            ("2030-01-01", "has expired"),
        ] {
            assert_eq!(warning(now).unwrap(), format!("5:15: valid-until: peer `lab` {said}"));
        }
    }
}
