/* Makes every call of the library, with good and with bad arguments; each check that does not hold
 * is printed, and the program ends with 1.
 *
 * usage: calls PLACE   (an empty directory in a mount, or an image)
 */
#include <errno.h>
#include <espalier-tree.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int failed;

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "calls.c:%d: %s (%s)\n", __LINE__, #condition, \
				espalier_message()); \
			failed = 1; \
		} \
	} while (0)

static const struct espalier_write none = {
	.mtime_ns = ESPALIER_KEEP, .mode = ESPALIER_NONE, .uid = ESPALIER_NONE, .gid = ESPALIER_NONE,
};

static void names(struct espalier_tree *tree)
{
	struct espalier_stat stat, other;
	uint8_t *content = NULL;
	char *target = NULL;
	size_t length = 99;

	CHECK(espalier_mkdir(tree, "a/b/c", 0755, 1) == 0);
	CHECK(espalier_mkdir(tree, "a/b/c", 0755, 1) == 0);
	CHECK(espalier_mkdir(tree, "a/b", 0755, 0) == EEXIST);
	CHECK(espalier_mkdir(tree, "no/where", 0755, 0) == ENOENT);
	CHECK(strstr(espalier_message(), "no/where: ") == espalier_message());
	CHECK(espalier_read(tree, "a/none", &content, &length) == ENOENT);
	CHECK(content == NULL && length == 0);
	CHECK(espalier_symlink(tree, "b/c", "a/link") == 0);
	CHECK(espalier_readlink(tree, "a/link", &target) == 0 && strcmp(target, "b/c") == 0);
	free(target);
	CHECK(espalier_readlink(tree, "a", &target) == EINVAL && target == NULL);
	CHECK(espalier_stat(tree, "a/link", 0, &stat) == 0 && S_ISLNK(stat.mode));
	CHECK(espalier_stat(tree, "a/link", 1, &stat) == 0 && S_ISDIR(stat.mode));
	CHECK(espalier_stat(tree, "/a/b/../b/c", 1, &other) == 0 && other.ino == stat.ino);
	CHECK(espalier_rmdir(tree, "a/b") == ENOTEMPTY);
	CHECK(espalier_unlink(tree, "a/link") == 0);
	CHECK(espalier_unlink(tree, "a/link") == ENOENT);
	CHECK(espalier_rmdir(tree, "a/b/c") == 0);
	CHECK(espalier_rename(tree, "a/b", "a/moved", ESPALIER_RENAME_REPLACE) == 0);
	CHECK(espalier_mkdir(tree, "a/other", 0700, 0) == 0);
	CHECK(espalier_rename(tree, "a/other", "a/moved", ESPALIER_RENAME_NO_REPLACE) == EEXIST);
	CHECK(espalier_rename(tree, "a/other", "a/moved", ESPALIER_RENAME_EXCHANGE) == 0);
	CHECK(espalier_rename(tree, "a/other", "a/moved", 7) == EINVAL);
	CHECK(espalier_stat(tree, "a/moved", 1, &stat) == 0 && (stat.mode & 07777) == 0700);
	CHECK(espalier_chmod(tree, "a/moved", 0750) == 0);
	CHECK(espalier_chown(tree, "a/moved", ESPALIER_NONE, getgid(), 1) == 0);
	CHECK(espalier_utimes(tree, "a/moved", ESPALIER_KEEP, 1234567890123456789, 1) == 0);
	CHECK(espalier_stat(tree, "a/moved", 1, &stat) == 0);
	CHECK((stat.mode & 07777) == 0750 && stat.mtime_ns == 1234567890123456789);
	CHECK(espalier_utimes(tree, "a/moved", ESPALIER_NOW, ESPALIER_NOW, 1) == 0);
	CHECK(espalier_stat(tree, "a/moved", 1, &other) == 0 && other.mtime_ns > stat.mtime_ns);
}

