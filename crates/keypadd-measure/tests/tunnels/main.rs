//! Tests measurements against tunnels with known answers: an added delay; pools that are full, dry
//! or off.

#![allow(clippy::unwrap_used)]

mod delay;
mod itself;
mod pads;

use keypadd_measure::results::{Cell, Section};
use keypadd_measure::{Arm, PathSettings, Plan, Runs, Workload, take_turns};
use keypadd_provider::KeyExchange;
use keypadd_traffic::Link;
use tokio::sync::Mutex;

/// Held while a tunnel is measured: fillers run only on idle CPU, of which another test leaves
/// none.
static MACHINE: Mutex<()> = Mutex::const_new(());

fn settings(link: Link) -> PathSettings {
    PathSettings {
        pool_budget_bytes: 2 << 20,
        kex: KeyExchange::X25519.into(),
        link,
        ..PathSettings::default()
    }
}

async fn measure<W: Workload>(
    workload: &W,
    arm: Arm,
    link: Link,
    rounds: u32,
) -> Runs<W::Measured> {
    let _alone = MACHINE.lock().await;
    let plan = Plan { rounds, time: None, seed: 1, tell: &|_| () };
    let (settings, never) = (settings(link), std::future::pending());
    let runs = take_turns(workload, &[arm], &settings, plan, |_| (), never).await;
    assert_eq!(runs.ended_by, None);
    runs
}

/// One cell of a section's table.
fn cell(section: &Section, table: &str, row: &str, column: &str) -> Cell {
    let table = section.tables.iter().find(|it| it.id == table).unwrap();
    let nth = table.columns.iter().position(|it| it.name == column).unwrap();
    table.rows.iter().find(|it| it.label == row).unwrap().cells[nth].clone()
}
