//! Writes a snapshot as Prometheus metrics, under names that
//! tests/cli/surfaces/metrics.txt lists.
//!
//! Per-session series carry the session ID as well as the peer, so two sessions of one peer never
//! share a series.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::SystemTime;

use keypadd_provider::SAMPLED_ONE_IN;
use keypadd_tunnel::{LinkState, ReconnectReason, unix_seconds};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue};
use prometheus_client::metrics::MetricType;

use crate::status::snapshot::{COVERAGES, LevelReport, Snapshot, Times};

type Labels = Vec<(&'static str, String)>;

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        let help = "1, with the version of the program";
        let version = [(labels([("version", &self.version)]), 1_u64)];
        out.gauges("keypadd_build_info", help, version)?;
        self.encode_packets(&mut out)?;
        self.encode_transport(&mut out)?;
        self.encode_limits(&mut out)?;
        self.encode_memory(&mut out)?;
        self.encode_forwards(&mut out)?;
        self.encode_hold(&mut out)?;
        self.encode_pool(&mut out)?;
        self.encode_links(&mut out)?;
        self.encode_networks(&mut out)?;
        self.encode_sessions(&mut out)
    }
}

impl Snapshot {
    fn encode_packets(&self, out: &mut Out<'_>) -> fmt::Result {
        let bytes = [("pool", self.keystream_pool_bytes), ("inline", self.keystream_inline_bytes)];
        let bytes = bytes.map(|(source, bytes)| (labels([("source", source)]), bytes));
        out.counters("keypadd_keystream_bytes", "Keystream used, by source", bytes)?;
        let help = "Packets sealed or opened, by how much of the pad the pool held";
        let packets = self.packets.both().into_iter().flat_map(|(way, packets)| {
            let counts = [packets.hit, packets.partial, packets.miss];
            COVERAGES
                .into_iter()
                .zip(counts)
                .map(move |(pad, count)| (labels([("direction", way), ("pad", pad)]), count))
        });
        out.counters("keypadd_packets", help, packets)?;
        for (name, verb, times) in [
            ("keypadd_seal_seconds", "sealing", &self.packet_times.send),
            ("keypadd_open_seconds", "opening", &self.packet_times.receive),
        ] {
            let help = format!("Time of {verb} a packet, sampled one in {SAMPLED_ONE_IN}");
            let rows = COVERAGES.into_iter().zip(times);
            out.histograms(name, &help, rows.map(|(pad, times)| (labels([("pad", pad)]), times)))?;
        }
        let help = format!(
            "Time of a packet by stage, sampled one in {SAMPLED_ONE_IN}; pad and xor are one stage \
             if the pad is computed inline"
        );
        let stages = self.stage_times.iter();
        let rows = stages.map(|(stage, times)| (labels([("stage", *stage)]), times));
        out.histograms("keypadd_packet_stage_seconds", &help, rows)?;
        let help = "Times that a key's pool ran dry after it had served packets";
        out.counter("keypadd_pool_exhaustions", help, self.pool_exhaustions)?;
        let help = "Packets whose tag did not verify";
        out.counter("keypadd_open_failures", help, self.open_failures)?;
        let help = "Connections that ended because their peer had restarted or no longer knew them";
        out.counter("keypadd_resets", help, self.resets)?;
        out.counter("keypadd_replays", "Replayed or late packets", self.replays)?;
        let help = "Refused attempts to use a packet number twice; anything but 0 is a bug";
        out.counter("keypadd_pad_reuse", help, self.pad_reuse)
    }

    fn encode_transport(&self, out: &mut Out<'_>) -> fmt::Result {
        let help = "CPU time that event loops spent on busy polling";
        out.counter("keypadd_transport_spin_seconds", help, self.transport.spin_seconds)?;
        let help =
            "Datagrams dropped because their connections took more than their shares of a loop";
        let dropped = self.transport.datagrams_dropped;
        out.counter("keypadd_transport_datagrams_dropped", help, dropped)
    }

