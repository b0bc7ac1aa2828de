//! `espalier stat`: a line of figures, once or again and again, for scripts and for people.

use super::{Figures, MAX_INTERVAL, Period, Watched};
use crate::args::Stat;
use crate::ui::{self, say};
use anyhow::{Result, ensure};
use espalier_bench::compare::short_time;
use std::time::{Duration, Instant};

/// Lines between two headings.
const LINES_PER_HEADING: u64 = 20;

/// Runs the command. The first line is of all the time since the server began, as vmstat(8) has it
/// of the machine.
pub(crate) fn run(args: &Stat) -> Result<()> {
    let watched = Watched::find(&args.dir)?;
    let count = args.count.unwrap_or(if args.interval.is_some() { u64::MAX } else { 1 });
    let interval = Duration::try_from_secs_f64(args.interval.unwrap_or(1.0));
    let interval =
        interval.ok().filter(|interval| (Duration::from_millis(10)..=MAX_INTERVAL).contains(interval));
    ensure!(interval.is_some(), "--interval is a number of seconds from 0.01 to 86400");
    let interval = interval.unwrap_or_default();
    let mut before: Option<Figures> = None;
    let begun = Instant::now();
    for line in 0..count {
        if line > 0 {
            let due = begun + interval.saturating_mul(line.try_into().unwrap_or(u32::MAX));
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let now = watched.figures(false)?;
        let period = Period::between(before.as_ref(), &now);
        if args.json {
            say!("{}", period.json());
        } else {
            if line % LINES_PER_HEADING == 0 {
                say!("{HEADING}");
            }
            say!("{}", row(&period));
        }
        if !ui::is_heard() {
            break;
        }
        before = Some(now);
    }
    Ok(())
}

const HEADING: &str = "\
------ requests ------ --- time at work --- --- MiB/s --- -- found -- ---- memory ---- -- log -- ------- device ------- -- space --
   per s   err queue      p50       p99      read   write  data names   cache   dirty  full  ckpt   read   write  queue   free  used";

/// A line under the heading.
fn row(period: &Period) -> String {
    let [requests, errors, ..] = period.totals();
    let [read, written] = period.data();
    let work = period.work();
    let time = |share| work.quantile(share).map_or_else(|| "-".into(), short_time);
    let after = &period.after;
    let log = percent(after.log.used_bytes, after.log.capacity_bytes);
    let space = &after.space;
    format!(
        "{:>8.0} {:>5.0} {:>5} {:>8} {:>9} {:>9} {:>7} {:>5} {:>5} {:>7} {:>7} {:>5} {:>5} {:>6} {:>7} {:>6.1} {:>6} {:>5}",
        period.rate(requests),
        period.rate(errors),
        after.kernel_requests.map_or_else(|| "-".into(), |count| count.to_string()),
        time(0.5),
        time(0.99),
        mib(period.rate(read)),
        mib(period.rate(written)),
        percent(period.pieces[0], period.pieces[1]),
        percent(period.names[0], period.names[1]),
        short_size(after.memory.cache_bytes as f64),
        short_size((after.memory.dirty_bytes + after.memory.memtable_bytes) as f64),
        log,
        period.checkpoints,
        mib(period.rate(period.device.read_bytes)),
        mib(period.rate(period.device.written_bytes)),
        period.device_queue(),
        short_size(space.free_bytes as f64),
        percent(space.total_bytes - space.free_bytes.min(space.total_bytes), space.total_bytes),
    )
}

fn mib(bytes: f64) -> String {
    format!("{:.1}", bytes / f64::from(1 << 20))
}

/// A share as `97%`; `-` of nothing.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.0}%", part as f64 * 100.0 / whole as f64) }
}

/// A size in at most five characters, in powers of 1024.
pub(super) fn short_size(bytes: f64) -> String {
    let units = ["", "K", "M", "G", "T", "P", "E"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit > 0 && value < 9.95 {
        format!("{value:.1}{}", units[unit])
    } else {
        format!("{value:.0}{}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_short() {
        let times: Vec<String> = [300, 9_949, 12_300, 950_000, 1_500_000, 2_000_000_000, 100_000_000_000]
            .map(|nanos| short_time(Duration::from_nanos(nanos)))
            .into();
        assert_eq!(times, ["0.3us", "9.9us", "12us", "950us", "1.5ms", "2.0s", "100s"]);
        let sizes: Vec<String> = [0.0, 999.0, 1000.0, 1536.0, 1e6, 5e9, 1e18].map(short_size).into();
        assert_eq!(sizes, ["0", "999", "1.0K", "1.5K", "977K", "4.7G", "888P"]);
        assert_eq!((percent(1, 3), percent(0, 0)), ("33%".into(), "-".into()));
    }
}
