//! Judges every datagram that an end sends: is each packet sealed with the keystream of its key and
//! number, and was any block of keystream used before?
//!
//! Phases and numbers are read off the wire (a phase by its tag where the bit does not tell), keys come
//! from the key log, keystream from `ciphers.rs`, plaintext from the tape. Knows nothing of pools.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use keypadd_keystream::Suite;
use quinn_proto::Side;

use crate::ciphers::PacketCipher;
use crate::secrets::{PhaseKeys, SecretLog};
use crate::tape::Tape;
use crate::wire::{Packet, Space, Uncovered, packets};

/// What must not happen. The text says where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Ciphertext XOR plaintext is not the keystream of this key and number.
    WrongKeystream(String),
    /// A counter block came twice under one cipher key.
    BlockTwice(String),
    /// The same recovered keystream came twice, under whatever key.
    PadTwice(String),
    /// Plaintext on the wire.
    Plaintext(String),
    /// The tag is not the one of these bytes.
    WrongTag(String),
    /// The datagram is not made of the packets that were sealed.
    Unreadable(String),
    /// What arrived is not what was written, or did not end as it should.
    WrongBytes(String),
    /// A promise of the pool or the keys was broken: budget, memory, figures.
    Accounts(String),
    /// The run did not come to its end.
    Hang(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A 1-RTT packet as the wire shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) phase: u64,
    pub(crate) number: u64,
}

/// What the auditor knows of one end of one connection.
pub(crate) struct Sender {
    label: String,
    side: Side,
    suite: Suite,
    log: Arc<SecretLog>,
    tape: Arc<Tape>,
    phase: u64,
    /// One above the last number, by space.
    next: BTreeMap<Space, u64>,
    header_keys: BTreeMap<Space, Vec<u8>>,
    ciphers: BTreeMap<(Space, u64), PacketCipher>,
}

impl Sender {
    pub(crate) fn new(
        connection: usize,
        side: Side,
        suite: Suite,
        log: Arc<SecretLog>,
        tape: Arc<Tape>,
    ) -> Self {
        let label = format!("connection {connection}, {side:?}");
        let (next, header_keys, ciphers) = Default::default();
        Self { label, side, suite, log, tape, phase: 0, next, header_keys, ciphers }
    }

    /// The newest phase seen on the wire.
    pub(crate) fn phase(&self) -> u64 {
        self.phase
    }

    /// The 1-RTT phase that a packet is of: the nearest with its key phase bit, or where its tag is not of
    /// that key but of the next one with this bit, that. quinn lets an end update its keys again that has
    /// sent nothing since the last update, and then the wire shows no change (RFC 9001 6.1 has it wait for
    /// an acknowledgement).
    fn phase_of(&mut self, packet: &Uncovered<'_>) -> Option<u64> {
        let nearest = self.phase + u64::from(packet.key_phase != (self.phase % 2 == 1));
        self.load(Space::Data, nearest);
        let bears_tag = |cipher: &mut PacketCipher| {
            cipher.tag(packet.number, &packet.header, packet.ciphertext) == packet.tag
        };
        if bears_tag(self.ciphers.get_mut(&(Space::Data, nearest))?) {
            return Some(nearest);
        }
        let further = self.log.keys(self.suite, Space::Data, self.side, nearest + 2);
        let is_further = further.is_some_and(|mut keys| bears_tag(&mut keys.packet));
        Some(if is_further { nearest + 2 } else { nearest })
    }

    fn load(&mut self, space: Space, phase: u64) -> bool {
        if self.ciphers.contains_key(&(space, phase)) {
            return true;
        }
        let Some(PhaseKeys { header, packet }) = self.log.keys(self.suite, space, self.side, phase)
        else {
            return false;
        };
        self.header_keys.entry(space).or_insert(header);
        self.ciphers.insert((space, phase), packet);
        // The wire never goes back to an older phase.
        self.ciphers.retain(|&(_, kept), _| kept + 2 > phase);
        true
    }
}

