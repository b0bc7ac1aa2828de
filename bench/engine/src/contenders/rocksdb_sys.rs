//! What the benchmark calls of RocksDB's C interface (`rocksdb/c.h`), in the library that the
//! distribution has: `librocksdb-dev` in Debian.

use std::ffi::{c_char, c_double, c_int, c_uchar, c_void};

macro_rules! opaque {
    ($($name:ident),*) => {
        $(
            #[repr(C)]
            pub(crate) struct $name {
                _opaque: [u8; 0],
            }
        )*
    };
}

opaque!(Database, Options, TableOptions, Cache, Filter, ReadOptions, WriteOptions, WriteBatch, Iterator);

#[link(name = "rocksdb")]
unsafe extern "C" {
    pub(crate) fn rocksdb_free(at: *mut c_void);
    pub(crate) fn rocksdb_options_create() -> *mut Options;
    pub(crate) fn rocksdb_options_set_create_if_missing(options: *mut Options, on: c_uchar);
    pub(crate) fn rocksdb_options_set_write_buffer_size(options: *mut Options, bytes: usize);
    pub(crate) fn rocksdb_options_set_max_write_buffer_number(options: *mut Options, most: c_int);
    pub(crate) fn rocksdb_options_set_max_background_jobs(options: *mut Options, most: c_int);
    pub(crate) fn rocksdb_options_set_compression(options: *mut Options, kind: c_int);
    pub(crate) fn rocksdb_options_set_use_direct_reads(options: *mut Options, on: c_uchar);
    pub(crate) fn rocksdb_options_set_use_direct_io_for_flush_and_compaction(
        options: *mut Options,
        on: c_uchar,
    );
    pub(crate) fn rocksdb_options_set_block_based_table_factory(
        options: *mut Options,
        tables: *mut TableOptions,
    );
    pub(crate) fn rocksdb_block_based_options_create() -> *mut TableOptions;
    pub(crate) fn rocksdb_block_based_options_set_block_cache(tables: *mut TableOptions, cache: *mut Cache);
    pub(crate) fn rocksdb_block_based_options_set_filter_policy(
        tables: *mut TableOptions,
        filter: *mut Filter,
    );
    pub(crate) fn rocksdb_block_based_options_set_cache_index_and_filter_blocks(
        tables: *mut TableOptions,
        on: c_uchar,
    );
    pub(crate) fn rocksdb_cache_create_lru(bytes: usize) -> *mut Cache;
    pub(crate) fn rocksdb_filterpolicy_create_bloom(bits_per_key: c_double) -> *mut Filter;
    pub(crate) fn rocksdb_open(
        options: *const Options,
        path: *const c_char,
        error: *mut *mut c_char,
    ) -> *mut Database;
    pub(crate) fn rocksdb_close(database: *mut Database);
    pub(crate) fn rocksdb_readoptions_create() -> *mut ReadOptions;
    pub(crate) fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    pub(crate) fn rocksdb_writeoptions_set_sync(options: *mut WriteOptions, on: c_uchar);
    pub(crate) fn rocksdb_writebatch_create() -> *mut WriteBatch;
    pub(crate) fn rocksdb_writebatch_destroy(batch: *mut WriteBatch);
    pub(crate) fn rocksdb_writebatch_put(
        batch: *mut WriteBatch,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
    );
    pub(crate) fn rocksdb_writebatch_delete_range(
        batch: *mut WriteBatch,
        start: *const c_char,
        start_bytes: usize,
        end: *const c_char,
        end_bytes: usize,
    );
    pub(crate) fn rocksdb_write(
        database: *mut Database,
        options: *const WriteOptions,
        batch: *mut WriteBatch,
        error: *mut *mut c_char,
    );
    pub(crate) fn rocksdb_flush_wal(database: *mut Database, sync: c_uchar, error: *mut *mut c_char);
    pub(crate) fn rocksdb_get(
        database: *mut Database,
        options: *const ReadOptions,
        key: *const c_char,
        key_bytes: usize,
        value_bytes: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut c_char;
    pub(crate) fn rocksdb_create_iterator(
        database: *mut Database,
        options: *const ReadOptions,
    ) -> *mut Iterator;
    pub(crate) fn rocksdb_iter_seek(iterator: *mut Iterator, key: *const c_char, bytes: usize);
    pub(crate) fn rocksdb_iter_valid(iterator: *const Iterator) -> c_uchar;
    pub(crate) fn rocksdb_iter_next(iterator: *mut Iterator);
    pub(crate) fn rocksdb_iter_value(iterator: *const Iterator, bytes: *mut usize) -> *const c_char;
    pub(crate) fn rocksdb_iter_get_error(iterator: *const Iterator, error: *mut *mut c_char);
    pub(crate) fn rocksdb_iter_destroy(iterator: *mut Iterator);
}
