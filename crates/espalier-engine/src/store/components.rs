//! Components of an open store, and how they are put together: from the bottom up, each with what
//! is below it that it needs.

use super::opening::Opening;
use super::write_path::WritePath;
use crate::Result;
use crate::checkpoint::cut::CutTaker;
use crate::checkpoint::state::CheckpointState;
use crate::checkpoint::volume_changes::VolumeChanges;
use crate::checkpoint::{CheckpointProgress, Checkpointer};
use crate::commit::admission::Admission;
use crate::commit::applier::Applier;
use crate::commit::apply_queue::ApplyQueue;
use crate::commit::back_pressure::BackPressure;
use crate::commit::batch_checks::BatchChecks;
use crate::commit::order::CommitOrder;
use crate::commit::pipeline::{CommitPipeline, CommitProgress};
use crate::device::GuardedDevice;
use crate::index::absorb::Absorber;
use crate::index::accounting::SpaceAccounting;
use crate::index::backlog::FlushBacklog;
use crate::index::catalog::VolumeCatalog;
use crate::index::deleted_ranges::DeletedRanges;
use crate::index::memory::UnwrittenMemory;
use crate::index::table::IndexTable;
use crate::log::Log;
use crate::maintenance::flusher::Flusher;
use crate::maintenance::garbage_collection::GarbageCollector;
use crate::maintenance::low_space::LowSpaceReclaim;
use crate::maintenance::scheduler::Scheduler;
use crate::maintenance::sparse_values::SparseValues;
use crate::model::options::OpenOptions;
use crate::read::context::ReadContext;
use crate::read::pins::PinTable;
use crate::readahead::Readahead;
use crate::signal::WorkSignal;
use crate::space::{Space, VolumeTable};
use crate::tree::Trees;
use espalier_storage::Environment;
use std::sync::Arc;

/// The components that the store's API calls.
pub(crate) struct Components {
    pub(crate) options: OpenOptions,
    pub(crate) device: Arc<GuardedDevice>,
    pub(crate) space: Arc<Space>,
    pub(crate) trees: Arc<Trees>,
    pub(crate) log: Arc<Log>,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) accounting: Arc<SpaceAccounting>,
    pub(crate) memory: Arc<UnwrittenMemory>,
    pub(crate) read: Arc<ReadContext>,
    pub(crate) readahead: Arc<Readahead>,
    pub(crate) write: WritePath,
}

/// What recovery or repair has found.
pub(super) struct Recovered {
    pub(super) opening: Opening,
    pub(super) log: Log,
    pub(super) indexes: Arc<IndexTable>,
    pub(super) volumes: VolumeTable,
    pub(super) deleted: Arc<DeletedRanges>,
    pub(super) order: CommitOrder,
    pub(super) checkpoint: CheckpointState,
}

/// What is put together first, and what the other components share.
struct StoreBase {
    env: Arc<dyn Environment>,
    device: Arc<GuardedDevice>,
    options: OpenOptions,
    space: Arc<Space>,
    trees: Arc<Trees>,
    log: Arc<Log>,
    signal: Arc<WorkSignal>,
    index: IndexLayer,
    read: Arc<ReadContext>,
}

/// The components of the index layer.
struct IndexLayer {
    table: Arc<IndexTable>,
    catalog: Arc<VolumeCatalog>,
    accounting: Arc<SpaceAccounting>,
    backlog: Arc<FlushBacklog>,
    memory: Arc<UnwrittenMemory>,
    absorber: Arc<Absorber>,
    deleted: Arc<DeletedRanges>,
}

impl Components {
    /// Puts the components of a store together, and reserves space for what was replayed.
    ///
    /// # Errors
    /// Of the checkpoint that is made where there is not enough space.
    pub(super) fn open(recovered: Recovered) -> Result<Self> {
        let components = Self::assemble(recovered);
        components.accounting.refresh();
        if !components.options.read_only {
            components.write.admission.admit_replayed()?;
        }
        Ok(components)
    }

