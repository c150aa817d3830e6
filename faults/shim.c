/* Count, record and break the file operations of a process, from below: preloaded in front of the C library.
 *
 * Every call that touches a path under the control page's root gets the next number. The call whose number is the
 * target is preceded or followed by SIGKILL, fails with an error number, or writes only half of its bytes. With a trace,
 * every call is appended to a file, with the bytes it wrote, so that the state after a power cut can be rebuilt.
 *
 * The control page is a shared mapping: all processes of a command count together. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, SYNC, RENAME, UNLINK, MKDIR, RMDIR, LINK, SYMLINK, TRUNCATE, CHMOD, OPEN_READ, READ };
enum { NONE, KILL_BEFORE, KILL_AFTER, FAIL_ONCE, FAIL_ON, SHORT_ONCE, SHORT_THEN_FAIL, KILL_MIDWAY };

/* The layout is repeated in operations.py. */
struct control {
    int64_t count, target;
    int32_t action, error, reads, hit;
    char root[1024], trace[1024];
};

struct record {
    int64_t number, offset, length;
    int32_t kind, flags;
    int32_t path, other, result, unused;
};

static struct control *control;

/* Errors of the shim itself must not look like the program's. */
static void give_up(const char *why) {
    dprintf(2, "faults shim: %s\n", why);
    syscall(SYS_exit_group, 97);
}

void faults_arm(const char *path) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) give_up("cannot open the control page");
    void *page = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) give_up("cannot map the control page");
    syscall(SYS_close, fd);
    control = page;
}

__attribute__((constructor)) static void arm_from_environment(void) {
    const char *path = getenv("FAULTS_CONTROL");
    if (path != NULL && *path) faults_arm(path);
}

static void absolute(int folder, const char *name, char *out) {
    char base[PATH_MAX] = "";
    if (name == NULL) name = "";
    if (name[0] != '/') {
        if (folder == AT_FDCWD) {
            if (syscall(SYS_getcwd, base, sizeof base) < 0) base[0] = 0;
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
            base[size < 0 ? 0 : size] = 0;
        }
    }
    snprintf(out, PATH_MAX, "%s%s%s", base, *base && *name ? "/" : "", name);
}

static int inside(const char *path) {
    size_t size = strlen(control->root);
    return size && strncmp(path, control->root, size) == 0 && (path[size] == 0 || path[size] == '/');
}

/* What one call does: decided before it, told after it. */
struct call {
    int64_t number;
    int action;
    char path[PATH_MAX], other[PATH_MAX];
};

static int begin(struct call *call, int kind, int folder, const char *name, int other_folder, const char *other) {
    call->number = -1;
    call->action = NONE;
    if (control == NULL || (kind >= OPEN_READ && !control->reads)) return 0;
    int kept = errno;
    absolute(folder, name, call->path);
    call->other[0] = 0;
    if (other != NULL) absolute(other_folder, other, call->other);
    errno = kept;
    if (!inside(call->path) && !(other != NULL && inside(call->other))) return 0;
    call->number = __atomic_fetch_add(&control->count, 1, __ATOMIC_SEQ_CST);
    int64_t target = control->target;
    if (target < 0 || control->action == NONE) return 1;
    int later = control->action == FAIL_ON || control->action == SHORT_THEN_FAIL;
    if (call->number == target) call->action = control->action;
    else if (later && call->number > target) call->action = FAIL_ON;
    if (call->action != NONE) control->hit = 1;
    if (kind != WRITE && call->action >= SHORT_ONCE && call->action <= KILL_MIDWAY)
        call->action = call->action == SHORT_THEN_FAIL ? FAIL_ON : call->action == KILL_MIDWAY ? KILL_AFTER : NONE;
    if (call->action == KILL_BEFORE) syscall(SYS_kill, getpid(), SIGKILL);
    return 1;
}

static int fails(struct call *call) {
    if (call->action != FAIL_ONCE && call->action != FAIL_ON) return 0;
    errno = control->error;
    return 1;
}

