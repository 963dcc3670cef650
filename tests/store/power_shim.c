/* Writes down what a process does to the files below one folder, in order, so that any loss of power can be replayed.
 *
 * Loaded with LD_PRELOAD. POWER_FOLDER: the folder (an absolute path). POWER_LOG: where to write.
 * One entry: u8 kind, u64 a, u64 b, u32 length, then so many bytes.
 *   W  write          a = file, b = offset, the bytes
 *   T  truncate       a = file, b = size
 *   S  sync of a file a = file
 *   O  created        a = file, the name
 *   D  sync of a folder, the name: the names in it are as they are now
 *   M  a folder made, the name
 *   R  renamed        a = file, the new name
 *   U  unlinked       the name
 *   A  acknowledged   whatever the process writes to standard output
 * A file is known by its inode, anew whenever it is created; its name belongs to the folder, not to it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[4096];
static size_t folder_length;
static int out = -1;

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_ftruncate)(int, off64_t);
static int (*real_rename)(const char *, const char *);
static int (*real_unlink)(const char *);
static int (*real_mkdir)(const char *, mode_t);
static int (*real_openat)(int, const char *, int, ...);

__attribute__((constructor)) static void begin(void) {
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_rename = dlsym(RTLD_NEXT, "rename");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    real_mkdir = dlsym(RTLD_NEXT, "mkdir");
    real_openat = dlsym(RTLD_NEXT, "openat64");
    const char *where = getenv("POWER_FOLDER"), *log = getenv("POWER_LOG");
    if (where && log) {
        strncpy(folder, where, sizeof folder - 1);
        folder_length = strlen(folder);
        out = real_openat(AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
}

static void note(char kind, uint64_t a, uint64_t b, const void *bytes, uint32_t length) {
    char head[21];
    head[0] = kind;
    memcpy(head + 1, &a, 8);
    memcpy(head + 9, &b, 8);
    memcpy(head + 17, &length, 4);
    struct iovec parts[2] = {{head, sizeof head}, {(void *)bytes, length}};
    if (writev(out, parts, 2) != (ssize_t)(sizeof head + length)) abort();
}

/* The path of an open file, below the folder and without it; NULL if it is elsewhere. Empty: the folder itself. */
static const char *place(int fd, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = out < 0 || fd < 0 ? -1 : readlink(link, path, size - 1);
    if (length < (ssize_t)folder_length || strncmp(path, folder, folder_length)) return NULL;
    path[length] = 0;
    if (path[folder_length] == 0) return path + folder_length;
    return path[folder_length] == '/' ? path + folder_length + 1 : NULL;
}

/* The inode if the file lies in the folder, -1 otherwise. The shared memory of SQLite is no data. */
static int64_t number(int fd, struct stat *about) {
    char path[4200];
    const char *name = place(fd, path, sizeof path);
    if (!name || strstr(name, "-shm") || fstat(fd, about) || !S_ISREG(about->st_mode)) return -1;
    return (int64_t)about->st_ino;
}

static const char *inside(const char *path) {
    if (out < 0 || strncmp(path, folder, folder_length) || path[folder_length] != '/') return NULL;
    return strstr(path, "-shm") ? NULL : path + folder_length + 1;
}

static int opened(int at, const char *path, int flags, mode_t mode) {
    pthread_mutex_lock(&lock);
    int is_new = (flags & O_CREAT) && faccessat(at, path, F_OK, 0);
    int fd = real_openat(at, path, flags, mode);
    struct stat about;
    const char *name = inside(path);
    if (fd >= 0 && name && (is_new || (flags & O_TRUNC))) {
        int64_t file = number(fd, &about);
        if (file >= 0) note(is_new ? 'O' : 'T', (uint64_t)file, 0, name, is_new ? strlen(name) : 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define WITH_MODE                                  \
    mode_t mode = 0;                               \
    if (flags & (O_CREAT | O_TMPFILE)) {           \
        va_list more;                              \
        va_start(more, flags);                     \
        mode = va_arg(more, mode_t);               \
        va_end(more);                              \
    }

int open(const char *path, int flags, ...) { WITH_MODE return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { WITH_MODE return opened(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { WITH_MODE return opened(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { WITH_MODE return opened(at, path, flags, mode); }

static void wrote(int fd, const void *bytes, ssize_t done, off64_t offset) {
    struct stat about;
    int64_t file = done > 0 ? number(fd, &about) : -1;
    if (file >= 0) note('W', (uint64_t)file, (uint64_t)offset, bytes, (uint32_t)done);
}

ssize_t write(int fd, const void *bytes, size_t size) {
    if (out < 0 || fd == 2) return real_write(fd, bytes, size);
    pthread_mutex_lock(&lock);
    off64_t offset = lseek64(fd, 0, SEEK_CUR);
    ssize_t done = real_write(fd, bytes, size);
    if (fd == 1) note('A', 0, 0, bytes, (uint32_t)size);
    else wrote(fd, bytes, done, offset);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset) {
    pthread_mutex_lock(&lock);
    ssize_t done = real_pwrite(fd, bytes, size, offset);
    wrote(fd, bytes, done, offset);
    pthread_mutex_unlock(&lock);
    return done;
}
ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) { return pwrite64(fd, bytes, size, offset); }

/* What is written while a sync is under way is noted after it and counts as not synced: the sync is noted at its end,
 * and the lock is held meanwhile. */
static int synced(int fd, int (*sync)(int)) {
    struct stat about;
    char path[4200];
    pthread_mutex_lock(&lock);
    int done = 0;
    if (out < 0) done = sync(fd); /* under the shim nothing really has to reach the disk */
    else {
        int64_t file = number(fd, &about);
        const char *name = place(fd, path, sizeof path);
        if (file >= 0) note('S', (uint64_t)file, 0, NULL, 0);
        else if (name && !fstat(fd, &about) && S_ISDIR(about.st_mode)) note('D', 0, 0, name, strlen(name));
    }
    pthread_mutex_unlock(&lock);
    return done;
}
int fsync(int fd) { return synced(fd, real_fsync); }
int fdatasync(int fd) { return synced(fd, real_fdatasync); }

int ftruncate64(int fd, off64_t size) {
    struct stat about;
    pthread_mutex_lock(&lock);
    int done = real_ftruncate(fd, size);
    int64_t file = done ? -1 : number(fd, &about);
    if (file >= 0) note('T', (uint64_t)file, (uint64_t)size, NULL, 0);
    pthread_mutex_unlock(&lock);
    return done;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int rename(const char *from, const char *to) {
    pthread_mutex_lock(&lock);
    struct stat about;
    const char *name = inside(to);
    int fd = name ? real_openat(AT_FDCWD, from, O_RDONLY | O_CLOEXEC) : -1;
    int64_t file = number(fd, &about);
    if (fd >= 0) close(fd);
    int done = real_rename(from, to);
    if (!done && file >= 0) note('R', (uint64_t)file, 0, name, strlen(name));
    pthread_mutex_unlock(&lock);
    return done;
}

int unlink(const char *path) {
    pthread_mutex_lock(&lock);
    const char *name = inside(path);
    int done = real_unlink(path);
    if (!done && name) note('U', 0, 0, name, strlen(name));
    pthread_mutex_unlock(&lock);
    return done;
}

int mkdir(const char *path, mode_t mode) {
    pthread_mutex_lock(&lock);
    int done = real_mkdir(path, mode);
    const char *name = inside(path);
    if (!done && name) note('M', 0, 0, name, strlen(name));
    pthread_mutex_unlock(&lock);
    return done;
}
