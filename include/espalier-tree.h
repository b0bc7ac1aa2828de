/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Files of an Espalier file system without the kernel: through the server of a mount, or on an
 * image that is not mounted. docs/bindings.md describes the library, with an example.
 *
 * Made by cbindgen from crates/espalier-c; changes belong there.
 *
 * Rules for all calls:
 *
 * - A function that can fail returns 0 or an error number of Linux (ENOENT), never -1; errno means
 *   nothing. espalier_message() has the text of the last failure of the calling thread.
 * - Paths are strings that end with a NUL, of any other bytes. They begin at the directory of the
 *   tree, which `..` and links do not leave, with or without a slash in front.
 * - What a caller passes is read during the call and not kept. A missing argument (NULL) is
 *   EINVAL.
 *   A place for a result that is a pointer holds NULL after a failure.
 * - A handle (struct espalier_tree, espalier_walk, espalier_diff, espalier_file, espalier_watch,
 *   espalier_changes) is ended once, by the function that its maker names; after that it must not
 *   be used. Handles may outlive the tree that they come from, but an image stays locked as long.
 *   Trees and files may be used by several threads at a time, walks, comparisons, watches and
 *   changes by one.
 * - Memory that a function says is freed with free() is the caller's. All else is the library's.
 * - After fork() a child may go on with a tree of a mount, and with one of an image that is read
 *   only; not with its walks and watches. A tree that writes an image fails in the child with
 *   EBUSY.
 */

#ifndef ESPALIER_TREE_H
#define ESPALIER_TREE_H

#include <stddef.h>
#include <stdint.h>

// Of options: the image is opened to read only.
#define ESPALIER_READ_ONLY 1

// Of options: with the rights of root in the image, instead of those of the process.
#define ESPALIER_AS_ROOT 2

// Of a file to be written: it is a symbolic link, and its content the target.
#define ESPALIER_SYMLINK 1

// Of writing many: what has the name of a file is left, and the file fails with EEXIST.
#define ESPALIER_NO_REPLACE 1

// Of writing many: a missing directory is an error, ENOENT.
#define ESPALIER_NO_DIRECTORIES 2

// A mode, user or group that is not given.
#define ESPALIER_NONE 4294967295

// A time that stays as it is; of a file to be written: the time of the call.
#define ESPALIER_KEEP INT64_MIN

// The time of the call.
#define ESPALIER_NOW (INT64_MIN + 1)

// Of a rename: what has the new name is replaced.
#define ESPALIER_RENAME_REPLACE 0

// Of a rename: it fails with EEXIST if something has the new name.
#define ESPALIER_RENAME_NO_REPLACE 1

// Of a rename: the two change places.
#define ESPALIER_RENAME_EXCHANGE 2

// Of an extended attribute that is set: it is made or replaced.
#define ESPALIER_XATTR_SET 0

// Of an extended attribute that is set: it fails with EEXIST if it is there.
#define ESPALIER_XATTR_CREATE 1

// Of an extended attribute that is set: it fails with ENODATA if it is not there.
#define ESPALIER_XATTR_REPLACE 2

// Of a filter: the range of sizes counts.
#define ESPALIER_FILTER_SIZE 1

// Of a filter: the range of times counts.
#define ESPALIER_FILTER_MTIME 2

// Of a filter: named pipes.
#define ESPALIER_KIND_FIFO 2

// Of a filter: character devices.
#define ESPALIER_KIND_CHARACTER 4

// Of a filter: directories.
#define ESPALIER_KIND_DIRECTORY 16

// Of a filter: block devices.
#define ESPALIER_KIND_BLOCK 64

// Of a filter: regular files.
#define ESPALIER_KIND_FILE 256

// Of a filter: symbolic links.
#define ESPALIER_KIND_LINK 1024

// Of a filter: sockets.
#define ESPALIER_KIND_SOCKET 4096

// Of a difference: only the newer directory has it.
#define ESPALIER_ADDED 1

