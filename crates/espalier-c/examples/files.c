/* Makes three files with one call, copies their directory without copying data, and reads parts of
 * the copies with one more call.
 *
 * usage: files PLACE   (a directory in a mount, an image, or IMAGE:/DIRECTORY)
 */
#include <espalier-tree.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int error, const char *what)
{
	if (error != 0) {
		fprintf(stderr, "%s: %s\n", what, espalier_message());
		exit(1);
	}
}

static int show(void *paths, size_t place, int error, const uint8_t *data, size_t length)
{
	const char *path = ((const struct espalier_piece *)paths)[place].path;

	check(error, path);
	printf("%s: %.*s\n", path, (int)length, (const char *)data);
	return 0;
}

int main(int argc, char **argv)
{
	struct espalier_tree *tree;
	struct espalier_walk *walk;
	struct espalier_entry entry;
	struct espalier_write files[3];
	struct espalier_piece pieces[3] = {
		{ "example/copy/two", 0, UINT64_MAX },
		{ "example/copy/one", 0, UINT64_MAX },
		{ "example/copy/deep/three", 2, 3 },
	};
	const char *paths[] = { "example/data/one", "example/data/two", "example/data/deep/three" };
	const char *contents[] = { "1", "22", "33333" };
	int errors[3];

	if (argc != 2) {
		fprintf(stderr, "usage: files PLACE\n");
		return 2;
	}
	check(espalier_open(argv[1], NULL, &tree), "open");
	for (int at = 0; at < 3; at++) {
		files[at] = (struct espalier_write){
			.path = paths[at],
			.content = (const uint8_t *)contents[at],
			.length = strlen(contents[at]),
			.mtime_ns = ESPALIER_KEEP,
			.mode = 0640,
			.uid = ESPALIER_NONE,
			.gid = ESPALIER_NONE,
		};
	}
	check(espalier_write_many(tree, files, 3, 0, errors), "write");
	check(espalier_clone_tree(tree, "example/data", "example/copy"), "clone");
	check(espalier_read_many(tree, pieces, 3, show, pieces), "read");
	check(espalier_walk(tree, "example", NULL, &walk), "walk");
	for (;;) {
		check(espalier_walk_next(walk, &entry), "walk");
		if (entry.path == NULL)
			break;
		printf("%06o %4llu %s\n", (unsigned)entry.stat.mode,
		       (unsigned long long)entry.stat.size, entry.path);
	}
	espalier_walk_close(walk);
	check(espalier_remove_tree(tree, "example"), "remove");
	check(espalier_close(tree), "close");
	return 0;
}