static void end(struct call *call, int kind, int flags, int64_t offset, int64_t length, int64_t result,
                const void *data) {
    if (call->number < 0) return;
    int kept = errno;
    if (control->trace[0]) {
        int fd = syscall(SYS_openat, AT_FDCWD, control->trace, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        struct record record = {call->number, offset, length, kind, flags, (int32_t)strlen(call->path),
                                (int32_t)strlen(call->other), result < 0 ? -kept : 0, 0};
        size_t bytes = kind == WRITE && result > 0 ? (size_t)result : 0;
        record.length = kind == WRITE ? (int64_t)bytes : length;
        struct iovec parts[4] = {{&record, sizeof record},
                                 {call->path, (size_t)record.path},
                                 {call->other, (size_t)record.other},
                                 {(void *)data, bytes}};
        if (fd < 0 || syscall(SYS_writev, fd, parts, 4) < 0) give_up("cannot write the trace");
        syscall(SYS_close, fd);
    }
    if (call->action == KILL_AFTER || call->action == KILL_MIDWAY) syscall(SYS_kill, getpid(), SIGKILL);
    errno = kept;
}

/* Opening. */

static int open_at(int folder, const char *name, int flags, mode_t mode) {
    struct call call;
    int writes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
    int kind = writes ? OPEN : OPEN_READ;
    begin(&call, kind, folder, name, 0, NULL);
    int result = fails(&call) ? -1 : (int)syscall(SYS_openat, folder, name, flags, mode);
    end(&call, kind, flags, 0, mode, result, NULL);
    return result;
}

#define OPEN_MODE(last)                                          \
    mode_t mode = 0;                                             \
    if (flags & (O_CREAT | O_TMPFILE)) {                         \
        va_list more;                                            \
        va_start(more, last);                                    \
        mode = va_arg(more, mode_t);                             \
        va_end(more);                                            \
    }

int open(const char *name, int flags, ...) { OPEN_MODE(flags) return open_at(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { OPEN_MODE(flags) return open_at(AT_FDCWD, name, flags, mode); }
int openat(int at, const char *name, int flags, ...) { OPEN_MODE(flags) return open_at(at, name, flags, mode); }
int openat64(int at, const char *name, int flags, ...) { OPEN_MODE(flags) return open_at(at, name, flags, mode); }
int creat(const char *name, mode_t mode) { return open_at(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* Writing and reading. */

static int64_t place(int fd) {
    int flags = (int)syscall(SYS_fcntl, fd, F_GETFL, 0);
    return syscall(SYS_lseek, fd, 0, flags >= 0 && flags & O_APPEND ? SEEK_END : SEEK_CUR);
}

static ssize_t write_at(int fd, const void *data, size_t size, int64_t offset) {
    struct call call;
    int64_t where = offset;
    if (begin(&call, WRITE, fd, NULL, 0, NULL) && where < 0) where = place(fd);
    if (call.action >= SHORT_ONCE && call.action <= KILL_MIDWAY) size = size > 1 ? size / 2 : size;
    ssize_t result = -1;
    if (!fails(&call))
        result = offset < 0 ? syscall(SYS_write, fd, data, size) : syscall(SYS_pwrite64, fd, data, size, offset);
    end(&call, WRITE, 0, where, (int64_t)size, result, data);
    return result;
}

ssize_t write(int fd, const void *data, size_t size) { return write_at(fd, data, size, -1); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return write_at(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return write_at(fd, data, size, offset); }

/* A short write is allowed: one part at a time keeps the rest simple. */
ssize_t writev(int fd, const struct iovec *parts, int number) {
    struct call call;
    if (control == NULL || number == 0 || !begin(&call, WRITE, fd, NULL, 0, NULL))
        return syscall(SYS_writev, fd, parts, number);
    __atomic_fetch_sub(&control->count, 1, __ATOMIC_SEQ_CST);
    int first = 0;
    while (first < number - 1 && parts[first].iov_len == 0) first++;
    return write_at(fd, parts[first].iov_base, parts[first].iov_len, -1);
}

/* Copies inside the kernel are refused, so that callers fall back to read and write. */
ssize_t sendfile(int out, int in, off_t *offset, size_t count) {
    if (control != NULL) { errno = ENOTSOCK; return -1; }
    return syscall(SYS_sendfile, out, in, offset, count);
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t count) { return sendfile(out, in, offset, count); }
ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t size, unsigned flags) {
    if (control != NULL) { errno = EXDEV; return -1; }
    return syscall(SYS_copy_file_range, in, in_at, out, out_at, size, flags);
}

ssize_t read(int fd, void *data, size_t size) {
    struct call call;
    begin(&call, READ, fd, NULL, 0, NULL);
    ssize_t result = fails(&call) ? -1 : syscall(SYS_read, fd, data, size);
    end(&call, READ, 0, 0, result, result, NULL);
    return result;
}

/* Everything else is a check, a system call and a note. */

#define SIMPLE(kind, folder, name, other_folder, other, flags, length, perform)  \
    struct call call;                                                            \
    begin(&call, kind, folder, name, other_folder, other);                       \
    int result = fails(&call) ? -1 : (int)(perform);                             \
    end(&call, kind, flags, 0, length, result, NULL);                            \
    return result;

int fsync(int fd) { SIMPLE(SYNC, fd, NULL, 0, NULL, 0, 0, syscall(SYS_fsync, fd)) }
int fdatasync(int fd) { SIMPLE(SYNC, fd, NULL, 0, NULL, 0, 0, syscall(SYS_fdatasync, fd)) }

static int rename_at(int from, const char *name, int to, const char *other, unsigned flags) {
    SIMPLE(RENAME, from, name, to, other, (int)flags, 0, syscall(SYS_renameat2, from, name, to, other, flags))
}
int rename(const char *name, const char *other) { return rename_at(AT_FDCWD, name, AT_FDCWD, other, 0); }
int renameat(int from, const char *name, int to, const char *other) { return rename_at(from, name, to, other, 0); }
int renameat2(int from, const char *name, int to, const char *other, unsigned flags) {
    return rename_at(from, name, to, other, flags);
}

int unlinkat(int at, const char *name, int flags) {
    int kind = flags & AT_REMOVEDIR ? RMDIR : UNLINK;
    SIMPLE(kind, at, name, 0, NULL, 0, 0, syscall(SYS_unlinkat, at, name, flags))
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int at, const char *name, mode_t mode) {
    SIMPLE(MKDIR, at, name, 0, NULL, 0, mode, syscall(SYS_mkdirat, at, name, mode))
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int linkat(int from, const char *name, int to, const char *other, int flags) {
    SIMPLE(LINK, from, name, to, other, 0, 0, syscall(SYS_linkat, from, name, to, other, flags))
}
int link(const char *name, const char *other) { return linkat(AT_FDCWD, name, AT_FDCWD, other, 0); }

int symlinkat(const char *target, int at, const char *name) {
    SIMPLE(SYMLINK, at, name, 0, NULL, 0, 0, syscall(SYS_symlinkat, target, at, name))
}
int symlink(const char *target, const char *name) { return symlinkat(target, AT_FDCWD, name); }

int ftruncate(int fd, off_t size) { SIMPLE(TRUNCATE, fd, NULL, 0, NULL, 0, size, syscall(SYS_ftruncate, fd, size)) }
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }
int truncate(const char *name, off_t size) {
    SIMPLE(TRUNCATE, AT_FDCWD, name, 0, NULL, 0, size, syscall(SYS_truncate, name, size))
}
int truncate64(const char *name, off64_t size) { return truncate(name, size); }

int fchmodat(int at, const char *name, mode_t mode, int flags) {
    (void)flags;
    SIMPLE(CHMOD, at, name, 0, NULL, 0, mode, syscall(SYS_fchmodat, at, name, mode))
}
int chmod(const char *name, mode_t mode) { return fchmodat(AT_FDCWD, name, mode, 0); }
int fchmod(int fd, mode_t mode) { SIMPLE(CHMOD, fd, NULL, 0, NULL, 0, mode, syscall(SYS_fchmod, fd, mode)) }