    fn assemble(recovered: Recovered) -> Self {
        let Recovered { opening, log, indexes, volumes, deleted, order, checkpoint } = recovered;
        let Opening { env, device, options, space, trees, .. } = opening;
        let (log, signal) = (Arc::new(log), Arc::<WorkSignal>::default());
        let catalog = Arc::new(VolumeCatalog::new(space.clone(), indexes.clone(), volumes));
        let accounting = SpaceAccounting::new(space.clone(), trees.clone(), indexes.clone(), options.tuning);
        let accounting = Arc::new(accounting);
        let backlog =
            FlushBacklog::new(space.clone(), accounting.clone(), signal.clone(), options.tuning.edge);
        let backlog = Arc::new(backlog);
        let absorber = Absorber::new(
            space.clone(),
            trees.clone(),
            accounting.clone(),
            backlog.clone(),
            signal.clone(),
            log.apart.clone(),
        );
        let index = IndexLayer {
            table: indexes.clone(),
            catalog: catalog.clone(),
            accounting,
            backlog,
            memory: Arc::new(UnwrittenMemory::new(trees.clone())),
            absorber: Arc::new(absorber),
            deleted,
        };
        let pins = Arc::<PinTable>::default();
        let read = Arc::new(ReadContext { trees: trees.clone(), indexes, catalog, pins });
        StoreBase { env, device, options, space, trees, log, signal, index, read }.assemble(order, checkpoint)
    }
}

impl StoreBase {
    fn assemble(self, order: CommitOrder, checkpoint: CheckpointState) -> Components {
        let pipeline = Arc::new(self.pipeline(order));
        let back_pressure = Arc::new(self.back_pressure());
        let checkpointer = Arc::new(self.checkpointer(&pipeline, checkpoint));
        let flusher = Arc::new(self.flusher(&pipeline, &checkpointer));
        let sparse = Arc::new(SparseValues {
            space: self.space.clone(),
            trees: self.trees.clone(),
            accounting: self.index.accounting.clone(),
            pipeline: pipeline.clone(),
            search: Default::default(),
        });
        let collector = Arc::new(self.collector(&flusher, &sparse));
        let scheduler = Arc::new(Scheduler {
            env: self.env.clone(),
            space: self.space.clone(),
            log: self.log.clone(),
            indexes: self.index.table.clone(),
            memory: self.index.memory.clone(),
            absorber: self.index.absorber.clone(),
            pipeline: pipeline.clone(),
            back_pressure: back_pressure.clone(),
            checkpointer: checkpointer.clone(),
            flusher: flusher.clone(),
            collector,
            unwritten_limit: self.options.memory / 4,
        });
        let write = WritePath {
            checks: self.batch_checks(),
            back_pressure,
            admission: self.admission(&pipeline),
            reclaim: self.reclaim(&flusher, &sparse),
            pipeline,
            checkpointer,
            scheduler,
        };
        let readahead = Arc::new(Readahead::new(self.read.clone(), self.space.clone(), self.signal.clone()));
        let IndexLayer { table: indexes, accounting, memory, .. } = self.index;
        let Self { device, options, space, trees, log, read, .. } = self;
        Components { options, device, space, trees, log, indexes, accounting, memory, read, readahead, write }
    }

    fn pipeline(&self, order: CommitOrder) -> CommitPipeline {
        let tuning = &self.options.tuning;
        CommitPipeline {
            device: self.device.clone(),
            log: self.log.clone(),
            indexes: self.index.table.clone(),
            accounting: self.index.accounting.clone(),
            absorber: self.index.absorber.clone(),
            signal: self.signal.clone(),
            applier: Applier {
                device: self.device.clone(),
                log: self.log.clone(),
                indexes: self.index.table.clone(),
                pins: self.read.pins.clone(),
                deleted: self.index.deleted.clone(),
                accounting: self.index.accounting.clone(),
                signal: self.signal.clone(),
                merge: self.options.merge.clone(),
                memtable_bytes: tuning.memtable,
            },
            queue: ApplyQueue::behind(order.last_msn, tuning.accepted, self.options.memory),
            progress: CommitProgress::new(order),
            coalesced_operations: tuning.joined,
        }
    }