// Of a difference: only the older directory has it.
#define ESPALIER_REMOVED 2

// Of a difference: both have it, with different content or attributes.
#define ESPALIER_CHANGED 3

// What was changed below a directory.
struct espalier_changes;

// A comparison of two directories that goes on.
struct espalier_diff;

// An open file.
struct espalier_file;

// What lies below a directory of a mount or of an image. Several threads may use it; on a mount
// their calls come one after the other.
struct espalier_tree;

// A listing or a walk that goes on.
struct espalier_walk;

// A watch of a directory.
struct espalier_watch;

// How an image that is not mounted is opened. Zeros are the defaults.
struct espalier_options {
  // Memory of the store in bytes; 0: 256 MiB.
  uint64_t memory_bytes;
  // How long another process that has the image open is waited for, in milliseconds; 0: 5000,
  // less than 0: not at all.
  int32_t wait_ms;
  // ESPALIER_READ_ONLY, ESPALIER_AS_ROOT.
  uint32_t flags;
};

// The attributes of a file.
struct espalier_stat {
  // Its number.
  uint64_t ino;
  // Device number of a device file, as makedev makes it.
  uint64_t rdev;
  // Bytes; of a directory, entries.
  uint64_t size;
  // Space that the data takes, in units of 512 bytes.
  uint64_t blocks;
  // Last read, in nanoseconds since the Unix epoch.
  int64_t atime_ns;
  // Last change of the content.
  int64_t mtime_ns;
  // Last change of content or attributes.
  int64_t ctime_ns;
  // Creation.
  int64_t btime_ns;
  // Type and permissions, as st_mode.
  uint32_t mode;
  // Number of names.
  uint32_t nlink;
  // Owner.
  uint32_t uid;
  // Group.
  uint32_t gid;
  // The unit of data that is efficient to write, in bytes.
  uint32_t blksize;
  // 0.
  uint32_t reserved;
};

// A part of a file that is to be read.
struct espalier_piece {
  // The file.
  const char *path;
  // The first byte.
  uint64_t offset;
  // How many bytes at most; UINT64_MAX: all.
  uint64_t length;
};

// What espalier_read_many calls for each part: with the context that it was given, the place of
// the part among the others, and 0 and what was read, or an error number (and espalier_message has
// the text). The data is the library's and stays until the function returns. It returns 0 to go
// on, or something else to end the reading. It makes no calls on the tree, throws no exception,
// and does not jump out.
typedef int (*espalier_read_function)(void *context,
                                      size_t place,
                                      int error,
                                      const uint8_t *data,
                                      size_t length);

// An extended attribute of a file that is to be made.
struct espalier_xattr {
  // The whole name (`user.comment`).
  const char *name;
  // The value; NULL if it has no bytes.
  const uint8_t *value;
  // Bytes of the value.
  size_t length;
};

// A file that is to be made or replaced.
struct espalier_write {
  // Its path.
  const char *path;
  // Its content; NULL if it has no bytes.
  const uint8_t *content;
  // Bytes of content.
  size_t length;
  // When it was changed last, in nanoseconds since the Unix epoch; ESPALIER_KEEP: now.
  int64_t mtime_ns;
  // The low 12 bits of its mode, or ESPALIER_NONE.
  uint32_t mode;
  // Its owner, or ESPALIER_NONE.
  uint32_t uid;
  // Its group, or ESPALIER_NONE.
  uint32_t gid;
  // ESPALIER_SYMLINK.
  uint32_t flags;
  // Extended attributes, access control lists among them; NULL if there are none.
  const struct espalier_xattr *xattrs;
  // How many there are.
  size_t xattr_count;
};

