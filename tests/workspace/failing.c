/* Loaded before the C library: counts what a process does to files below one folder, and lets the n-th fail or kill.
   It sees the calls of SQLite and of Python alike. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/types.h>

static char root[PATH_MAX] = "";
static long calls = 0, due = 0;
static int mode = 0, code = 0, record = -1; /* modes: 0 count, 1 fail, 2 kill before, 3 kill amid a write, 4 full from then on */

void arm(const char *folder, long number, int how, int error, int log_file) {
    strncpy(root, folder, sizeof root - 1);
    calls = 0, due = number, mode = how, code = error, record = log_file;
}
void disarm(void) { root[0] = 0; record = -1; }
long counted(void) { return calls; }

static ssize_t (*real_write)(int, const void *, size_t);
static int of_file(int fd, char *path) {
    char link[64];
    if (!root[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return !strncmp(path, root, strlen(root));
}
static int of_name(const char *name, char *path) {
    char cwd[PATH_MAX];
    if (!root[0]) return 0;
    if (name[0] == '/') snprintf(path, PATH_MAX, "%s", name);
    else snprintf(path, PATH_MAX, "%s/%s", getcwd(cwd, sizeof cwd) ? cwd : "", name);
    return !strncmp(path, root, strlen(root));
}
static void put(const void *data, size_t size) { if (real_write(record, data, size) != (ssize_t)size) abort(); }
static void note(char kind, const char *path, const char *other, long offset, const void *data, long size) {
    char line[2 * PATH_MAX + 64];
    if (record < 0) return;
    put(line, snprintf(line, sizeof line, "%c\t%s\t%s\t%ld\t%ld\n", kind, path, other, offset, data ? size : 0));
    if (data) put(data, size);
}
/* Whether this call has to fail; a kill does not return. */
static int fails(int grows) {
    calls++;
    if (calls == due && (mode == 2 || mode == 3)) kill(getpid(), SIGKILL);
    if ((mode == 1 && calls == due) || (mode == 4 && grows && calls >= due)) { errno = code; return 1; }
    return 0;
}
#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *data, size_t size) {
    char path[PATH_MAX];
    if (!real_write) real_write = dlsym(RTLD_NEXT, "write");
    if (of_file(fd, path)) {
        if (mode == 3 && calls + 1 == due) real_write(fd, data, size / 2);
        if (fails(1)) return -1;
        note('w', path, "", lseek(fd, 0, SEEK_CUR), data, size);
    }
    return real_write(fd, data, size);
}
static ssize_t at(int fd, const void *data, size_t size, off64_t offset) {
    char path[PATH_MAX];
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    if (of_file(fd, path)) {
        if (mode == 3 && calls + 1 == due) real(fd, data, size / 2, offset);
        if (fails(1)) return -1;
        note('w', path, "", offset, data, size);
    }
    return real(fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return at(fd, data, size, offset); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return at(fd, data, size, offset); }
static int shorten(int fd, off64_t size) {
    char path[PATH_MAX];
    REAL(int, "ftruncate64", int, off64_t);
    if (of_file(fd, path)) { if (fails(0)) return -1; note('t', path, "", size, 0, 0); }
    return real(fd, size);
}
int ftruncate64(int fd, off64_t size) { return shorten(fd, size); }
int ftruncate(int fd, off_t size) { return shorten(fd, size); }
int fsync(int fd) {
    char path[PATH_MAX];
    REAL(int, "fsync", int);
    if (of_file(fd, path)) { if (fails(0)) return -1; note('s', path, "", 0, 0, 0); }
    return real(fd);
}
int fdatasync(int fd) {
    char path[PATH_MAX];
    REAL(int, "fdatasync", int);
    if (of_file(fd, path)) { if (fails(0)) return -1; note('s', path, "", 0, 0, 0); }
    return real(fd);
}
int rename(const char *from, const char *to) {
    char path[PATH_MAX], other[PATH_MAX];
    REAL(int, "rename", const char *, const char *);
    if (of_name(from, path) && of_name(to, other)) { if (fails(0)) return -1; note('r', path, other, 0, 0, 0); }
    return real(from, to);
}
int unlink(const char *name) {
    char path[PATH_MAX];
    REAL(int, "unlink", const char *);
    if (of_name(name, path)) { if (fails(0)) return -1; note('u', path, "", 0, 0, 0); }
    return real(name);
}
int mkdir(const char *name, mode_t how) {
    char path[PATH_MAX];
    REAL(int, "mkdir", const char *, mode_t);
    if (of_name(name, path)) { if (fails(1)) return -1; note('m', path, "", 0, 0, 0); }
    return real(name, how);
}
