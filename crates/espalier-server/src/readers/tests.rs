use super::*;

#[test]
fn walks_are_told_from_choices() {
    let walk: Vec<usize> = (0..256).collect();
    let shuffled: Vec<usize> = (0..256).map(|n| n * 97 % 256).collect();
    let backward: Vec<usize> = (0..256).rev().collect();
    // Paths as text sorts them: a directory's files between its subdirectories.
    let by_text: Vec<usize> = (0..256).map(|n| if n % 20 == 0 { n / 2 } else { n }).collect();
    assert!(is_walk(&walk) && is_walk(&by_text) && is_walk(&[0]) && is_walk(&[]));
    assert!(!is_walk(&shuffled) && !is_walk(&backward));
}
