use crate::test_support;

#[test]
fn a_bound_that_could_not_be_stored_is_not_taken_for_stored() {
    let (store, _, fs) = test_support::empty();
    let record = fs.state_record();
    let stored = || record.lengths.lock().stored();
    record.note_key_length(5000).unwrap();
    assert_eq!(stored(), Some(8192));
    store.close().unwrap();
    assert!(record.note_key_length(10_000).is_err());
    assert_eq!(stored(), Some(8192));
    // Of the same length or less: it must not pass because of the one before.
    assert!(record.note_key_length(10_000).is_err());
    record.note_key_length(8000).unwrap();
}
