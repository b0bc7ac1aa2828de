use super::*;

#[test]
fn buckets_follow_each_other_and_every_time_has_its_own() {
    let mut end = 0;
    for bucket in 0..BUCKETS {
        let (first, next) = bucket_bounds(bucket);
        assert_eq!(first, end, "bucket {bucket}");
        assert_eq!((bucket_of(first), bucket_of(next - 1)), (bucket, bucket));
        assert!(bucket == 0 || (next - first) * 4 <= first || bucket == BUCKETS - 1);
        end = next;
    }
    assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
}

#[test]
fn quantiles_are_near_the_times() {
    let shared = SharedHistogram::default();
    (1..=1000).for_each(|micros| shared.count(Duration::from_micros(micros)));
    let histogram = shared.snapshot();
    assert_eq!((histogram.count(), histogram.sum_nanos()), (1000, 500_500_000));
    for (share, micros) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0), (0.0, 1.0)] {
        let found = histogram.quantile(share).unwrap().as_secs_f64() * 1e6;
        assert!((found / micros - 1.0).abs() <= 0.125, "{share}: {found} for {micros}");
    }
    assert_eq!(Histogram::default().quantile(0.5), None);
    // Bounds of whole powers of two lie between buckets.
    assert_eq!(histogram.count_below(1 << 18), 262);
}

#[test]
fn differences_and_sums_are_of_each_bucket() {
    let shared = SharedHistogram::default();
    shared.count(Duration::from_micros(3));
    let before = shared.snapshot();
    shared.count_alone(Duration::from_micros(1500), 2);
    let after = shared.snapshot();
    let between = after.since(&before);
    assert_eq!((between.count(), between.sum_nanos()), (2, 3_000_000));
    let mut sum = before.clone();
    sum.add(&between);
    assert_eq!(sum, after);
    assert_eq!(Histogram::from_sparse(after.sparse(), after.sum_nanos()), after);
    assert_eq!(Histogram::from_sparse([(999, 2)], 0).count(), 2);
}