static void trees(struct espalier_tree *tree)
{
	struct espalier_stat stat;
	struct espalier_diff *diff;
	const char *path;
	uint8_t *value;
	char *names;
	size_t length;
	uint32_t change;
	int seen = 0;

	CHECK(espalier_mkdir(tree, "t/d", 0755, 1) == 0);
	CHECK(espalier_symlink(tree, "d", "t/link") == 0);
	CHECK(espalier_clone_tree(tree, "t", "u") == 0);
	CHECK(espalier_chown_tree(tree, "u", ESPALIER_NONE, ESPALIER_NONE) == (geteuid() ? EPERM : 0));
	CHECK(espalier_chmod_tree(tree, "u", 022, 0, 0) == 0);
	CHECK(espalier_chmod_tree(tree, "u", 07777, 0640, 0110) == 0);
	CHECK(espalier_stat(tree, "u/d", 0, &stat) == 0 && (stat.mode & 07777) == 0750);
	CHECK(espalier_chmod_tree(tree, "none", 0, 0, 0) == ENOENT);
	CHECK(espalier_rmdir(tree, "u/d") == 0);
	CHECK(espalier_mkdir(tree, "u/e", 0755, 0) == 0);
	CHECK(espalier_diff(tree, "t", "u", &diff) == 0);
	while (espalier_diff_next(diff, &change, &path) == 0 && path != NULL) {
		if (strcmp(path, "d") == 0)
			seen |= change == ESPALIER_REMOVED ? 1 : 8;
		if (strcmp(path, "e") == 0)
			seen |= change == ESPALIER_ADDED ? 2 : 8;
	}
	CHECK(seen == 3);
	CHECK(espalier_diff_next(diff, &change, &path) == 0 && path == NULL && change == 0);
	CHECK(espalier_diff_next(NULL, &change, &path) == EINVAL);
	espalier_diff_close(diff);
	espalier_diff_close(NULL);
	CHECK(espalier_diff(tree, "t", "none", &diff) == ENOENT && diff == NULL);
	CHECK(espalier_diff(tree, "t", "u", NULL) == EINVAL);

	CHECK(espalier_setxattr(tree, "t/link", "user.a", (const uint8_t *)"12", 2, ESPALIER_XATTR_SET, 1) == 0);
	CHECK(espalier_setxattr(tree, "t/d", "user.b", NULL, 0, ESPALIER_XATTR_CREATE, 1) == 0);
	CHECK(espalier_setxattr(tree, "t/d", "user.b", NULL, 0, ESPALIER_XATTR_CREATE, 1) == EEXIST);
	CHECK(espalier_setxattr(tree, "t/d", "user.c", NULL, 0, ESPALIER_XATTR_REPLACE, 1) == ENODATA);
	CHECK(espalier_setxattr(tree, "t/d", "user.c", NULL, 0, 3, 1) == EINVAL);
	CHECK(espalier_getxattr(tree, "t/d", "user.a", 0, &value, &length) == 0);
	CHECK(length == 2 && strcmp((char *)value, "12") == 0);
	free(value);
	CHECK(espalier_getxattr(tree, "t/d", "user.c", 0, &value, &length) == ENODATA && value == NULL);
	CHECK(espalier_listxattr(tree, "t/d", 0, &names, &length) == 0);
	CHECK(length == 14 && memcmp(names, "user.a\0user.b", 14) == 0);
	free(names);
	CHECK(espalier_removexattr(tree, "t/d", "user.a", 0) == 0);
	CHECK(espalier_removexattr(tree, "t/d", "user.a", 0) == ENODATA);
	CHECK(espalier_remove_tree(tree, "t") == 0 && espalier_remove_tree(tree, "u") == 0);
}

static int keep(void *context, size_t place, int error, const uint8_t *data, size_t length)
{
	char (*found)[16] = context;

	if (error != 0)
		snprintf(found[place], sizeof *found, "error %d", error);
	else
		snprintf(found[place], sizeof *found, "%.*s", (int)length, (const char *)data);
	return 0;
}

static int stop(void *context, size_t place, int error, const uint8_t *data, size_t length)
{
	(void)place, (void)error, (void)data, (void)length;
	++*(int *)context;
	return 1;
}

