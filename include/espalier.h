/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What a mounted Espalier file system does beyond the calls that every file system has: ioctls on
 * its files and directories. Semantics: docs/semantics.md, "Whole trees".
 *
 * An ioctl needs the file or directory open for reading. Names have 1 to 255 bytes, no '/' and no
 * NUL, and are given with their length. Reserved fields are 0. Errors besides those named below:
 * EINVAL for invalid arguments, EROFS on a read-only mount, ENOSPC, EIO, and ENOTTY where the file
 * system does not know the ioctl (another file system, or an older Espalier).
 *
 * Cloning takes two steps, because an ioctl on one directory cannot name another:
 *
 *     int src = open("/mnt/tree", O_RDONLY), dst = open("/mnt/copies", O_RDONLY);
 *     struct espalier_token token;
 *     struct espalier_clone clone = { .name_length = 4, .name = "copy" };
 *     ioctl(src, ESPALIER_IOC_TOKEN, &token);
 *     memcpy(clone.token, token.token, sizeof clone.token);
 *     ioctl(dst, ESPALIER_IOC_CLONE, &clone);
 */
#ifndef ESPALIER_H
#define ESPALIER_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define ESPALIER_IOC_MAGIC 0xE5
#define ESPALIER_NAME_MAX 255

/* Stands for an open file or directory, for its user and as long as it is open; used once. */
struct espalier_token {
	__u8 token[16];
};

struct espalier_clone {
	__u8 token[16];		/* of the source */
	__u32 flags;		/* 0 */
	__u32 name_length;
	char name[256];
};

struct espalier_name {
	__u32 flags;
	__u32 name_length;
	char name[256];
};

/* ~0: leave as it is. */
struct espalier_owner {
	__u32 uid;
	__u32 gid;
};

/* The new mode is (mode & keep) | add. */
struct espalier_mode {
	__u32 keep_directories;
	__u32 add_directories;
	__u32 keep_files;
	__u32 add_files;
	__u32 add_executables;	/* added to files that any user may execute, as chmod +X */
};

struct espalier_diff {
	__u8 token[16];		/* of what the directory is compared with */
	__u64 session;		/* out: for ESPALIER_IOC_DIFF_NEXT */
};

/* Differences, one after the other: kind ('+' added, '-' removed, '~' changed), length of the path
 * (2 bytes, in the machine's order), path. Paths are relative. length == 0: there are no more, and
 * the session is over. A path of more than 4096 bytes ends the comparison with ENAMETOOLONG. EBUSY
 * while another thread is given differences of the session; ESTALE for one that is over, dropped
 * for newer ones of the same user, or not the caller's. */
struct espalier_differences {
	__u64 session;		/* in */
	__u64 nodes_read;	/* node headers that the comparison has looked at so far */
	__u32 length;		/* bytes of data */
	__u32 reserved;
	__u8 data[8168];
};

/* On a file or directory: a token for it. */
#define ESPALIER_IOC_TOKEN       _IOR(ESPALIER_IOC_MAGIC, 1, struct espalier_token)

/* On a directory: makes a clone of what the token stands for in it, under the name. EEXIST; ESTALE
 * for a token that is used up, not the caller's, or whose file is closed; EPERM if not all of the
 * source is the caller's own; EACCES. */
#define ESPALIER_IOC_CLONE       _IOW(ESPALIER_IOC_MAGIC, 2, struct espalier_clone)

/* On a directory: removes the directory of that name in it, with all below. With the flag an empty
 * directory is left in its place, for rmdir(2), of which watchers hear. ENOENT, ENOTDIR, EPERM,
 * EACCES. */
#define ESPALIER_REMOVE_LEAVING_EMPTY 1	/* flag */
#define ESPALIER_IOC_REMOVE_TREE _IOW(ESPALIER_IOC_MAGIC, 3, struct espalier_name)

/* On a file or directory: sets the owner of it and all below. For root. EPERM. */
#define ESPALIER_IOC_CHOWN_TREE  _IOW(ESPALIER_IOC_MAGIC, 4, struct espalier_owner)