    fn encode_limits(&self, out: &mut Out<'_>) -> fmt::Result {
        let limits = &self.limits;
        let help = "Descriptors that forwards use, and their limit";
        let rows = [("used", limits.descriptors), ("max", limits.descriptors_max)];
        let rows = rows.map(|(of, count)| (labels([("of", of)]), count as u64));
        out.gauges("keypadd_descriptors", help, rows)?;
        let help = "Refusals and delays, by limit";
        let rows = [
            ("descriptors", limits.descriptors_refused),
            ("sessions", limits.sessions_refused),
            ("control_frames", limits.frames_delayed),
            ("log_lines", limits.log_lines_suppressed),
        ];
        let rows = rows.map(|(limit, count)| (labels([("limit", limit)]), count));
        out.counters("keypadd_refused", help, rows)
    }

    fn encode_memory(&self, out: &mut Out<'_>) -> fmt::Result {
        let help = "Memory that the daemon may use";
        out.gauge("keypadd_memory_limit_bytes", help, self.memory.limit_bytes)?;
        let (mut used, mut max) = (Vec::new(), Vec::new());
        for share in &self.memory.shares {
            let one = labels([("of", &*share.of)]);
            max.extend(share.max_bytes.map(|bytes| (one.clone(), bytes)));
            used.push((one, share.used_bytes));
        }
        out.gauges("keypadd_memory_share_bytes", "Memory limit, by purpose", max)?;
        out.gauges("keypadd_memory_used_bytes", "Memory in use, by purpose", used)
    }

    fn encode_hold(&self, out: &mut Out<'_>) -> fmt::Result {
        let help = "1 while the server accepts no new sessions, else 0";
        out.gauge("keypadd_draining", help, u64::from(self.draining))?;
        let hold = &self.hold;
        let streams: usize = hold.peers.iter().map(|peer| peer.streams).sum();
        let help = "Connections held for a peer that is away";
        out.gauge("keypadd_held_connections", help, streams as u64)?;
        let bytes: usize = hold.peers.iter().map(|peer| peer.kept_bytes).sum();
        let help = "Bytes that held connections keep for retransmission";
        out.gauge("keypadd_held_bytes", help, bytes as u64)?;
        let rows = [("resumed", hold.resumed), ("reset", hold.reset)];
        let rows = rows.map(|(outcome, count)| (labels([("outcome", outcome)]), count));
        out.counters("keypadd_holds", "Held connections, by outcome", rows)
    }

    /// What forwards have carried.
    fn encode_forwards(&self, out: &mut Out<'_>) -> fmt::Result {
        let (mut bytes, mut connections) = (Vec::new(), Vec::new());
        let (mut datagrams, mut dropped) = (Vec::new(), Vec::new());
        for one in &self.forwards {
            let (peer, forward) = (("peer", &*one.peer), ("forward", &*one.forward));
            for (way, count) in [("send", one.sent_bytes), ("receive", one.received_bytes)] {
                bytes.push((labels([peer, forward, ("direction", way)]), count));
            }
            for (end, count) in one.ended {
                connections.push((labels([peer, forward, ("outcome", end.name())]), count));
            }
            if let Some(of) = one.datagrams {
                for (way, count) in [("send", of.sent), ("receive", of.received)] {
                    datagrams.push((labels([peer, forward, ("direction", way)]), count));
                }
                dropped.push((labels([peer, forward]), of.dropped));
            }
        }
        out.counters("keypadd_forward_bytes", "Bytes of forwarded connections", bytes)?;
        out.counters("keypadd_forward_datagrams", "Datagrams of UDP forwards", datagrams)?;
        let help = "Datagrams of UDP forwards that this end dropped";
        out.counters("keypadd_forward_datagrams_dropped", help, dropped)?;
        let help = "Forwarded connections and UDP flows that have ended, by outcome";
        out.counters("keypadd_forward_connections", help, connections)
    }

    fn encode_pool(&self, out: &mut Out<'_>) -> fmt::Result {
        let pool = &self.pool;
        // There is none.
        if pool.budget_bytes == 0 {
            return Ok(());
        }
        let help = "Pool memory locked in RAM";
        out.gauge("keypadd_pool_locked_bytes", help, pool.locked_bytes)?;
        let help = "CPU limit of the filler, as a fraction of one core";
        let limit = f64::from(pool.max_fill_cpu_percent) / 100.0;
        out.gauge("keypadd_fill_cpu_limit_ratio", help, limit)?;
        let help = "CPU time used by the filler";
        out.counter("keypadd_fill_cpu_seconds", help, pool.fill_cpu_seconds)?;
        out.counter("keypadd_fill_bytes", "Precomputed keystream", pool.fill_bytes)?;
        out.counter("keypadd_pads_wasted", "Pads discarded unused", pool.pads_wasted)
    }