static void many(struct espalier_tree *tree)
{
	struct espalier_write files[4] = { none, none, none, none };
	struct espalier_piece pieces[4] = {
		{ "m/two", 0, UINT64_MAX }, { "m/none", 0, 1 }, { "m/one", 1, 2 }, { "m/link", 0, 9 },
	};
	const char *paths[4] = { "m/one", "m/none", "m/two", "m/link" };
	struct espalier_xattr xattrs[2] = {
		{ "user.one", (const uint8_t *)"a\0b", 3 }, { "user.two", NULL, 0 },
	};
	struct espalier_stat stats[4];
	char found[4][16];
	uint8_t *value;
	size_t length;
	int errors[4], calls = 0;

	files[0].path = "m/one", files[0].content = (const uint8_t *)"12345", files[0].length = 5;
	files[0].mode = 0640, files[0].mtime_ns = 77;
	files[1].path = "m/two";
	files[2].path = "m/link", files[2].content = (const uint8_t *)"one", files[2].length = 3;
	files[2].flags = ESPALIER_SYMLINK;
	CHECK(espalier_write_many(tree, files, 2, 0, errors) == 0);
	files[3].path = "m/one/below";
	CHECK(espalier_write_many(tree, files, 4, 0, errors) == ENOTDIR);
	CHECK(errors[0] == 0 && errors[1] == 0 && errors[2] == 0 && errors[3] == ENOTDIR);
	CHECK(espalier_write_many(tree, files, 2, ESPALIER_NO_REPLACE, errors) == EEXIST);
	CHECK(errors[0] == EEXIST && errors[1] == EEXIST);
	files[3].path = "n/one";
	CHECK(espalier_write_many(tree, files + 3, 1, ESPALIER_NO_DIRECTORIES, errors) == ENOENT);
	errors[0] = errors[1] = -1;
	CHECK(espalier_write_many(tree, files, 2, 64, errors) == EINVAL);
	CHECK(errors[0] == EINVAL && errors[1] == EINVAL);
	files[3].path = NULL, errors[0] = errors[1] = -1;
	CHECK(espalier_write_many(tree, files + 2, 2, 0, errors) == EINVAL);
	CHECK(errors[0] == EINVAL && errors[1] == EINVAL);
	CHECK(espalier_stat(tree, "n", 1, &stats[0]) == ENOENT);
	CHECK(espalier_write_many(tree, files, SIZE_MAX / 4, 0, errors) == EINVAL);
	CHECK(espalier_read_many(tree, pieces, SIZE_MAX / 2, stop, &calls) == EINVAL && calls == 0);
	files[3].path = "m/marked", files[3].xattrs = xattrs, files[3].xattr_count = 2;
	CHECK(espalier_write_many(tree, files + 3, 1, 0, errors) == 0);
	CHECK(espalier_getxattr(tree, "m/marked", "user.one", 0, &value, &length) == 0);
	CHECK(length == 3 && memcmp(value, "a\0b", 3) == 0);
	free(value);
	CHECK(espalier_getxattr(tree, "m/marked", "user.two", 0, &value, &length) == 0 && length == 0);
	free(value);
	xattrs[1].name = "trusted.two";
	CHECK(espalier_write_many(tree, files + 3, 1, 0, errors) == (geteuid() ? EPERM : 0));
	xattrs[1].name = "wrong";
	files[2].path = "m/beside", files[2].flags = 0;
	CHECK(espalier_write_many(tree, files + 2, 2, 0, errors) == EOPNOTSUPP);
	CHECK(errors[0] == 0 && errors[1] == EOPNOTSUPP);
	xattrs[1].name = NULL;
	CHECK(espalier_write_many(tree, files + 3, 1, 0, errors) == EINVAL);
	files[3].xattrs = NULL;
	CHECK(espalier_write_many(tree, files + 3, 1, 0, errors) == EINVAL);
	CHECK(espalier_unlink(tree, "m/marked") == 0 && espalier_unlink(tree, "m/beside") == 0);
	CHECK(espalier_write_many(tree, files, 0, 0, NULL) == 0);
	errors[0] = -1;
	CHECK(espalier_stat_many(tree, (const char *const[]){ NULL }, 1, 1, stats, errors) == EINVAL);
	CHECK(errors[0] == EINVAL);
	CHECK(espalier_stat_many(tree, paths, 4, 1, stats, errors) == 0);
	CHECK(errors[0] == 0 && errors[1] == ENOENT && errors[2] == 0 && errors[3] == 0);
	CHECK(stats[0].size == 5 && stats[0].mtime_ns == 77 && (stats[0].mode & 07777) == 0640);
	CHECK(stats[2].size == 0 && stats[3].ino == stats[0].ino);
	CHECK(espalier_read_many(tree, pieces, 4, keep, found) == 0);
	CHECK(strcmp(found[0], "") == 0 && strcmp(found[1], "error 2") == 0);
	CHECK(strcmp(found[2], "23") == 0 && strcmp(found[3], "12345") == 0);
	CHECK(espalier_read_many(tree, pieces, 4, stop, &calls) == 0 && calls == 1);
	CHECK(espalier_read_many(tree, pieces, 4, NULL, NULL) == EINVAL);
	CHECK(espalier_link(tree, "m/one", "m/name") == 0);
	CHECK(espalier_stat(tree, "m/name", 1, &stats[0]) == 0 && stats[0].nlink == 2);
	CHECK(espalier_truncate(tree, "m/name", 2) == 0);
	CHECK(espalier_stat(tree, "m/one", 1, &stats[0]) == 0 && stats[0].size == 2);
}