/* On a file or directory: sets the modes of it and all below. EPERM. */
#define ESPALIER_IOC_CHMOD_TREE  _IOW(ESPALIER_IOC_MAGIC, 5, struct espalier_mode)

/* On any directory, for root and the owner of the mount's root: makes or deletes a snapshot of the
 * whole volume. It is found as .snapshots/NAME in the root. With the flag DIRECTORY: a snapshot of
 * this directory alone, found as .snapshots/NAME in it; for root, and for the user that owns all of
 * it. A snapshot of a directory that is gone is deleted through any other directory as NUMBER/NAME,
 * with the st_ino that the directory had. EEXIST, ENOENT, EPERM. */
#define ESPALIER_SNAPSHOT_WRITABLE  1	/* flag: mounted on its own, it can be changed */
#define ESPALIER_SNAPSHOT_DIRECTORY 2	/* flag: of this directory, not of the whole volume */
#define ESPALIER_IOC_SNAPSHOT        _IOW(ESPALIER_IOC_MAGIC, 6, struct espalier_name)
#define ESPALIER_IOC_SNAPSHOT_DELETE _IOW(ESPALIER_IOC_MAGIC, 7, struct espalier_name)

/* On a directory other than the root: replaces it, in one step, by what a snapshot of it (or of
 * another directory, as NUMBER/NAME) holds. What it held until then is removed as by
 * ESPALIER_IOC_REMOVE_TREE, the open directory too. ENOENT, EPERM, EACCES; EINVAL for the root, and
 * for snapshots of the whole volume. */
#define ESPALIER_IOC_RESTORE         _IOW(ESPALIER_IOC_MAGIC, 11, struct espalier_name)

/* On a directory, in the live tree or in a snapshot: begins to compare the tree that the token
 * stands for (the older one) with this one. The caller must be root, or own all of both. EPERM,
 * EXDEV. */
#define ESPALIER_IOC_DIFF        _IOWR(ESPALIER_IOC_MAGIC, 8, struct espalier_diff)
#define ESPALIER_IOC_DIFF_NEXT   _IOWR(ESPALIER_IOC_MAGIC, 9, struct espalier_differences)

/* On a directory: carries out renames between paths below it and names in a staging directory, all
 * or none, also after a crash. The steps lie one after the other in a file on the same mount:
 * action (1 byte), expected number (st_ino, 8 bytes) and time of change (nanoseconds since the Unix
 * epoch, 8 bytes) of what is at the place, lengths of place and staged (2 bytes each), place,
 * staged; in the machine's order, without gaps. What is expected does not count for ENTER. No step
 * may concern what another one moves. Every directory on the way to a place, and the staging
 * directory, must belong to the caller, and be for its owner to write and search, or the caller be
 * root. Watchers (inotify) hear nothing. ESTALE if something is not what is expected, ENOENT,
 * EEXIST; E2BIG if there are more steps than fit the log. */
#define ESPALIER_STEP_ENTER      1	/* what is staged moves to the place, where nothing may be */
#define ESPALIER_STEP_LEAVE      2	/* what is at the place is staged */
#define ESPALIER_STEP_EXCHANGE   3	/* the two change places */
#define ESPALIER_STEP_ATTRIBUTES 4	/* two directories exchange mode, owner and attributes */
struct espalier_rename_all {
	__u8 staging[16];	/* token of the staging directory */
	__u8 steps[16];		/* token of the file with the steps */
};
#define ESPALIER_IOC_RENAME_ALL      _IOW(ESPALIER_IOC_MAGIC, 12, struct espalier_rename_all)

/* On a file or directory, for root: bytes of the store that it takes with all below, and how many
 * of them are shared with nothing else. Whole pieces are counted, after compression. EPERM. */
struct espalier_space {
	__u64 bytes;
	__u64 exclusive;
};
#define ESPALIER_IOC_SPACE       _IOR(ESPALIER_IOC_MAGIC, 10, struct espalier_space)