    fn batch_checks(&self) -> BatchChecks {
        BatchChecks {
            trees: self.trees.clone(),
            log: self.log.clone(),
            indexes: self.index.table.clone(),
            catalog: self.index.catalog.clone(),
        }
    }

    fn admission(&self, pipeline: &Arc<CommitPipeline>) -> Admission {
        Admission {
            pipeline: pipeline.clone(),
            accounting: self.index.accounting.clone(),
            indexes: self.index.table.clone(),
            trees: self.trees.clone(),
            space: self.space.clone(),
            tuning: self.options.tuning,
        }
    }

    fn back_pressure(&self) -> BackPressure {
        BackPressure {
            env: self.env.clone(),
            device: self.device.clone(),
            log: self.log.clone(),
            trees: self.trees.clone(),
            indexes: self.index.table.clone(),
            memory: self.index.memory.clone(),
            backlog: self.index.backlog.clone(),
            signal: self.signal.clone(),
            budget: self.options.memory,
            stalls: Default::default(),
        }
    }

    fn checkpointer(&self, pipeline: &Arc<CommitPipeline>, state: CheckpointState) -> Checkpointer {
        Checkpointer {
            env: self.env.clone(),
            device: self.device.clone(),
            space: self.space.clone(),
            trees: self.trees.clone(),
            log: self.log.clone(),
            pipeline: pipeline.clone(),
            indexes: self.index.table.clone(),
            accounting: self.index.accounting.clone(),
            memory: self.index.memory.clone(),
            signal: self.signal.clone(),
            cutter: CutTaker {
                pipeline: pipeline.clone(),
                log: self.log.clone(),
                space: self.space.clone(),
                trees: self.trees.clone(),
                accounting: self.index.accounting.clone(),
                absorber: self.index.absorber.clone(),
                deleted: self.index.deleted.clone(),
                volumes: VolumeChanges {
                    space: self.space.clone(),
                    indexes: self.index.table.clone(),
                    catalog: self.index.catalog.clone(),
                },
            },
            progress: CheckpointProgress::new(state),
        }
    }

    fn flusher(&self, pipeline: &Arc<CommitPipeline>, checkpointer: &Arc<Checkpointer>) -> Flusher {
        Flusher {
            space: self.space.clone(),
            trees: self.trees.clone(),
            indexes: self.index.table.clone(),
            accounting: self.index.accounting.clone(),
            backlog: self.index.backlog.clone(),
            memory: self.index.memory.clone(),
            pipeline: pipeline.clone(),
            checkpointer: checkpointer.clone(),
            dense_edge_bytes: (self.options.tuning.memtable / 2).max(2 * self.options.tuning.edge) as u64,
        }
    }

    fn collector(&self, flusher: &Arc<Flusher>, sparse: &Arc<SparseValues>) -> GarbageCollector {
        GarbageCollector {
            env: self.env.clone(),
            space: self.space.clone(),
            indexes: self.index.table.clone(),
            accounting: self.index.accounting.clone(),
            deleted: self.index.deleted.clone(),
            pipeline: flusher.pipeline.clone(),
            checkpointer: flusher.checkpointer.clone(),
            flusher: flusher.clone(),
            sparse: sparse.clone(),
            memory: self.index.memory.clone(),
            most_unwritten: self.options.memory / 8,
            progress: Default::default(),
        }
    }

    fn reclaim(&self, flusher: &Arc<Flusher>, sparse: &Arc<SparseValues>) -> LowSpaceReclaim {
        LowSpaceReclaim {
            trees: self.trees.clone(),
            indexes: self.index.table.clone(),
            accounting: self.index.accounting.clone(),
            backlog: self.index.backlog.clone(),
            signal: self.signal.clone(),
            pipeline: flusher.pipeline.clone(),
            checkpointer: flusher.checkpointer.clone(),
            flusher: flusher.clone(),
            sparse: sparse.clone(),
            progress: Default::default(),
        }
    }
}