static void walks(struct espalier_tree *tree)
{
	const char *all[] = { "link", "name", "one", "two", NULL };
	struct espalier_filter filter = { .pattern = "t*" };
	struct espalier_walk *walk;
	struct espalier_entry entry;
	int at = 0;

	CHECK(espalier_clone_tree(tree, "m", "a/m") == 0);
	CHECK(espalier_clone_tree(tree, "m", "a/m") == EEXIST);
	CHECK(espalier_list(tree, "a/m", NULL, &walk) == 0);
	for (;; at++) {
		CHECK(espalier_walk_next(walk, &entry) == 0);
		if (entry.path == NULL || all[at] == NULL)
			break;
		CHECK(strcmp(entry.path, all[at]) == 0);
	}
	CHECK(at == 4 && entry.path == NULL);
	CHECK(espalier_walk_next(walk, &entry) == 0 && entry.path == NULL);
	espalier_walk_close(walk);
	/* What lies below the directories of a listing is not given. */
	CHECK(espalier_list(tree, "/", NULL, &walk) == 0);
	CHECK(espalier_walk_next(walk, &entry) == 0 && strcmp(entry.path, "a") == 0);
	CHECK(espalier_walk_next(walk, &entry) == 0 && strcmp(entry.path, "m") == 0);
	CHECK(S_ISDIR(entry.stat.mode) && entry.is_closed == 0);
	CHECK(espalier_walk_next(walk, &entry) == 0 && entry.path == NULL);
	espalier_walk_close(walk);
	CHECK(espalier_walk(tree, ".", &filter, &walk) == 0);
	CHECK(espalier_walk_next(walk, &entry) == 0 && strcmp(entry.path, "a/m/two") == 0);
	CHECK(espalier_walk_next(walk, &entry) == 0 && strcmp(entry.path, "m/two") == 0);
	espalier_walk_close(walk);
	CHECK(espalier_walk(tree, "m/one", NULL, &walk) == ENOTDIR && walk == NULL);
	espalier_walk_close(NULL);
	CHECK(espalier_remove_tree(tree, "a/m") == 0);
	CHECK(espalier_remove_tree(tree, "a/m") == ENOENT);
}

/* What a filter lets through, with a blank behind each. */
static const char *filtered(struct espalier_tree *tree, int is_list, struct espalier_filter filter)
{
	static char paths[256];
	struct espalier_walk *walk;
	struct espalier_entry entry;

	paths[0] = 0;
	CHECK((is_list ? espalier_list : espalier_walk)(tree, "s", &filter, &walk) == 0);
	while (espalier_walk_next(walk, &entry) == 0 && entry.path != NULL)
		snprintf(paths + strlen(paths), sizeof paths - strlen(paths), "%s ", entry.path);
	espalier_walk_close(walk);
	return paths;
}

