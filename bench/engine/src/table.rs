//! The tables: one for each workload and value size, and one of ratios to the best of the others.

use crate::measure::Figures;

/// The contender that the ratios are about.
const OURS: &str = "espalier";

/// Prints a table of one workload.
pub(crate) fn print_workload<'a>(name: &str, figures: impl Iterator<Item = &'a Figures>) {
    let figures: Vec<&Figures> = figures.collect();
    let Some(first) = figures.first() else { return };
    println!(
        "\n{name}, {} values of {} bytes, {} operations",
        first.values, first.value_bytes, first.operations
    );
    println!(
        "\n| | per s | p50 ms | p99 ms | worst ms | written B each | read B each | CPU us each | \
         close s | resident MiB |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for f in figures {
        println!(
            "| {} | {:.0} | {:.3} | {:.3} | {:.1} | {:.0} | {:.0} | {:.2} | {:.1} | {} |",
            f.contender,
            f.rate(),
            f.p50_ms,
            f.p99_ms,
            f.worst_ms,
            f.each(f.bytes_written as f64),
            f.each(f.bytes_read as f64),
            f.each(f.cpu_seconds * 1e6),
            f.close_seconds,
            f.peak_resident >> 20,
        );
    }
}

/// Prints, for each workload and value size, what the first contender reaches of the best other.
pub(crate) fn print_ratios(all: &[Figures]) {
    let ours = || all.iter().filter(|f| f.contender == OURS);
    if ours().next().is_none() {
        return;
    }
    println!(
        "\n| | value bytes | rate by the best of the others | written by RocksDB's | read by the least |"
    );
    println!("|---|---:|---:|---:|---:|");
    for f in ours() {
        let others = || {
            let same = |o: &&Figures| o.workload == f.workload && o.value_bytes == f.value_bytes;
            all.iter().filter(same).filter(|o| o.contender != OURS)
        };
        let best = others().max_by(|a, b| a.rate().total_cmp(&b.rate()));
        let rocksdb = others().find(|o| o.contender == "rocksdb");
        let least = others().map(|o| o.bytes_read).min();
        println!(
            "| {} | {} | {} | {} | {} |",
            f.workload,
            f.value_bytes,
            best.map_or(String::new(), |o| format!("{:.2} ({})", f.rate() / o.rate(), o.contender)),
            rocksdb.map_or(String::new(), |o| ratio(f.bytes_written, o.bytes_written)),
            least.map_or(String::new(), |least| ratio(f.bytes_read, least)),
        );
    }
}

fn ratio(ours: u64, others: u64) -> String {
    if others == 0 { String::new() } else { format!("{:.2}", ours as f64 / others as f64) }
}
