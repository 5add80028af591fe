/* A libnvidia-ml with as many devices as FAKE_NVML_DEVICES says; FAKE_NVML_FAILS names a function. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fails(const char *name) {
    const char *wanted = getenv("FAKE_NVML_FAILS");
    return wanted && !strcmp(wanted, name) ? 999 : 0;
}
const char *nvmlErrorString(int answer) { return answer == 999 ? "Unknown Error" : "Success"; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return fails("nvmlInit"); }
int nvmlShutdown(void) { return fails("nvmlShutdown"); }
int nvmlDeviceGetCount_v2(unsigned *count) {
    const char *devices = getenv("FAKE_NVML_DEVICES");
    *count = devices ? (unsigned)atoi(devices) : 0;
    return fails("nvmlDeviceGetCount");
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(0x700000000000UL + index); /* a real handle fills a pointer */
    return fails("nvmlDeviceGetHandleByIndex");
}
static unsigned ordinal(void *device) { return (unsigned)((unsigned long)device - 0x700000000000UL); }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    snprintf(text, size, "GPU-0000000%u", ordinal(device));
    return fails("nvmlDeviceGetUUID");
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    snprintf(text, size, "Fake H%u00", ordinal(device) + 1);
    return fails("nvmlDeviceGetName");
}
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) {
    *minor = ordinal(device);
    return fails("nvmlDeviceGetMinorNumber");
}
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    memory->total = 85899345920ULL + ordinal(device);
    memory->free = memory->used = 0;
    return fails("nvmlDeviceGetMemoryInfo");
}