static void filters(struct espalier_tree *tree)
{
	struct espalier_write files[3] = { none, none, none };
	struct espalier_filter filter = { .kinds = ESPALIER_KIND_FILE };
	struct espalier_walk *walk;
	int errors[3];

	files[0].path = "s/empty", files[0].mtime_ns = -7;
	files[1].path = "s/d/ten", files[1].content = (const uint8_t *)"0123456789", files[1].length = 10;
	files[1].mtime_ns = 1000;
	files[2] = files[1], files[2].path = "s/d/link", files[2].flags = ESPALIER_SYMLINK;
	CHECK(espalier_write_many(tree, files, 3, 0, errors) == 0);
	CHECK(strcmp(filtered(tree, 0, filter), "empty d/ten ") == 0);
	CHECK(strcmp(filtered(tree, 1, filter), "empty ") == 0);
	filter.flags = ESPALIER_FILTER_SIZE, filter.size_min = 1, filter.size_max = UINT64_MAX;
	CHECK(strcmp(filtered(tree, 0, filter), "d/ten ") == 0);
	CHECK(strcmp(filtered(tree, 1, filter), "") == 0);
	filter.size_min = filter.size_max = 0;
	CHECK(strcmp(filtered(tree, 0, filter), "empty ") == 0);
	filter.flags = ESPALIER_FILTER_MTIME, filter.mtime_min_ns = 0, filter.mtime_max_ns = 1000;
	CHECK(strcmp(filtered(tree, 0, filter), "d/ten ") == 0);
	filter.mtime_min_ns = INT64_MIN, filter.mtime_max_ns = -1;
	CHECK(strcmp(filtered(tree, 1, filter), "empty ") == 0);
	filter.flags = ESPALIER_FILTER_MTIME | ESPALIER_FILTER_SIZE, filter.size_min = 1;
	CHECK(strcmp(filtered(tree, 0, filter), "") == 0);
	filter.flags = 0, filter.kinds = ESPALIER_KIND_LINK | ESPALIER_KIND_DIRECTORY;
	CHECK(strcmp(filtered(tree, 0, filter), "d d/link ") == 0);
	filter.kinds = 1;
	CHECK(espalier_walk(tree, "s", &filter, &walk) == EINVAL && walk == NULL);
	filter.kinds = 0, filter.flags = 4;
	CHECK(espalier_list(tree, "s", &filter, &walk) == EINVAL && walk == NULL);
	CHECK(espalier_remove_tree(tree, "s") == 0);
}

static void files(struct espalier_tree *tree)
{
	struct espalier_file *file, *other;
	struct espalier_stat stat;
	uint8_t out[8];
	size_t got;

	CHECK(espalier_file_open(tree, "f", O_RDWR | O_CREAT | O_EXCL, 0600, &file) == 0);
	CHECK(espalier_file_open(tree, "f", O_RDWR | O_CREAT | O_EXCL, 0600, &other) == EEXIST);
	CHECK(other == NULL);
	CHECK(espalier_file_write(file, 3, (const uint8_t *)"content", 7) == 0);
	CHECK(espalier_rename(tree, "f", "g", ESPALIER_RENAME_REPLACE) == 0);
	CHECK(espalier_file_read(file, 1, out, sizeof out, &got) == 0 && got == 8);
	CHECK(memcmp(out, "\0\0conten", 8) == 0);
	CHECK(espalier_file_read(file, 10, out, sizeof out, &got) == 0 && got == 0);
	CHECK(espalier_file_truncate(file, 4) == 0);
	CHECK(espalier_file_stat(file, &stat) == 0 && stat.size == 4 && S_ISREG(stat.mode));
	CHECK(espalier_file_sync(file) == 0);
	CHECK(espalier_file_open(tree, "g", O_RDONLY, 0, &other) == 0);
	CHECK(espalier_file_write(other, 0, out, 1) == EBADF);
	espalier_file_close(other);
	CHECK(espalier_file_open(tree, "g", O_RDONLY | O_APPEND, 0, &other) == EINVAL);
	espalier_file_close(file);
	espalier_file_close(NULL);
}

