//! Audits every datagram that an end sends: is each packet sealed with the keystream of its key and
//! number, and was any block of keystream used before?
//!
//! Reads phases and numbers off the wire, takes keys from the key log, keystream from `ciphers.rs`
//! and plaintext from the tape. Knows nothing of pools.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use keypadd_keystream::Suite;
use quinn_proto::Side;

use crate::ciphers::PacketCipher;
use crate::secrets::{PhaseKeys, SecretLog};
use crate::tape::Tape;
use crate::wire::{Packet, Space, Uncovered, packets};

/// A violation, with its location as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Ciphertext XOR plaintext is not the keystream of this key and number.
    WrongKeystream(String),
    /// A counter block was used twice under one cipher key.
    BlockTwice(String),
    /// The same keystream was recovered twice, under any keys.
    PadTwice(String),
    /// Plaintext on the wire.
    Plaintext(String),
    /// The tag does not match the packet.
    WrongTag(String),
    /// The datagram does not consist of the packets that were sealed.
    Unreadable(String),
    /// Received bytes differ from those written, or the stream ended wrongly.
    WrongBytes(String),
    /// An invariant of the pool or the keys was broken: budget, memory, counts.
    Accounts(String),
    /// The run did not finish.
    Hang(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A 1-RTT packet as the wire shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedNumber {
    pub(crate) phase: u64,
    pub(crate) number: u64,
}

/// The auditor's state for one end of one connection.
pub(crate) struct Sender {
    label: String,
    side: Side,
    suite: Suite,
    log: Arc<SecretLog>,
    tape: Arc<Tape>,
    phase: u64,
    /// The last datagram audited.
    last: Vec<u8>,
    /// The next number, by space.
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
        let (last, next, header_keys, ciphers) = Default::default();
        Self { label, side, suite, log, tape, phase: 0, last, next, header_keys, ciphers }
    }

    /// The newest phase seen on the wire.
    pub(crate) fn phase(&self) -> u64 {
        self.phase
    }

    /// The phase of the next packet that the end would send.
    pub(crate) fn next_phase(&self) -> u64 {
        self.tape.phase()
    }

    /// Whether it has sealed what is in this datagram and not sent it before. A copy of the last
    /// datagram was audited with that.
    pub(crate) fn has_sealed(&self, datagram: &[u8]) -> bool {
        let mut packets = packets(datagram).into_iter().flatten();
        datagram != self.last && packets.any(|packet| self.tape.may_have_sealed(&packet))
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

/// Audits a whole run.
#[derive(Default)]
pub(crate) struct Auditor {
    pub(crate) findings: Vec<Finding>,
    pub(crate) packets: u64,
    pub(crate) blocks: u64,
    key_ids: HashMap<Vec<u8>, u32>,
    used: HashSet<(u32, [u8; 16])>,
    pads: HashSet<[u8; 16]>,
}

/// Maximum findings kept per run; a broken run produces one per packet.
const FINDINGS_MAX: usize = 100;

impl Auditor {
    pub(crate) fn find(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    /// Audits one datagram as it leaves; returns the 1-RTT packet in it.
    pub(crate) fn datagram(
        &mut self,
        sender: &mut Sender,
        datagram: &[u8],
    ) -> Option<ReceivedNumber> {
        let Some(packets) = packets(datagram) else {
            self.find(Finding::Unreadable(sender.label.clone()));
            return None;
        };
        sender.last = datagram.to_vec();
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

    fn packet(&mut self, sender: &mut Sender, packet: &Packet<'_>) -> Option<ReceivedNumber> {
        let space = packet.space;
        let phase = if space == Space::Data { sender.phase } else { 0 };
        if !sender.load(space, phase) {
            return None;
        }
        let next = sender.next.get(&space).copied().unwrap_or_default();
        let uncovered = packet.uncover(sender.suite, sender.header_keys.get(&space)?, next)?;
        let phase = match space {
            Space::Data if uncovered.key_phase != (phase % 2 == 1) => phase + 1,
            _ => phase,
        };
        if space == Space::Data {
            sender.phase = phase;
            sender.load(space, phase);
        }
        sender.next.insert(space, uncovered.number + 1);
        let sealed = sender.tape.take(space, uncovered.number)?;
        if sealed.header != uncovered.header || sealed.plaintext.len() != uncovered.ciphertext.len()
        {
            return None;
        }
        let at = format!("{}, {space:?} phase {phase}, packet {}", sender.label, uncovered.number);
        let cipher = sender.ciphers.get_mut(&(space, phase))?;
        self.judge(cipher, &uncovered, &sealed.plaintext, &at);
        self.packets += u64::from(space == Space::Data);
        Some(ReceivedNumber { phase, number: uncovered.number })
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
        // The first 16 bytes of recovered keystream, whatever key the packet claims.
        if let Some(first) = pad.first_chunk::<16>() {
            if *first == [0; 16] {
                self.find(Finding::Plaintext(at.into()));
            } else if !self.pads.insert(*first) {
                self.find(Finding::PadTwice(at.into()));
            }
        }
        // XORing with the expected keystream must leave zeros.
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
    use super::*;

    /// The auditor's findings for packets with these numbers, correctly sealed.
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
}
