//! RocksDB: direct I/O, ten filter bits for each key, no compression, half of the budget for blocks
//! (indexes and filters among them), half for memtables; two background jobs.

use super::rocksdb_sys as sys;
use super::{Contender, Place};
use crate::workload::Key;
use anyhow::{Result, bail};
use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{self, NonNull};

const FILTER_BITS_PER_KEY: f64 = 10.0;

/// Owns what it points to until it is dropped; used by one thread.
pub(crate) struct RocksDb {
    database: NonNull<sys::Database>,
    reads: *mut sys::ReadOptions,
    writes: *mut sys::WriteOptions,
}

/// Calls what reports an error by a pointer to a string.
fn checked<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T> {
    let mut error = ptr::null_mut();
    let value = call(&raw mut error);
    if error.is_null() {
        return Ok(value);
    }
    // SAFETY: an error is a string with a NUL at its end, and is the caller's.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: as above; it is not used any more.
    unsafe { sys::rocksdb_free(error.cast()) };
    bail!("RocksDB: {text}")
}

impl RocksDb {
    pub(crate) fn open(place: &Place) -> Result<Self> {
        let path = CString::new(place.folder.as_os_str().as_bytes())?;
        let budget = usize::try_from(place.budget)?;
        // SAFETY: all pointers come from the calls that make such objects. The database keeps what
        // it needs of the options, which live as long as the process.
        unsafe {
            let tables = sys::rocksdb_block_based_options_create();
            let cache = sys::rocksdb_cache_create_lru(budget / 2);
            sys::rocksdb_block_based_options_set_block_cache(tables, cache);
            let filter = sys::rocksdb_filterpolicy_create_bloom(FILTER_BITS_PER_KEY);
            sys::rocksdb_block_based_options_set_filter_policy(tables, filter);
            sys::rocksdb_block_based_options_set_cache_index_and_filter_blocks(tables, 1);
            let options = sys::rocksdb_options_create();
            sys::rocksdb_options_set_create_if_missing(options, 1);
            sys::rocksdb_options_set_block_based_table_factory(options, tables);
            sys::rocksdb_options_set_write_buffer_size(options, budget / 4);
            sys::rocksdb_options_set_max_write_buffer_number(options, 2);
            sys::rocksdb_options_set_max_background_jobs(options, 2);
            sys::rocksdb_options_set_compression(options, 0);
            sys::rocksdb_options_set_use_direct_reads(options, 1);
            sys::rocksdb_options_set_use_direct_io_for_flush_and_compaction(options, 1);
            let database = checked(|error| sys::rocksdb_open(options, path.as_ptr(), error))?;
            let Some(database) = NonNull::new(database) else { bail!("RocksDB opened nothing") };
            let writes = sys::rocksdb_writeoptions_create();
            sys::rocksdb_writeoptions_set_sync(writes, u8::from(place.syncs_each));
            Ok(Self { database, reads: sys::rocksdb_readoptions_create(), writes })
        }
    }

    fn with_batch(&self, fill: impl FnOnce(*mut sys::WriteBatch)) -> Result<()> {
        // SAFETY: it is destroyed below.
        let batch = unsafe { sys::rocksdb_writebatch_create() };
        fill(batch);
        let done = checked(|error| {
            // SAFETY: all of these are live.
            unsafe { sys::rocksdb_write(self.database.as_ptr(), self.writes, batch, error) }
        });
        // SAFETY: made above and not used any more.
        unsafe { sys::rocksdb_writebatch_destroy(batch) };
        done
    }
}

impl Contender for RocksDb {
    fn write(&mut self, values: &[(Key, &[u8])]) -> Result<()> {
        self.with_batch(|batch| {
            for (key, value) in values {
                let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
                // SAFETY: the batch is live, and copies so many bytes from the slices.
                unsafe { sys::rocksdb_writebatch_put(batch, k, key.len(), v, value.len()) };
            }
        })
    }

    fn sync(&mut self) -> Result<()> {
        // SAFETY: the database is open.
        checked(|error| unsafe { sys::rocksdb_flush_wal(self.database.as_ptr(), 1, error) })
    }

    fn get(&mut self, key: &Key) -> Result<Option<usize>> {
        let mut length = 0;
        let value = checked(|error| {
            // SAFETY: the database is open, and the key as long as said.
            unsafe {
                sys::rocksdb_get(
                    self.database.as_ptr(),
                    self.reads,
                    key.as_ptr().cast(),
                    key.len(),
                    &raw mut length,
                    error,
                )
            }
        })?;
        if value.is_null() {
            return Ok(None);
        }
        // SAFETY: a value that is found is the caller's.
        unsafe { sys::rocksdb_free(value.cast()) };
        Ok(Some(length))
    }

    fn scan(&mut self, from: &Key, most: u64) -> Result<u64> {
        let mut count = 0;
        // SAFETY: the iterator is destroyed below; keys and values are used before it moves.
        unsafe {
            let iterator = sys::rocksdb_create_iterator(self.database.as_ptr(), self.reads);
            sys::rocksdb_iter_seek(iterator, from.as_ptr().cast(), from.len());
            while count < most && sys::rocksdb_iter_valid(iterator) != 0 {
                let mut length = 0;
                let value = sys::rocksdb_iter_value(iterator, &raw mut length);
                // A copy, as the others make.
                std::hint::black_box(std::slice::from_raw_parts(value.cast::<u8>(), length).to_vec());
                count += 1;
                sys::rocksdb_iter_next(iterator);
            }
            let outcome = checked(|error| sys::rocksdb_iter_get_error(iterator, error));
            sys::rocksdb_iter_destroy(iterator);
            outcome?;
        }
        Ok(count)
    }

    fn delete_range(&mut self, from: &Key, to: &Key) -> Result<()> {
        self.with_batch(|batch| {
            let (start, end) = (from.as_ptr().cast(), to.as_ptr().cast());
            // SAFETY: the batch is live, and copies so many bytes from the slices.
            unsafe { sys::rocksdb_writebatch_delete_range(batch, start, from.len(), end, to.len()) };
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        // SAFETY: nothing uses it any more.
        unsafe { sys::rocksdb_close(self.database.as_ptr()) };
        Ok(())
    }
}
