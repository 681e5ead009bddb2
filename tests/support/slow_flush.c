/* Preloaded into a node: a flush takes longer while a file named after its process, or "all", is in SLOW_FLUSHES: by as
   many milliseconds as the file says, 2000 if it is empty. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_as_said(const char *folder, const char *name) {
    char path[4096];
    int ms = 2000;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    if (fscanf(file, "%d", &ms) != 1)
        ms = 2000;
    fclose(file);
    usleep((useconds_t)ms * 1000);
}

static int flush(const char *name, int fd) {
    const char *folder = getenv("SLOW_FLUSHES");
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    if (folder) {
        char process[32];
        snprintf(process, sizeof process, "%d", (int)getpid());
        wait_as_said(folder, process);
        wait_as_said(folder, "all");
    }
    return real(fd);
}

int fsync(int fd) { return flush("fsync", fd); }
int fdatasync(int fd) { return flush("fdatasync", fd); }