static void changes(struct espalier_tree *tree)
{
	struct espalier_write file = none;
	struct espalier_changes *found, *later;
	const uint8_t *position = NULL;
	size_t length = 0;
	int error, is_told = 0;

	CHECK(espalier_changes(tree, "m", NULL, 0, &found) == 0);
	CHECK(espalier_changes_everything(found) == 1 && espalier_changes_count(found) == 0);
	position = espalier_changes_position(found, &length);
	CHECK(espalier_changes(tree, "m", position, length, &later) == 0);
	espalier_changes_free(found);
	file.path = "m/new";
	CHECK(espalier_write_many(tree, &file, 1, 0, &error) == 0);
	position = espalier_changes_position(later, &length);
	CHECK(espalier_changes(tree, "m", position, length, &found) == 0);
	for (size_t at = 0; at < espalier_changes_count(found); at++)
		is_told |= strcmp(espalier_changes_path(found, at), "new") == 0;
	CHECK(is_told || espalier_changes_everything(found));
	CHECK(espalier_changes_path(found, espalier_changes_count(found)) == NULL);
	espalier_changes_free(later);
	espalier_changes_free(found);
	espalier_changes_free(NULL);
}

/* The paths that a watch tells next, with a blank behind each; "*" if it is everything. */
static const char *told(struct espalier_watch *watch, int wait_ms)
{
	static char paths[256];
	struct espalier_changes *found;

	paths[0] = 0;
	CHECK(espalier_watch_wait(watch, wait_ms, &found) == 0);
	if (espalier_changes_everything(found))
		strcpy(paths, "*");
	for (size_t at = 0; at < espalier_changes_count(found); at++)
		snprintf(paths + strlen(paths), sizeof paths - strlen(paths), "%s ", espalier_changes_path(found, at));
	espalier_changes_free(found);
	return paths;
}

static void watches(struct espalier_tree *tree)
{
	struct espalier_watch *watch, *later;
	struct espalier_changes *found;
	const uint8_t *position;
	uint8_t stored[128];
	size_t length = 0;
	int is_known;

	CHECK(espalier_mkdir(tree, "w", 0755, 0) == 0);
	CHECK(espalier_watch(tree, "w", NULL, 0, &watch) == 0);
	CHECK(strcmp(told(watch, -1), "*") == 0);
	CHECK(strcmp(told(watch, 0), "") == 0);
	CHECK(espalier_mkdir(tree, "w/one", 0755, 0) == 0);
	CHECK(espalier_mkdir(tree, "outside", 0755, 0) == 0);
	CHECK(strcmp(told(watch, -1), "one ") == 0);
	CHECK(strcmp(told(watch, 1), "") == 0);
	/* Where a watch is after its first second is where a later one goes on. */
	do {
		told(watch, 20);
		position = espalier_watch_position(watch, &length);
		CHECK(espalier_changes(tree, "w", position, length, &found) == 0);
		is_known = !espalier_changes_everything(found) && espalier_changes_count(found) == 0;
		espalier_changes_free(found);
	} while (!is_known);
	CHECK(length > 0 && length <= sizeof stored);
	memcpy(stored, position, length);
	espalier_watch_close(watch);
	CHECK(espalier_mkdir(tree, "w/two", 0755, 0) == 0);
	CHECK(espalier_watch(tree, "w", stored, length, &later) == 0);
	CHECK(strcmp(told(later, -1), "two ") == 0);
	CHECK(espalier_rmdir(tree, "w/two") == 0);
	CHECK(strncmp(told(later, -1), "two", 3) == 0);
	CHECK(strcmp(told(later, 0), "") == 0);
	espalier_watch_close(later);
	CHECK(espalier_clone_tree(tree, "w", "before") == 0);
	CHECK(espalier_mkdir(tree, "w/three", 0755, 0) == 0);
	CHECK(espalier_watch_since(tree, "w", "before", &watch) == 0);
	CHECK(strcmp(told(watch, -1), "three ") == 0);
	CHECK(strcmp(told(watch, 0), "") == 0);
	CHECK(espalier_remove_tree(tree, "before") == 0 && espalier_remove_tree(tree, "w") == 0);
	CHECK(espalier_watch_wait(watch, -1, &found) == ENOENT && found == NULL);
	espalier_watch_close(watch);
	espalier_watch_close(NULL);
	CHECK(espalier_rmdir(tree, "outside") == 0);
	CHECK(espalier_watch(tree, "none", NULL, 0, &watch) == ENOENT && watch == NULL);
	CHECK(espalier_watch(tree, "m", NULL, 3, &watch) == EINVAL);
	CHECK(espalier_watch(tree, "m", NULL, 0, NULL) == EINVAL);
	CHECK(espalier_watch_since(tree, "m", "none", &watch) == ENOENT && watch == NULL);
	CHECK(espalier_watch_wait(NULL, 0, &found) == EINVAL && found == NULL);
	CHECK(espalier_watch_position(NULL, &length) == NULL);
}

