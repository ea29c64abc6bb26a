/* What PyTorch asks of the driver's memory pool under backend:cudaMallocAsync, and what it gets.
 *
 *     gcc -shared -fPIC -O1 -o pool_trace.so pool_trace.c -ldl
 *     PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync POOL_TRACE=out.bin LD_PRELOAD=./pool_trace.so python train.py
 *
 * Each record is five 64-bit numbers: 1 (allocated) or 2 (freed) or 3 (trimmed) or 4 (the host waited for the device) or
 * 5 (for a stream) or 9 (refused); bytes; address; stream; what the pool reserves afterwards. pool_rule.py reads them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define NEXT(name, ...) static int (*next)(__VA_ARGS__); if (!next) next = (int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)
enum { ALLOCATED = 1, FREED, TRIMMED, WAITED_FOR_DEVICE, WAITED_FOR_STREAM, REFUSED = 9, RESERVED_CURRENT = 5 };

static FILE *out;

static void note(uint64_t what, uint64_t bytes, uint64_t at, uint64_t stream) {
    static int (*attribute)(void *, int, void *);
    static void *pool;
    if (!out) {
        if (what >= TRIMMED) return;
        out = fopen(getenv("POOL_TRACE"), "wb");
        attribute = (int (*)(void *, int, void *))dlsym(RTLD_NEXT, "cudaMemPoolGetAttribute");
        ((int (*)(void **, int))dlsym(RTLD_NEXT, "cudaDeviceGetDefaultMemPool"))(&pool, 0);
    }
    uint64_t reserved = 0;
    attribute(pool, RESERVED_CURRENT, &reserved);
    uint64_t record[5] = {what, bytes, at, stream, reserved};
    fwrite(record, 8, 5, out);
    fflush(out);
}

int cudaMallocAsync(void **at, size_t bytes, void *stream) {
    NEXT("cudaMallocAsync", void **, size_t, void *);
    int status = next(at, bytes, stream);
    note(status ? REFUSED : ALLOCATED, bytes, status ? 0 : (uint64_t)*at, (uint64_t)stream);
    return status;
}

int cudaFreeAsync(void *at, void *stream) {
    NEXT("cudaFreeAsync", void *, void *);
    int status = next(at, stream);
    note(FREED, 0, (uint64_t)at, (uint64_t)stream);
    return status;
}

int cudaMemPoolTrimTo(void *pool, size_t keep) {
    NEXT("cudaMemPoolTrimTo", void *, size_t);
    int status = next(pool, keep);
    note(TRIMMED, keep, 0, 0);
    return status;
}

int cudaDeviceSynchronize(void) {
    NEXT("cudaDeviceSynchronize", void);
    int status = next();
    note(WAITED_FOR_DEVICE, 0, 0, 0);
    return status;
}

int cudaStreamSynchronize(void *stream) {
    NEXT("cudaStreamSynchronize", void *);
    int status = next(stream);
    note(WAITED_FOR_STREAM, 0, 0, (uint64_t)stream);
    return status;
}
