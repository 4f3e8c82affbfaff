//! Checks answers of DNS servers: any bytes are the answer to a question or not, and every target that is read is
//! a name with a port that parses to the same.

use keypadd_tunnel::{Host, SrvQuestion, SrvReply};

/// What the answers under `fuzz/seeds` answer.
const ID: u16 = 0x4b44;
const NAME: &str = "_keypadd._udp.example.com";

/// Panics if the property does not hold.
pub fn holds(bytes: &[u8]) {
    let Ok(name) = NAME.parse() else { return };
    let Some(SrvReply::Records(records)) = SrvQuestion::with_id(ID, &name).read(bytes) else {
        return;
    };
    // No record is shorter than a name by its place, ten fixed bytes, and the root as its target.
    assert!(records.len() * 19 <= bytes.len(), "a record without bytes");
    for target in records.into_iter().filter_map(|record| record.target) {
        assert!(matches!(target.host, Host::Name(_)) && target.port != 0);
        assert_eq!(target.to_string().parse(), Ok(target));
    }
}
