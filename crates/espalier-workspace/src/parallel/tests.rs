use super::map;
use crate::error::Error;

#[test]
fn answers_come_in_the_order_of_the_items() {
    let items: Vec<u32> = (0..1000).collect();
    let answers = map(&items, |item| Ok(item * 2)).expect("no item fails");
    assert_eq!(answers, items.iter().map(|item| item * 2).collect::<Vec<_>>());
    assert!(map(&[], |item: &u32| Ok(*item)).expect("nothing is asked").is_empty());
}

#[test]
fn an_error_is_the_answer() {
    let items: Vec<u32> = (0..1000).collect();
    let fails = |item: &u32| match item % 100 {
        99 => Err(Error::Name(item.to_string())),
        _ => Ok(*item),
    };
    assert!(matches!(map(&items, fails), Err(Error::Name(_))));
}