// What a listing or a walk gives: entries that are all of this. Zeros let everything through.
// Directories that are closed to the caller are given in any case.
struct espalier_filter {
  // One for names, or with a slash for paths below the directory: `*`, `?`, `[a-z]`, `**`; NULL:
  // all names.
  const char *pattern;
  // With ESPALIER_FILTER_SIZE: so many bytes at least (of a directory, entries),
  uint64_t size_min;
  // and at most.
  uint64_t size_max;
  // With ESPALIER_FILTER_MTIME: the content was last changed then, in nanoseconds since the Unix
  // epoch, or later,
  int64_t mtime_min_ns;
  // and then or sooner.
  int64_t mtime_max_ns;
  // ESPALIER_KIND_FILE and others, together; 0: all kinds.
  uint32_t kinds;
  // ESPALIER_FILTER_SIZE, ESPALIER_FILTER_MTIME.
  uint32_t flags;
};

// An entry of a listing or a walk.
struct espalier_entry {
  // The name, or the path below the directory of the walk; NULL: there are no more. It stays
  // until the next call with the walk.
  const char *path;
  // Its attributes. Of a walk, blocks of sparse files are taken for full.
  struct espalier_stat stat;
  // 1: a directory that the caller may not list or search; nothing below it is given.
  uint32_t is_closed;
  // 0.
  uint32_t reserved;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What happened in the last call of this thread that failed, with the path that it was about. The
// library's; it stays until the next call of the thread fails.
const char *espalier_message(void);

// The version of the library. The library's.
const char *espalier_version(void);

// Opens a place: a directory in a mount, an image that is not mounted (IMAGE), or a directory in
// one (IMAGE:/DIRECTORY). All paths of the tree begin there. The tree is to be closed with
// espalier_close. Options may be NULL; they concern images.
//
// ENOENT, ENOTDIR: it is neither. ENOTTY: the directory lies in no mount of Espalier. EOPNOTSUPP,
// EACCES: the server takes no clients, or not this one. EBUSY: another process has the
// image open, as the server of a mount has. EIO: it is no image, or a damaged one.
int espalier_open(const char *place,
                  const struct espalier_options *options,
                  struct espalier_tree **tree);

// Makes an empty file system in a new image file (or an empty one) of so many bytes, whose root
// directory belongs to the user of the process. EEXIST: something else is there.
int espalier_format(const char *image, uint64_t bytes);

// Opens a directory of a tree as a tree of its own, which the process may list and search: paths
// begin there, whatever happens to the name of the directory, and do not leave it. To be closed
// with espalier_close. In an image it ends when the other tree is closed (EBADF). The errors are
// those of open for a directory; on a mount also those of espalier_open.
int espalier_subtree(const struct espalier_tree *tree,
                     const char *path,
                     struct espalier_tree **subtree);

// Makes everything durable that was done so far; on a mount, by any program. EIO: the device
// fails.
int espalier_sync(const struct espalier_tree *tree);

// Ends a tree, whatever is returned; NULL is no error. An image is made durable before. Walks and
// files of the tree are ended for themselves, before or afterwards. EIO: the device of an image
// fails, and what was not synced may be lost.
int espalier_close(struct espalier_tree *tree);

// The attributes of a file. With `follow` a symbolic link at the end of the path is followed. The
// errors are those of stat.
int espalier_stat(const struct espalier_tree *tree,
                  const char *path,
                  int follow,
                  struct espalier_stat *stat);

// The whole content of a file, with a NUL behind it that does not count, in memory that the caller
// frees with free(). The errors are those of open and read.
int espalier_read(const struct espalier_tree *tree,
                  const char *path,
                  uint8_t **content,
                  size_t *length);

// Makes a directory; with `parents` also those above that are missing, and then without an error
// if it is there. The errors are those of mkdir.
int espalier_mkdir(const struct espalier_tree *tree, const char *path, uint32_t mode, int parents);

// Makes a symbolic link to `target`. The errors are those of symlink.
int espalier_symlink(const struct espalier_tree *tree, const char *target, const char *path);

// Gives the file at `old` another name. The errors are those of link.
int espalier_link(const struct espalier_tree *tree, const char *old, const char *new_path);

// Removes a name of a file. The errors are those of unlink.
int espalier_unlink(const struct espalier_tree *tree, const char *path);

// Removes an empty directory. The errors are those of rmdir.
int espalier_rmdir(const struct espalier_tree *tree, const char *path);

// Removes a directory with everything below, in one step. The errors are those of rmdir; EPERM if
// the caller is not root, and something there is not its own.
int espalier_remove_tree(const struct espalier_tree *tree, const char *path);

// Makes `new_path` a clone of what is at `old` with everything below, in one step that copies
// nothing. The errors are those of mkdir; EPERM if the caller is not root, and not all of it is
// its own.
int espalier_clone_tree(const struct espalier_tree *tree, const char *old, const char *new_path);

// Sets owner and group of what is at a path and of everything below, in one step; ESPALIER_NONE
// leaves as it is. Links are not followed. EPERM unless the caller is root.
int espalier_chown_tree(const struct espalier_tree *tree,
                        const char *path,
                        uint32_t uid,
                        uint32_t gid);

// Changes the modes of what is at a path and of everything below, in one step: each entry gets its
// mode without `clear`, and with `add`; directories, and files that have an execute bit, also get
// `execute`, as for the X of chmod. With 07777 to clear, modes are set. Links are not followed.
// EPERM if the caller is not root, and something there is not its own.
int espalier_chmod_tree(const struct espalier_tree *tree,
                        const char *path,
                        uint32_t clear,
                        uint32_t add,
                        uint32_t execute);

// Moves what is at `old` to `new_path`; `how` is one of ESPALIER_RENAME_REPLACE,
// ESPALIER_RENAME_NO_REPLACE and ESPALIER_RENAME_EXCHANGE. The errors are those of renameat2.
int espalier_rename(const struct espalier_tree *tree,
                    const char *old,
                    const char *new_path,
                    uint32_t how);

// Sets the mode: the low 12 bits. The errors are those of chmod.
int espalier_chmod(const struct espalier_tree *tree, const char *path, uint32_t mode);

// Sets owner and group; ESPALIER_NONE leaves as it is. The errors are those of chown.
int espalier_chown(const struct espalier_tree *tree,
                   const char *path,
                   uint32_t uid,
                   uint32_t gid,
                   int follow);

// Sets the times of the last read and of the last change of the content, in nanoseconds since the
// Unix epoch, or ESPALIER_KEEP, or ESPALIER_NOW. The errors are those of utimensat.
int espalier_utimes(const struct espalier_tree *tree,
                    const char *path,
                    int64_t atime_ns,
                    int64_t mtime_ns,
                    int follow);

// Gives a file so many bytes. The errors are those of truncate.
int espalier_truncate(const struct espalier_tree *tree, const char *path, uint64_t size);

// The target of a symbolic link, in memory that the caller frees with free(). The errors are those
// of readlink.
int espalier_readlink(const struct espalier_tree *tree, const char *path, char **target);

// The value of an extended attribute, with a NUL behind it that does not count, in memory that the
// caller frees with free(). With `follow` a symbolic link at the end of the path is followed.
// ENODATA if there is none of this name; else the errors are those of getxattr.
int espalier_getxattr(const struct espalier_tree *tree,
                      const char *path,
                      const char *name,
                      int follow,
                      uint8_t **value,
                      size_t *length);

// The names of the extended attributes, with a NUL behind each, in memory that the caller frees
// with free(). The errors are those of listxattr and getxattr.
int espalier_listxattr(const struct espalier_tree *tree,
                       const char *path,
                       int follow,
                       char **names,
                       size_t *length);

// Sets an extended attribute; `how` is one of ESPALIER_XATTR_SET, ESPALIER_XATTR_CREATE and
// ESPALIER_XATTR_REPLACE. The errors are those of setxattr; on a mount EOPNOTSUPP for attributes
// of which only the kernel knows the rules.
int espalier_setxattr(const struct espalier_tree *tree,
                      const char *path,
                      const char *name,
                      const uint8_t *value,
                      size_t length,
                      uint32_t how,
                      int follow);

// Removes an extended attribute. The errors are those of removexattr.
int espalier_removexattr(const struct espalier_tree *tree,
                         const char *path,
                         const char *name,
                         int follow);

// The attributes of many files: for each of `count` paths an error number, or 0 and attributes.
// What is returned is 0 unless no file could be asked for; then each file has that number.
int espalier_stat_many(const struct espalier_tree *tree,
                       const char *const *paths,
                       size_t count,
                       int follow,
                       struct espalier_stat *stats,
                       int *errors);

// Reads parts of many files, in the order in which it is fastest, and calls `each` for each of
// them. What is returned is 0 unless nothing could be asked for.
int espalier_read_many(const struct espalier_tree *tree,
                       const struct espalier_piece *pieces,
                       size_t count,
                       espalier_read_function each,
                       void *context);

// Makes many files, or replaces what has their names; for each an error number, or 0. Files of one
// directory are written in batches that take effect as a whole: each is seen with all of its
// content and attributes, extended ones too, or not at all, also after a crash. The errors of a
// file are those of open, write, rename and setxattr. Missing directories are made. Flags are
// ESPALIER_NO_REPLACE and ESPALIER_NO_DIRECTORIES. What is returned is 0, or the first error
// number of a file, and espalier_message is about that file. If the call itself is wrong (EINVAL)
// nothing is written, and each file has that number.
int espalier_write_many(const struct espalier_tree *tree,
                        const struct espalier_write *files,
                        size_t count,
                        uint32_t flags,
                        int *errors);

// Begins to give the entries of a directory, of one instant, by name. `filter` may be NULL. To be
// ended with espalier_walk_close. ENOTDIR; EACCES unless the caller may list and search the
// directory.
int espalier_list(const struct espalier_tree *tree,
                  const char *path,
                  const struct espalier_filter *filter,
                  struct espalier_walk **walk);

// Begins to give everything below a directory, of one instant: the entries of a directory by name,
// then what lies below its subdirectories. Links are not followed. `filter` may be NULL. To be
// ended with espalier_walk_close. The errors are those of espalier_list.
int espalier_walk(const struct espalier_tree *tree,
                  const char *path,
                  const struct espalier_filter *filter,
                  struct espalier_walk **walk);

// The next entry; at the end its path is NULL. One thread at a time. ETIMEDOUT: on a mount, the
// walk was left alone for a minute. ECONNRESET: the server went away. After an error there are no
// more.
int espalier_walk_next(struct espalier_walk *walk, struct espalier_entry *entry);

// Ends a walk, also before it is at its end. NULL is no error.
void espalier_walk_close(struct espalier_walk *walk);

// Begins to give what differs between two directories, of which the older one may lie in a
// snapshot (.snapshots/NAME). The time grows with what differs, not with what there is. To be
// ended with espalier_diff_close. ENOTDIR, EACCES; EPERM if the caller is not root, and not
// everything in both is its own.
int espalier_diff(const struct espalier_tree *tree,
                  const char *old,
                  const char *new_path,
                  struct espalier_diff **diff);

// The next difference: ESPALIER_ADDED, ESPALIER_REMOVED or ESPALIER_CHANGED, and the path below
// both directories, in the order of keys, which stays until the next call; at the end the path is
// NULL. One thread at a time. The errors are those of espalier_walk_next.
int espalier_diff_next(struct espalier_diff *diff, uint32_t *change, const char **path);

// Ends a comparison, also before it is at its end. NULL is no error.
void espalier_diff_close(struct espalier_diff *diff);

// Opens a regular file. Flags are those of open: O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT,
// O_EXCL, O_TRUNC and O_CLOEXEC, which is always set; `mode` is that of a file that is made, less
// the umask. The file stays the same whatever happens to its name. To be ended with
// espalier_file_close. The errors are those of open; EINVAL for other flags.
int espalier_file_open(const struct espalier_tree *tree,
                       const char *path,
                       int flags,
                       uint32_t mode,
                       struct espalier_file **file);

// Reads up to `length` bytes at `offset`; `got` is how many there were, 0 at the end. The errors
// are those of pread.
int espalier_file_read(const struct espalier_file *file,
                       uint64_t offset,
                       uint8_t *out,
                       size_t length,
                       size_t *got);

// Writes all of `data` at `offset`. The errors are those of pwrite; what was written before an
// error stays.
int espalier_file_write(const struct espalier_file *file,
                        uint64_t offset,
                        const uint8_t *data,
                        size_t length);

// The attributes of an open file.
int espalier_file_stat(const struct espalier_file *file, struct espalier_stat *stat);

// Gives an open file so many bytes. The errors are those of ftruncate.
int espalier_file_truncate(const struct espalier_file *file, uint64_t size);

// Makes the content of an open file durable. EIO: the device fails.
int espalier_file_sync(const struct espalier_file *file);

// Ends an open file. What was written is not durable by that. NULL is no error.
void espalier_file_close(struct espalier_file *file);

// What was changed below a directory since a position, which is that of an earlier answer, or has
// no bytes. The answer may tell too much, never too little: what was changed in the last second
// may be told again. To be ended with espalier_changes_free. EPERM: the caller is not root, and
// not everything below is its own.
int espalier_changes(const struct espalier_tree *tree,
                     const char *path,
                     const uint8_t *position,
                     size_t position_length,
                     struct espalier_changes **changes);

// Begins to watch a directory with everything below, from a position on, which is that of an
// earlier answer or of a watch that has ended. One without bytes stands for now: the first answer
// is that anything may have changed. From then on each change is told once, when it happens. A
// position is good in any process as long as the server of the mount runs; that of an image as
// long as this tree has it open. To be ended with espalier_watch_close.
int espalier_watch(const struct espalier_tree *tree,
                   const char *path,
                   const uint8_t *position,
                   size_t position_length,
                   struct espalier_watch **watch);

// Begins to watch a directory with everything below, from a snapshot on that was made of it
// (.snapshots/NAME): what differs is told first, and then what is changed. To be ended with
// espalier_watch_close. The errors are those of espalier_diff.
int espalier_watch_since(const struct espalier_tree *tree,
                         const char *path,
                         const char *snapshot,
                         struct espalier_watch **watch);

// Waits up to `wait_ms` milliseconds (less than 0: without end) until something is changed, and
// says what; without a change the answer has no paths. What was told is not told again. To be
// ended with espalier_changes_free. One thread at a time. EPERM: the caller is not root, and not
// everything below is its own. ENOENT, ENOTDIR: the directory is not there any more. ENOTCONN: the
// server of the mount is gone. EBADF: the watch is the parent's, before fork.
int espalier_watch_wait(struct espalier_watch *watch,
                        int wait_ms,
                        struct espalier_changes **changes);

// Where a watch has come to, for a later one, to which the last second before it is told again. It
// stays until the next call with the watch.
const uint8_t *espalier_watch_position(const struct espalier_watch *watch, size_t *length);

// Ends a watch. NULL is no error.
void espalier_watch_close(struct espalier_watch *watch);

// 1 if anything may have changed, as in the first two answers about a directory; then there are no
// paths.
int espalier_changes_everything(const struct espalier_changes *changes);

// How many paths there are.
size_t espalier_changes_count(const struct espalier_changes *changes);

// A path below the directory; one that ends with a slash stands for a directory with everything
// below. NULL if there are not so many. It stays until the changes are freed.
const char *espalier_changes_path(const struct espalier_changes *changes, size_t at);

// The position of this answer, for the next question. It stays until the changes are freed.
const uint8_t *espalier_changes_position(const struct espalier_changes *changes, size_t *length);

// Ends an answer. NULL is no error.
void espalier_changes_free(struct espalier_changes *changes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ESPALIER_TREE_H */