/// Judges a whole run.
#[derive(Default)]
pub(crate) struct Auditor {
    pub(crate) findings: Vec<Finding>,
    pub(crate) packets: u64,
    pub(crate) blocks: u64,
    key_ids: HashMap<Vec<u8>, u32>,
    used: HashSet<(u32, [u8; 16])>,
    pads: HashSet<[u8; 16]>,
}

/// Findings kept of one run; a broken run makes one a packet.
const FINDINGS_MAX: usize = 100;

impl Auditor {
    pub(crate) fn find(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    /// Judges one datagram as it leaves; what 1-RTT packet is in it.
    pub(crate) fn datagram(&mut self, sender: &mut Sender, datagram: &[u8]) -> Option<Seen> {
        let Some(packets) = packets(datagram) else {
            self.find(Finding::Unreadable(sender.label.clone()));
            return None;
        };
        let mut seen = None;
        for packet in packets.iter().filter(|packet| packet.space != Space::Initial) {
            match self.packet(sender, packet) {
                Some(data) if packet.space == Space::Data => seen = Some(data),
                Some(_) => {}
                None => self.find(Finding::Unreadable(format!(
                    "{}, {:?} after {:?}",
                    sender.label,
                    packet.space,
                    sender.next.get(&packet.space)
                ))),
            }
        }
        seen
    }

    fn packet(&mut self, sender: &mut Sender, packet: &Packet<'_>) -> Option<Seen> {
        let space = packet.space;
        let mut phase = if space == Space::Data { sender.phase } else { 0 };
        if !sender.load(space, phase) {
            return None;
        }
        let next = sender.next.get(&space).copied().unwrap_or_default();
        let uncovered = packet.uncover(sender.header_keys.get(&space)?, next)?;
        if space == Space::Data {
            phase = sender.phase_of(&uncovered)?;
            sender.phase = phase;
            sender.load(space, phase);
        }
        sender.next.insert(space, uncovered.number + 1);
        let sealed = sender.tape.next()?;
        if sealed.space != space
            || sealed.header != uncovered.header
            || sealed.plaintext.len() != uncovered.ciphertext.len()
        {
            return None;
        }
        let at = format!("{}, {space:?} phase {phase}, packet {}", sender.label, uncovered.number);
        let cipher = sender.ciphers.get_mut(&(space, phase))?;
        self.judge(cipher, &uncovered, &sealed.plaintext, &at);
        self.packets += u64::from(space == Space::Data);
        Some(Seen { phase, number: uncovered.number })
    }

    fn judge(
        &mut self,
        cipher: &mut PacketCipher,
        packet: &Uncovered<'_>,
        plaintext: &[u8],
        at: &str,
    ) {
        let number = packet.number;
        let mut pad: Vec<u8> = packet.ciphertext.to_vec();
        pad.iter_mut().zip(plaintext).for_each(|(byte, plain)| *byte ^= plain);
        // The first 16 bytes of recovered keystream, whatever key they are said to be of.
        if let Some(first) = pad.first_chunk::<16>() {
            if *first == [0; 16] {
                self.find(Finding::Plaintext(at.into()));
            } else if !self.pads.insert(*first) {
                self.find(Finding::PadTwice(at.into()));
            }
        }
        // XORed with the keystream it should be, nothing is left.
        cipher.xor_keystream(number, &mut pad);
        if let Some(byte) = pad.iter().position(|&byte| byte != 0) {
            self.find(Finding::WrongKeystream(format!("{at}, byte {byte}")));
        }
        if cipher.tag(number, &packet.header, packet.ciphertext) != packet.tag {
            self.find(Finding::WrongTag(at.into()));
        }
        let (key_ids, used) = (&mut self.key_ids, &mut self.used);
        let (mut blocks, mut twice) = (0, false);
        let mut last: Option<(Vec<u8>, u32)> = None;
        cipher.each_block(number, packet.ciphertext.len(), |block| {
            let id = match &last {
                Some((key, id)) if key == block.key => *id,
                _ => {
                    let next = key_ids.len() as u32;
                    let id = *key_ids.entry(block.key.to_vec()).or_insert(next);
                    last = Some((block.key.to_vec(), id));
                    id
                }
            };
            blocks += 1;
            twice |= !used.insert((id, block.counter));
        });
        self.blocks += blocks;
        if twice {
            self.find(Finding::BlockTwice(at.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::KeyLog;

    use super::*;

    /// What the auditor says of packets with these numbers, sealed as they should be.
    fn findings(suite: Suite, numbers: &[u64]) -> Vec<Finding> {
        let mut cipher =
            PacketCipher::new(suite, &vec![7; suite.protection().key_bytes()], [9; 12]);
        let (mut auditor, header, plaintext) = (Auditor::default(), vec![0x41; 12], [3; 40]);
        for &number in numbers {
            let mut ciphertext = plaintext;
            cipher.xor_keystream(number, &mut ciphertext);
            let tag = cipher.tag(number, &header, &ciphertext);
            let header = header.clone();
            let packet =
                Uncovered { header, number, key_phase: false, ciphertext: &ciphertext, tag: &tag };
            auditor.judge(&mut cipher, &packet, &plaintext, "here");
        }
        auditor.findings
    }

    #[test]
    fn a_packet_number_that_comes_twice_is_found_by_its_blocks_and_by_its_keystream() {
        for suite in Suite::ALL {
            assert_eq!(findings(suite, &[63, 64, 65, 127, 128]), [], "{suite}");
            let twice = [Finding::PadTwice("here".into()), Finding::BlockTwice("here".into())];
            assert_eq!(findings(suite, &[64, 65, 64]), twice, "{suite}");
        }
    }

    #[test]
    fn a_tag_of_other_bytes_is_found() {
        for suite in Suite::ALL {
            let mut cipher =
                PacketCipher::new(suite, &vec![7; suite.protection().key_bytes()], [9; 12]);
            let (mut auditor, mut ciphertext) = (Auditor::default(), [3; 40]);
            cipher.xor_keystream(5, &mut ciphertext);
            let tag = cipher.tag(5, b"another header", &ciphertext);
            let header = b"a header".to_vec();
            let packet = Uncovered {
                header,
                number: 5,
                key_phase: false,
                ciphertext: &ciphertext,
                tag: &tag,
            };
            auditor.judge(&mut cipher, &packet, &[3; 40], "here");
            assert_eq!(auditor.findings, [Finding::WrongTag("here".into())], "{suite}");
        }
    }

    /// What the auditor takes a packet's phase for that was sealed in one phase and shows its bit, when the
    /// last was of phase 4.
    fn phase_read(sealed_in: u64, tag_is_good: bool) -> Option<u64> {
        let (suite, log) = (Suite::AES_256_CTR_HMAC_SHA256, Arc::new(SecretLog::default()));
        log.log("CLIENT_TRAFFIC_SECRET_0", &[], &[5; 32]);
        let mut sender = Sender::new(0, Side::Client, suite, Arc::clone(&log), Arc::default());
        sender.phase = 4;
        let mut cipher = log.keys(suite, Space::Data, Side::Client, sealed_in)?.packet;
        let (header, ciphertext) = (vec![0x41; 12], [3; 40]);
        let mut tag = cipher.tag(9, &header, &ciphertext);
        tag[0] ^= u8::from(!tag_is_good);
        let key_phase = sealed_in % 2 == 1;
        let packet = Uncovered { header, number: 9, key_phase, ciphertext: &ciphertext, tag: &tag };
        sender.phase_of(&packet)
    }

    #[test]
    fn a_phase_in_which_nothing_was_sent_is_passed_over() {
        assert_eq!([4, 5, 6, 7].map(|phase| phase_read(phase, true)), [4, 5, 6, 7].map(Some));
        // A tag of no key is judged by the nearest.
        assert_eq!([4, 5, 6, 7].map(|phase| phase_read(phase, false)), [4, 5, 4, 5].map(Some));
    }
}
