//! Exports a daemon's counters as Prometheus metrics, under the names in docs/operations.md.
//!
//! Reads them at each scrape; the data path keeps one set of counters. Per-session series carry the session
//! ID as well as the peer, so two sessions of one peer never share a series.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::SystemTime;

use keypadd_pool::{Direction, PartLevel};
use keypadd_provider::{DirectionStatus, Histogram, PacketStage, SAMPLED_ONE_IN};
use keypadd_tunnel::{LinkState, ReconnectReason, unix_seconds};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue};
use prometheus_client::metrics::MetricType;

use crate::daemon::status_builder::{COVERAGES, DIRECTIONS, StatusBuilder, class_name};
use crate::status::sources::Dialing;

type Labels = Vec<(&'static str, String)>;

impl Collector for StatusBuilder {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut out = Out(encoder);
        self.encode_packets(&mut out)?;
        self.encode_transport(&mut out)?;
        self.encode_limits(&mut out)?;
        self.encode_forwards(&mut out)?;
        self.encode_hold(&mut out)?;
        self.encode_pool(&mut out)?;
        self.encode_links(&mut out)?;
        self.encode_sessions(&mut out)
    }
}

impl StatusBuilder {
    fn encode_packets(&self, out: &mut Out<'_>) -> fmt::Result {
        let meters = &self.meters;
        out.counters(
            "keypadd_keystream_bytes",
            "Keystream used, by source",
            [("pool", meters.keystream_pool_bytes()), ("inline", meters.keystream_inline_bytes())]
                .map(|(source, bytes)| (labels([("source", source)]), bytes)),
        )?;
        let pads = || {
            DIRECTIONS.into_iter().flat_map(|(direction, way)| {
                COVERAGES.map(|(pad, label)| {
                    (direction, pad, labels([("direction", way), ("pad", label)]))
                })
            })
        };
        out.counters(
            "keypadd_packets",
            "Packets sealed or opened, by how much of the pad the pool held",
            pads().map(|(direction, pad, labels)| (labels, meters.packets(direction, pad))),
        )?;
        for (name, verb, direction) in [
            ("keypadd_seal_seconds", "sealing", Direction::Send),
            ("keypadd_open_seconds", "opening", Direction::Receive),
        ] {
            let help = format!("Time of {verb} a packet, sampled one in {SAMPLED_ONE_IN}");
            let rows = COVERAGES
                .map(|(pad, label)| (labels([("pad", label)]), meters.seconds(direction, pad)));
            out.histograms(name, &help, rows)?;
        }
        let help = format!(
            "Time of a packet by stage, sampled one in {SAMPLED_ONE_IN}; \
             pad and xor are one stage if the pad is made inline"
        );
        let stages = PacketStage::ALL.map(|stage| (stage.name(), meters.stage_seconds(stage)));
        let stages = stages.into_iter().chain([("udp_send", &*self.send_seconds)]);
        let rows = stages.map(|(stage, seconds)| (labels([("stage", stage)]), seconds));
        out.histograms("keypadd_packet_stage_seconds", &help, rows)?;
        for (name, help, value) in [
            (
                "keypadd_pool_exhaustions",
                "Times that a key's pool ran dry after it had served packets",
                meters.exhaustions(),
            ),
            ("keypadd_open_failures", "Packets whose tag did not verify", meters.open_failures()),
            ("keypadd_replays", "Replayed or late packets", meters.replays()),
            (
                "keypadd_pad_reuse",
                "Refused attempts to use a packet number twice; anything but 0 is a bug",
                meters.pad_reuse(),
            ),
        ] {
            out.counters(name, help, [(labels([]), value)])?;
        }
        Ok(())
    }

    fn encode_transport(&self, out: &mut Out<'_>) -> fmt::Result {
        let (polled, dropped) = self.sources.loop_counts();
        out.counters(
            "keypadd_transport_spin_seconds",
            "CPU time that event loops spent on busy polling",
            [(labels([]), polled.as_secs_f64())],
        )?;
        out.counters(
            "keypadd_transport_datagrams_dropped",
            "Datagrams dropped because their connections took more than their shares of a loop",
            [(labels([]), dropped)],
        )
    }

    fn encode_limits(&self, out: &mut Out<'_>) -> fmt::Result {
        let counts = self.limits.counts();
        let help = "Descriptors that forwards use, and their limit";
        let rows = [("used", counts.descriptors), ("max", counts.descriptors_max)];
        let rows = rows.map(|(of, count)| (labels([("of", of)]), count as u64));
        out.gauges("keypadd_descriptors", help, rows)?;
        let help = "Refusals and delays, by limit";
        let rows = [
            ("descriptors", counts.descriptors_refused),
            ("sessions", counts.sessions_refused),
            ("control_frames", counts.frames_delayed),
            ("log_lines", counts.log_lines_suppressed),
        ];
        let rows = rows.map(|(limit, count)| (labels([("limit", limit)]), count));
        out.counters("keypadd_refused", help, rows)
    }