static void bad_arguments(struct espalier_tree *tree, const char *place)
{
	struct espalier_options unknown = { .flags = 4 };
	struct espalier_tree *other;
	struct espalier_stat stat;

	CHECK(espalier_open(NULL, NULL, &other) == EINVAL);
	CHECK(espalier_open(place, NULL, NULL) == EINVAL);
	CHECK(espalier_open(place, &unknown, &other) == EINVAL);
	CHECK(espalier_open("/nowhere at all", NULL, &other) == ENOENT && other == NULL);
	CHECK(espalier_open("/", NULL, &other) == ENOTTY && other == NULL);
	CHECK(espalier_open("/dev/null", NULL, &other) == ENOTDIR);
	CHECK(espalier_format("/", 1 << 20) == EEXIST);
	CHECK(espalier_stat(NULL, "a", 1, &stat) == EINVAL);
	CHECK(espalier_stat(tree, NULL, 1, &stat) == EINVAL);
	CHECK(espalier_stat(tree, ".", 1, NULL) == EINVAL);
	CHECK(espalier_stat(tree, "", 1, &stat) == ENOENT);
	CHECK(espalier_close(NULL) == 0);
	CHECK(espalier_version()[0] != 0);
}

static void subtrees(struct espalier_tree *tree)
{
	struct espalier_tree *below, *other;
	struct espalier_stat stat;
	uint8_t *content;
	size_t length;

	CHECK(espalier_mkdir(tree, "p/q/r", 0755, 1) == 0);
	CHECK(espalier_subtree(tree, "p/q", &below) == 0);
	CHECK(espalier_rename(tree, "p/q", "p/s", ESPALIER_RENAME_REPLACE) == 0);
	CHECK(espalier_mkdir(below, "new", 0755, 0) == 0);
	CHECK(espalier_stat(tree, "p/s/new", 0, &stat) == 0);
	CHECK(espalier_stat(below, "../../new", 0, &stat) == 0);
	CHECK(espalier_read(below, "../../m/one", &content, &length) == ENOENT);
	CHECK(espalier_subtree(tree, "p/q", &other) == ENOENT && other == NULL);
	CHECK(espalier_subtree(tree, "m/one", &other) == ENOTDIR && other == NULL);
	CHECK(espalier_subtree(NULL, "m", &other) == EINVAL && other == NULL);
	CHECK(espalier_subtree(tree, "m", NULL) == EINVAL);
	CHECK(espalier_close(below) == 0);
	CHECK(espalier_remove_tree(tree, "p") == 0);
}

/* A child goes on with a tree of a mount, and is told that it cannot with an image in use. */
static void forks(struct espalier_tree *tree, int is_image)
{
	struct espalier_stat stat;
	int status = -1;
	pid_t child = fork();

	if (child == 0)
		_exit(espalier_stat(tree, "m/one", 1, &stat));
	CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
	CHECK(WEXITSTATUS(status) == (is_image ? EBUSY : 0));
	CHECK(espalier_stat(tree, "m/one", 1, &stat) == 0);
}

int main(int argc, char **argv)
{
	struct espalier_tree *tree;
	struct stat place;

	if (argc != 2 || stat(argv[1], &place) != 0) {
		fprintf(stderr, "usage: calls PLACE\n");
		return 2;
	}
	if (espalier_open(argv[1], NULL, &tree) != 0) {
		fprintf(stderr, "%s\n", espalier_message());
		return 1;
	}
	bad_arguments(tree, argv[1]);
	names(tree);
	trees(tree);
	many(tree);
	walks(tree);
	filters(tree);
	files(tree);
	changes(tree);
	watches(tree);
	subtrees(tree);
	forks(tree, S_ISREG(place.st_mode));
	CHECK(espalier_sync(tree) == 0);
	CHECK(espalier_close(tree) == 0);
	return failed;
}