    /// Peers that are dialed, connected or not.
    fn encode_links(&self, out: &mut Out<'_>) -> fmt::Result {
        let (mut up, mut retries, mut reconnects) = (Vec::new(), Vec::new(), Vec::new());
        for link in &self.links {
            let one = labels([("peer", &link.peer)]);
            retries.extend(link.retry_unix_seconds.map(|at| (one.clone(), at)));
            up.push((one, u64::from(link.state == LinkState::Connected)));
            for reason in ReconnectReason::ALL.iter().map(|reason| reason.label()) {
                let count = link.reconnects.get(reason).copied().unwrap_or(0);
                reconnects.push((labels([("peer", &link.peer), ("reason", reason)]), count));
            }
        }
        out.gauges("keypadd_link_up", "1 if the dialed peer is connected, else 0", up)?;
        let help = "Unix time of the next attempt; absent while connecting or connected";
        out.gauges("keypadd_link_retry_timestamp_seconds", help, retries)?;
        let help = "Reconnects, by what ended the session before";
        out.counters("keypadd_reconnects", help, reconnects)
    }

    /// The networks of peers.
    fn encode_networks(&self, out: &mut Out<'_>) -> fmt::Result {
        let (mut up, mut packets, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut dropped, mut fragmented, mut too_big) = (Vec::new(), Vec::new(), Vec::new());
        let (mut marked, mut sessions) = (Vec::new(), Vec::new());
        for network in &self.networks {
            let peer = ("peer", &*network.peer);
            for (way, count) in network.packets.both() {
                packets.push((labels([peer, ("direction", way)]), *count));
            }
            for (way, count) in network.bytes.both() {
                bytes.push((labels([peer, ("direction", way)]), *count));
            }
            for (reason, count) in &network.dropped {
                dropped.push((labels([peer, ("reason", reason)]), *count));
            }
            fragmented.push((labels([peer]), network.fragmented_packets));
            too_big.push((labels([peer]), network.too_big_packets));
            marked.push((labels([peer]), network.marked_packets));
            up.push((labels([peer]), u64::from(network.up)));
            let session = network.session.map(|session| session.to_string());
            sessions.extend(session.map(|id| (labels([peer, ("session", &*id)]), 1_u64)));
        }
        out.gauges("keypadd_network_up", "1 if packets of the networks pass, else 0", up)?;
        let help = "Session that sends the packets of networks: the newest of the peer's";
        out.gauges("keypadd_network_session_info", help, sessions)?;
        out.counters("keypadd_network_packets", "Packets of networks", packets)?;
        out.counters("keypadd_network_bytes", "Bytes of packets of networks", bytes)?;
        let help = "Packets of networks dropped at this end, by reason";
        out.counters("keypadd_network_packets_dropped", help, dropped)?;
        let help = "Packets of networks sent in fragments, as they were too big for the path";
        out.counters("keypadd_network_packets_fragmented", help, fragmented)?;
        let help = "Packets of networks whose sender was told that they are too big";
        out.counters("keypadd_network_packets_too_big", help, too_big)?;
        let help = "Packets of networks marked as having met congestion here (ECN)";
        out.counters("keypadd_network_packets_marked", help, marked)
    }