    fn encode_hold(&self, out: &mut Out<'_>) -> fmt::Result {
        let held = self.held.peers();
        let row = |count: usize| [(labels([]), count as u64)];
        let streams = row(held.iter().map(|peer| peer.streams).sum());
        out.gauges(
            "keypadd_held_connections",
            "Connections held for a peer that is away",
            streams,
        )?;
        let help = "Bytes that held connections keep for retransmission";
        out.gauges("keypadd_held_bytes", help, row(held.iter().map(|peer| peer.kept_bytes).sum()))?;
        let counts = self.held.counts();
        let rows = [("resumed", counts.streams_resumed), ("reset", counts.streams_reset)];
        let rows = rows.map(|(outcome, count)| (labels([("outcome", outcome)]), count));
        out.counters("keypadd_holds", "Held connections, by outcome", rows)
    }

    /// What forwards have carried.
    fn encode_forwards(&self, out: &mut Out<'_>) -> fmt::Result {
        let (mut bytes, mut connections) = (Vec::new(), Vec::new());
        let (mut datagrams, mut dropped) = (Vec::new(), Vec::new());
        for one in self.limits.forwards() {
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
        let Some(pool) = self.pooling.pool() else { return Ok(()) };
        let pool = pool.snapshot();
        out.gauges(
            "keypadd_pool_locked_bytes",
            "Pool memory locked in RAM",
            [(labels([]), pool.locked_bytes)],
        )?;
        out.gauges(
            "keypadd_fill_cpu_limit_ratio",
            "CPU limit of the filler, as a fraction of one core",
            [(labels([]), f64::from(pool.max_fill_cpu_percent) / 100.0)],
        )?;
        out.counters(
            "keypadd_fill_cpu_seconds",
            "CPU time used by the filler",
            [(labels([]), pool.fill_cpu.as_secs_f64())],
        )?;
        out.counters(
            "keypadd_fill_bytes",
            "Precomputed keystream",
            [(labels([]), pool.fill_bytes_total)],
        )?;
        out.counters(
            "keypadd_pads_wasted",
            "Pads discarded unused",
            [(labels([]), pool.pads_wasted_total)],
        )
    }

    /// Peers that are dialed, connected or not.
    fn encode_links(&self, out: &mut Out<'_>) -> fmt::Result {
        let (mut up, mut retries, mut reconnects) = (Vec::new(), Vec::new(), Vec::new());
        for Dialing { peer, link, .. } in self.sources.dialed() {
            let link = link.status();
            let one = labels([("peer", &peer)]);
            retries.extend(link.retry_unix_seconds.map(|at| (one.clone(), at)));
            up.push((one, u64::from(link.state == LinkState::Connected)));
            for reason in ReconnectReason::ALL {
                let count = link.reconnects.get(reason).copied().unwrap_or(0);
                reconnects.push((labels([("peer", &peer), ("reason", reason.label())]), count));
            }
        }
        out.gauges("keypadd_link_up", "1 if the dialed peer is connected, else 0", up)?;
        let help = "Unix time of the next attempt; absent while connecting or connected";
        out.gauges("keypadd_link_retry_timestamp_seconds", help, retries)?;
        let help = "Reconnects, by what ended the session before";
        out.counters("keypadd_reconnects", help, reconnects)
    }

    fn encode_sessions(&self, out: &mut Out<'_>) -> fmt::Result {
        let mut levels: BTreeMap<Labels, PartLevel> = BTreeMap::new();
        let mut forwards: BTreeMap<Labels, u64> = BTreeMap::new();
        let mut suites = BTreeSet::new();
        let (mut phases, mut budgets, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
        let (mut rtts, mut mtus, mut losses) = (Vec::new(), Vec::new(), Vec::new());
        let (mut windows, mut path_bytes, mut ages) = (Vec::new(), Vec::new(), Vec::new());
        let now = unix_seconds(SystemTime::now());
        for live in self.sources.live() {
            let status = live.status();
            let id = status.id.to_string();
            let suite = live.handshake().suite;
            suites.insert(labels([("suite", suite.name()), ("class", class_name(suite))]));
            for (direction, way) in DIRECTIONS {
                let keys = DirectionStatus::of_all(live.keys(), direction);
                for (part, level) in [("head", keys.head), ("body", keys.body)] {
                    let labels =
                        labels([("peer", &status.peer), ("direction", way), ("part", part)]);
                    let sum = levels.entry(labels).or_default();
                    sum.bytes += level.bytes;
                    sum.packets += level.packets;
                }
                let one = labels([("peer", &status.peer), ("session", &id), ("direction", way)]);
                phases.push((one.clone(), keys.key_phase));
                let rate = self.rates.of(status.id, direction);
                // Nothing where there is no end in sight: infinity would spoil every sum.
                let left = rate.and_then(|rate| rate.seconds_left(keys.head, keys.body));
                seconds.extend(left.map(|left| (one.clone(), left)));
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
            for forward in status.forwards {
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
        let help = "Bytes that congestion control lets be in flight";
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

    fn histograms<'h>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, &'h Histogram)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, histogram) in rows {
            let buckets = histogram.buckets();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let sum = histogram.sum_seconds();
            let mut row = family.encode_family(&labels)?;
            row.encode_histogram::<Labels>(sum, count, &buckets, None)?;
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
