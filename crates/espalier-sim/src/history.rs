//! What was done to a store, and which states of it a power cut may leave.

use crate::failure::ensure;
use crate::{Change, Model, Outcome, VolumeStep};
use std::ops::RangeInclusive;

/// One thing that changes what a store denotes, atomically.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Batch(Vec<Change>),
    Volume(u8),
    Volumes(VolumeStep),
}

impl Event {
    fn apply(&self, model: &mut Model) {
        match self {
            Self::Batch(changes) => model.apply(changes),
            Self::Volumes(step) => drop(model.apply_volume(step)),
            Self::Volume(indexes) => model.add_slots(usize::from(*indexes)),
        }
    }
}

/// Events in order, with what the device had seen when each began and when each became durable.
/// Time is counted in changes of the device.
#[derive(Debug, Clone)]
pub(crate) struct History {
    base: Model,
    events: Vec<Event>,
    /// For each event, the time when it began.
    began: Vec<u64>,
    /// The digest after so many events.
    digests: Vec<u128>,
    /// When how many events had been acknowledged as durable.
    acknowledged: Vec<(u64, usize)>,
}

impl History {
    /// Begins with a durable state.
    pub(crate) fn new(base: Model, now: u64) -> Self {
        let digests = vec![base.digest()];
        Self { base, events: Vec::new(), began: Vec::new(), digests, acknowledged: vec![(now, 0)] }
    }

    /// Number of events.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// An event took place that began at `began`, and `model` is what it left.
    pub(crate) fn push(&mut self, event: Event, began: u64, model: &Model) {
        self.events.push(event);
        self.began.push(began);
        self.digests.push(model.digest());
    }

    /// All events so far are durable at time `now`.
    pub(crate) fn acknowledge(&mut self, now: u64) {
        self.acknowledged.push((now, self.events.len()));
    }

    /// The numbers of events that a power cut at time `now` may leave, if what began before `reach`
    /// may have changed something.
    pub(crate) fn possible(&self, now: u64, reach: u64) -> RangeInclusive<usize> {
        let acknowledged = self.acknowledged.iter().take_while(|(at, _)| *at <= now).last();
        // What began at the very time has changed nothing on the device yet.
        let begun = self.began.iter().take_while(|at| **at < reach).count();
        acknowledged.map_or(0, |(_, events)| *events)..=begun
    }

    /// The state after so many events.
    pub(crate) fn model(&self, events: usize) -> Model {
        let mut model = self.base.clone();
        self.events[..events].iter().for_each(|event| event.apply(&mut model));
        model
    }

    /// Calls `visit` for every key that is there after so many events.
    pub(crate) fn touched(&self, events: usize, mut visit: impl FnMut(usize, &bytes::Bytes)) {
        let model = self.model(events);
        for slot in 0..model.slots() {
            model.slot(slot).keys().for_each(|key| visit(slot, key));
        }
    }

    /// Which of the `possible` numbers of events leaves `found`.
    pub(crate) fn locate(&self, found: &Model, possible: RangeInclusive<usize>) -> Outcome<usize> {
        let is = |events: &usize| self.digests[*events] == found.digest();
        if let Some(events) = possible.clone().rev().find(is) {
            return Ok(events);
        }
        if let Some(events) = (0..self.digests.len()).rev().find(is) {
            ensure!(false, "the state after {events} events, which is not in {possible:?}");
        }
        let nearest = |events: usize| self.model(events).difference(found).unwrap_or_default();
        ensure!(
            false,
            "no prefix of the events, {possible:?} would be right; expected and found after {}: {}; after {}: {}",
            possible.start(),
            nearest(*possible.start()),
            possible.end(),
            nearest(*possible.end())
        );
        Ok(0)
    }

    /// Forgets all but the first `events` events: the others were lost for good.
    pub(crate) fn truncate(&mut self, events: usize) {
        self.events.truncate(events);
        self.began.truncate(events);
        self.digests.truncate(events + 1);
        self.acknowledged.retain(|(_, acknowledged)| *acknowledged <= events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn bounds_what_a_power_cut_may_leave() {
        let mut model = Model::new();
        model.add_slots(1);
        let mut history = History::new(model.clone(), 10);
        for began in [10, 12, 12, 15] {
            let value = Bytes::from(vec![began as u8, history.len() as u8]);
            let changes = vec![Change::Insert(0, Bytes::from_static(b"k"), value)];
            model.apply(&changes);
            history.push(Event::Batch(changes), began, &model);
            if history.len() == 2 {
                history.acknowledge(14);
            }
        }
        let possible: Vec<_> = [10, 11, 13, 14, 15, 16].map(|now| history.possible(now, now)).into();
        assert_eq!(possible, [0..=0, 0..=1, 0..=3, 2..=3, 2..=3, 2..=4]);
        assert_eq!(history.locate(&history.model(3), 2..=4).unwrap(), 3);
        assert!(history.locate(&history.model(1), 2..=4).unwrap_err().to_string().contains("after 1 events"));
        history.truncate(3);
        assert!(history.locate(&model, 2..=3).unwrap_err().to_string().contains("no prefix"));
    }
}