    fn encode_sessions(&self, out: &mut Out<'_>) -> fmt::Result {
        let mut levels: BTreeMap<Labels, LevelReport> = BTreeMap::new();
        let mut forwards: BTreeMap<Labels, u64> = BTreeMap::new();
        let mut suites = BTreeSet::new();
        let (mut phases, mut budgets, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
        let (mut rtts, mut mtus, mut losses) = (Vec::new(), Vec::new(), Vec::new());
        let (mut windows, mut path_bytes, mut ages) = (Vec::new(), Vec::new(), Vec::new());
        let now = unix_seconds(SystemTime::now());
        for report in &self.sessions {
            let status = &report.session;
            let id = status.id.to_string();
            suites.insert(labels([("suite", &status.suite), ("class", &report.class)]));
            for (way, keys) in report.keys.both() {
                for (part, level) in [("head", &keys.head), ("body", &keys.body)] {
                    let labels =
                        labels([("peer", &status.peer), ("direction", way), ("part", part)]);
                    let sum = levels.entry(labels).or_default();
                    sum.bytes += level.bytes;
                    sum.packets += level.packets;
                }
                let one = labels([("peer", &status.peer), ("session", &id), ("direction", way)]);
                phases.push((one.clone(), keys.key_phase));
                // Nothing where there is no end in sight: infinity would spoil every sum.
                seconds.extend(keys.seconds_left.map(|left| (one.clone(), left)));
                budgets.push((one, keys.key_budget_left_ratio));
            }
            let one = labels([("peer", &status.peer), ("session", &id)]);
            rtts.push((one.clone(), status.rtt_seconds));
            mtus.push((one.clone(), u64::from(status.mtu_bytes)));
            windows.push((one.clone(), status.congestion_window_bytes));
            ages.push((one.clone(), now.saturating_sub(status.keys_since_unix_seconds)));
            losses.push((one, status.lost_packets));
            for (way, bytes) in [("send", status.sent_bytes), ("receive", status.received_bytes)] {
                let names = [("peer", &*status.peer), ("session", &id), ("direction", way)];
                path_bytes.push((labels(names), bytes));
            }
            for forward in &status.forwards {
                *forwards.entry(labels([("forward", &forward.forward)])).or_default() +=
                    forward.open;
            }
        }
        let bytes = levels.iter().map(|(labels, level)| (labels.clone(), level.bytes));
        out.gauges("keypadd_pool_bytes", "Keystream ready in the pool", bytes)?;
        let packets = levels.iter().map(|(labels, level)| (labels.clone(), level.packets));
        out.gauges("keypadd_pool_packets", "Packets whose pad is ready", packets)?;
        let help = "Seconds until the pool runs dry at the current rate; absent while idle";
        out.gauges("keypadd_pool_seconds_left", help, seconds)?;
        out.gauges("keypadd_key_phase", "Key phase in use, from 0", phases)?;
        out.gauges("keypadd_key_age_seconds", "Time since the handshake of the keys", ages)?;
        let help = "Fraction of the key's packet limit that is left";
        out.gauges("keypadd_key_budget_left_ratio", help, budgets)?;
        out.gauges("keypadd_path_rtt_seconds", "Smoothed round-trip time", rtts)?;
        out.gauges("keypadd_path_mtu_bytes", "Largest UDP payload the path carries", mtus)?;
        let help = "Bytes that congestion control allows in flight";
        out.gauges("keypadd_path_congestion_window_bytes", help, windows)?;
        out.counters("keypadd_path_lost_packets", "Packets declared lost", losses)?;
        out.counters("keypadd_path_bytes", "UDP payload sent and received", path_bytes)?;
        out.gauges("keypadd_forwards_open", "Open forwarded connections", forwards)?;
        let suites = suites.into_iter().map(|labels| (labels, 1_u64));
        out.gauges("keypadd_suite_info", "Suites of open sessions", suites)
    }
}

/// Writes whole families: a name, a help text and a value for each set of labels.
struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    /// The name goes without `_total`, which the encoder adds.
    fn counters<V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in rows {
            match labels.is_empty() {
                true => family.encode_counter::<Labels, V, u64>(&value, None)?,
                false => {
                    family.encode_family(&labels)?.encode_counter::<Labels, V, u64>(&value, None)?
                }
            }
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        self.counters(name, help, [(labels([]), value)])
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.gauges(name, help, [(labels([]), value)])
    }

    fn histograms<'t>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, &'t Times)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, Times { buckets, sum_seconds }) in rows {
            let count = buckets.iter().map(|(_, count)| count).sum();
            let mut row = family.encode_family(&labels)?;
            row.encode_histogram::<Labels>(*sum_seconds, count, buckets, None)?;
        }
        Ok(())
    }

    fn gauges<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in rows {
            match labels.is_empty() {
                true => family.encode_gauge(&value)?,
                false => family.encode_family(&labels)?.encode_gauge(&value)?,
            }
        }
        Ok(())
    }
}

fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    pairs.map(|(name, value)| (name, value.to_owned())).to_vec()
}