/* On a file or directory, for its owner and for root: how many bytes are shared with nothing else,
 * as of at most two seconds ago. Takes time for these bytes, not for shared ones. EPERM. */
#define ESPALIER_IOC_EXCLUSIVE_SPACE _IOR(ESPALIER_IOC_MAGIC, 13, __u64)

/* On a directory: asks what was changed below it since an instant, for root and for the user that
 * owns everything in it. Paths come by ESPALIER_IOC_DIFF_NEXT, all of kind '~'; one that ends with
 * a slash stands for a directory with everything below. Git's own directory at the top does not
 * count. What was changed in the second before the last answer may be told again. The token stays
 * good in clones, and when the directory moves; any other, like one from before a remount, gives
 * EVERYTHING. EPERM; EROFS for snapshots and mounts that are read-only. */
#define ESPALIER_CHANGES_SYNCED     1	/* in: syncfs(2) was called after UNSYNCED */
#define ESPALIER_CHANGES_EVERYTHING 1	/* out: anything may have changed */
#define ESPALIER_CHANGES_UNSYNCED   2	/* out: nothing is known before a syncfs(2) (-o writeback) */
struct espalier_changes {
	char token[112];	/* in: of an earlier answer; out: for the next question */
	__u64 session;		/* in: 0; out: for ESPALIER_IOC_DIFF_NEXT, 0 if there are no paths */
	__u32 flags;
	__u32 token_length;
};
#define ESPALIER_IOC_CHANGES         _IOWR(ESPALIER_IOC_MAGIC, 14, struct espalier_changes)

/* Limits on what a directory holds with everything below, in bytes of the store. A call that would
 * go beyond one fails with EDQUOT. ~0: no limit. Clones and snapshots of the directory have limits
 * of their own. SET_LIMITS is for root, for the owner of the mount's root, and for a user that owns
 * the directory and the one that it lies in; the limits replace those before. EPERM; EOPNOTSUPP if
 * files with several names below lie outside of the directory. QUOTA, for root and the owner, also
 * says what the directory holds, as of a second ago (~0: not known, as that is not limited). */
struct espalier_tree_bytes {
	__u64 exclusive;	/* what nothing outside refers to */
	__u64 total;		/* all that it refers to */
};
struct espalier_quota {
	struct espalier_tree_bytes limits;
	struct espalier_tree_bytes held;
};
#define ESPALIER_IOC_SET_LIMITS  _IOW(ESPALIER_IOC_MAGIC, 15, struct espalier_tree_bytes)
#define ESPALIER_IOC_GET_LIMITS  _IOR(ESPALIER_IOC_MAGIC, 16, struct espalier_tree_bytes)
#define ESPALIER_IOC_QUOTA       _IOR(ESPALIER_IOC_MAGIC, 17, struct espalier_quota)

/* On a directory: a token for it, and the abstract Unix socket at which the server takes clients
 * that have one (docs/protocol.md). EOPNOTSUPP if it takes none, EAGAIN if it takes none yet;
 * EXDEV in a snapshot. */
struct espalier_client {
	__u8 token[16];
	char socket[64];	/* without the NUL in front, filled up with NULs */
};
#define ESPALIER_IOC_CLIENT      _IOR(ESPALIER_IOC_MAGIC, 18, struct espalier_client)

/* On a directory: what ESPALIER_IOC_DIFF, ESPALIER_IOC_EXCLUSIVE_SPACE and ESPALIER_IOC_GET_LIMITS
 * tell, in one answer, for programs that ask about many directories. EPERM, EXDEV. */
struct espalier_survey {
	__u8 token[16];		/* in: of the older directory; out: zeros */
	__u64 session;		/* in: 0; out: for ESPALIER_IOC_DIFF_NEXT, 0 if nothing differs */
	__u64 exclusive;	/* in: 0; out: bytes shared with nothing else, ~0: not for the caller */
	struct espalier_tree_bytes limits;	/* in: 0 */
};
#define ESPALIER_IOC_SURVEY      _IOWR(ESPALIER_IOC_MAGIC, 19, struct espalier_survey)

#endif
