use super::start_of;

#[test]
fn the_start_of_a_process_is_known_while_it_runs() {
    assert!(start_of(std::process::id() as i32).is_some());
    assert_eq!(start_of(i32::MAX), None);
}
