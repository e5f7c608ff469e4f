// cuda_abi.h: the part of the CUDA driver's binary interface that the emulated card has: types, codes and prototypes.
// Written out here so that nothing of the toolkit is needed to build it; test_abi.sh compares it with a cuda.h where there is one.
// Used by the driver (drv_*.c) and by the tests, which reach the functions by dlopen.
#ifndef CUDA_ABI_H
#define CUDA_ABI_H
#include <stddef.h>
#include <stdint.h>

// One list makes the codes, their names (cuGetErrorName) and their texts (cuGetErrorString).
#define CUDA_ABI_ERRORS(X) \
    X(CUDA_SUCCESS,                           0, "no error") \
    X(CUDA_ERROR_INVALID_VALUE,               1, "an argument is out of its range") \
    X(CUDA_ERROR_OUT_OF_MEMORY,               2, "out of memory") \
    X(CUDA_ERROR_NOT_INITIALIZED,             3, "cuInit was not called, or failed") \
    X(CUDA_ERROR_DEINITIALIZED,               4, "the driver is shutting down") \
    X(CUDA_ERROR_STUB_LIBRARY,               34, "the library is the stub one links against") \
    X(CUDA_ERROR_NO_DEVICE,                 100, "no CUDA device is here") \
    X(CUDA_ERROR_INVALID_DEVICE,            101, "no device has this ordinal") \
    X(CUDA_ERROR_INVALID_IMAGE,             200, "the module is no valid image") \
    X(CUDA_ERROR_INVALID_CONTEXT,           201, "no context is current, or it is invalid") \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU,         209, "no code in the module fits this device") \
    X(CUDA_ERROR_INVALID_PTX,               218, "the PTX could not be compiled") \
    X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND,    221, "the PTX compiler was not found") \
    X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,   222, "the PTX is of a newer version than the driver knows") \
    X(CUDA_ERROR_OPERATING_SYSTEM,          304, "a call to the operating system failed") \
    X(CUDA_ERROR_INVALID_HANDLE,            400, "the handle is not valid") \
    X(CUDA_ERROR_ILLEGAL_STATE,             401, "an object is not in the state that the call needs") \
    X(CUDA_ERROR_NOT_FOUND,                 500, "the name was not found") \
    X(CUDA_ERROR_NOT_READY,                 600, "work is still under way") \
    X(CUDA_ERROR_ILLEGAL_ADDRESS,           700, "a kernel read or wrote memory that is not its own") \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,   701, "a launch needs more registers or other resources than there are") \
    X(CUDA_ERROR_LAUNCH_TIMEOUT,            702, "a kernel ran for too long") \
    X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,    708, "the primary context is in use") \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED,      709, "the context was destroyed") \
    X(CUDA_ERROR_ASSERT,                    710, "a device assertion failed") \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "the host memory is registered already") \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,     713, "the host memory is not registered") \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION,       715, "a kernel met an illegal instruction") \
    X(CUDA_ERROR_MISALIGNED_ADDRESS,        716, "a kernel used a misaligned address") \
    X(CUDA_ERROR_INVALID_ADDRESS_SPACE,     717, "a kernel used an address of the wrong space") \
    X(CUDA_ERROR_LAUNCH_FAILED,             719, "a kernel failed") \
    X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720, "a cooperative grid does not fit the device at once") \
    X(CUDA_ERROR_NOT_PERMITTED,             800, "the call is not permitted here") \
    X(CUDA_ERROR_NOT_SUPPORTED,             801, "the call is not supported here") \
    X(CUDA_ERROR_SYSTEM_NOT_READY,          802, "the system is not ready") \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,    803, "the display driver and the CUDA driver do not match") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "the call is not allowed while a stream captures") \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "the capture was made invalid by an earlier error") \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE,      902, "the call would merge two captures") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,  903, "the stream did not begin this capture") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,   904, "the capture has a branch that was not joined to its first stream") \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,  905, "the capture would depend on work outside it") \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,   906, "the call would wait on a capturing stream through the default stream") \
    X(CUDA_ERROR_CAPTURED_EVENT,            907, "the event was last recorded in a capture") \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, "the capture was begun by another thread") \
    X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910, "the graph differs too much from the executable one") \
    X(CUDA_ERROR_UNKNOWN,                   999, "unknown error")

typedef enum CUresult {
#define CUDA_ABI_CODE(name, code, text) name = code,
    CUDA_ABI_ERRORS(CUDA_ABI_CODE)
#undef CUDA_ABI_CODE
} CUresult;

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUuuid { char bytes[16]; } CUuuid;

// Which of the driver's enums are plain numbers here: the attribute of a device or function, the option of the PTX compiler.
enum {
    CU_CTX_SCHED_AUTO = 0, CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DEFAULT = 0, CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2,
    CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2, CU_MEMHOSTALLOC_WRITECOMBINED = 4,
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1, CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_ACTIVE = 1, CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
    CU_JIT_INFO_LOG_BUFFER = 3, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4, CU_JIT_ERROR_LOG_BUFFER = 5, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES = 2,
    CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3, CU_FUNC_ATTRIBUTE_NUM_REGS = 4, CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
    CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6, CU_FUNC_ATTRIBUTE_CACHE_MODE_CA = 7, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y = 3,
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z = 4, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y = 6,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z = 7, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
    CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY = 9, CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK = 12,
    CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16, CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
    CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS = 31, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36,
    CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
    CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR = 82, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
    CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH = 95, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
    CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK = 111
};

// The last argument list of cuLaunchKernelEx. A value of an attribute takes 64 bytes; its first word is all that is read here.
typedef struct CUlaunchAttribute { int id; char pad[4]; union { char bytes[64]; int first; } value; } CUlaunchAttribute;
typedef struct CUlaunchConfig {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

typedef struct CUgraphExecUpdateResultInfo { int result; CUgraphNode errorNode, errorFromNode; } CUgraphExecUpdateResultInfo;
enum { CU_GRAPH_EXEC_UPDATE_SUCCESS = 0, CU_GRAPH_EXEC_UPDATE_ERROR = 1, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED = 2,
       CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED = 3, CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED = 4 };

// One list of the functions: X(name as exported, parameters). It makes the prototypes, the table of cuGetProcAddress and the tests' loader.
#define CUDA_ABI_CALLS(X) \
    X(cuInit, (unsigned flags)) \
    X(cuDriverGetVersion, (int *version)) \
    X(cuGetErrorName, (CUresult error, const char **name)) \
    X(cuGetErrorString, (CUresult error, const char **text)) \
    X(cuGetProcAddress_v2, (const char *name, void **fn, int version, uint64_t flags, int *status)) \
    X(cuGetExportTable, (const void **table, const CUuuid *id)) \
    X(cuDeviceGet, (CUdevice *dev, int ordinal)) \
    X(cuDeviceGetCount, (int *count)) \
    X(cuDeviceGetName, (char *name, int len, CUdevice dev)) \
    X(cuDeviceGetAttribute, (int *value, int attribute, CUdevice dev)) \
    X(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice dev)) \
    X(cuDeviceGetUuid, (CUuuid *uuid, CUdevice dev)) \
    X(cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice dev)) \
    X(cuDevicePrimaryCtxRetain, (CUcontext *ctx, CUdevice dev)) \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice dev)) \
    X(cuCtxCreate_v2, (CUcontext *ctx, unsigned flags, CUdevice dev)) \
    X(cuCtxDestroy_v2, (CUcontext ctx)) \
    X(cuCtxSetCurrent, (CUcontext ctx)) \
    X(cuCtxGetCurrent, (CUcontext *ctx)) \
    X(cuCtxGetStreamPriorityRange, (int *least, int *greatest)) \
    X(cuCtxPushCurrent_v2, (CUcontext ctx)) \
    X(cuCtxPopCurrent_v2, (CUcontext *ctx)) \
    X(cuCtxGetDevice, (CUdevice *dev)) \
    X(cuCtxSynchronize, (void)) \
    X(cuMemAlloc_v2, (CUdeviceptr *ptr, size_t bytes)) \
    X(cuMemFree_v2, (CUdeviceptr ptr)) \
    X(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total)) \
    X(cuMemcpyHtoD_v2, (CUdeviceptr dst, const void *src, size_t bytes)) \
    X(cuMemcpyDtoH_v2, (void *dst, CUdeviceptr src, size_t bytes)) \
    X(cuMemcpyDtoD_v2, (CUdeviceptr dst, CUdeviceptr src, size_t bytes)) \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)) \
    X(cuMemcpyDtoHAsync_v2, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream)) \
    X(cuMemcpyDtoDAsync_v2, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)) \
    X(cuMemsetD8_v2, (CUdeviceptr dst, unsigned char value, size_t count)) \
    X(cuMemsetD32_v2, (CUdeviceptr dst, unsigned value, size_t count)) \
    X(cuMemsetD8Async, (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)) \
    X(cuMemsetD32Async, (CUdeviceptr dst, unsigned value, size_t count, CUstream stream)) \
    X(cuMemHostAlloc, (void **ptr, size_t bytes, unsigned flags)) \
    X(cuMemFreeHost, (void *ptr)) \
    X(cuMemHostRegister_v2, (void *ptr, size_t bytes, unsigned flags)) \
    X(cuMemHostUnregister, (void *ptr)) \
    X(cuMemHostGetDevicePointer_v2, (CUdeviceptr *dev, void *host, unsigned flags)) \
    X(cuStreamCreate, (CUstream *stream, unsigned flags)) \
    X(cuStreamCreateWithPriority, (CUstream *stream, unsigned flags, int priority)) \
    X(cuStreamDestroy_v2, (CUstream stream)) \
    X(cuStreamSynchronize, (CUstream stream)) \
    X(cuStreamQuery, (CUstream stream)) \
    X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags)) \
    X(cuStreamBeginCapture_v2, (CUstream stream, int mode)) \
    X(cuStreamEndCapture, (CUstream stream, CUgraph *graph)) \
    X(cuStreamIsCapturing, (CUstream stream, int *status)) \
    X(cuThreadExchangeStreamCaptureMode, (int *mode)) \
    X(cuEventCreate, (CUevent *event, unsigned flags)) \
    X(cuEventRecord, (CUevent event, CUstream stream)) \
    X(cuEventQuery, (CUevent event)) \
    X(cuEventSynchronize, (CUevent event)) \
    X(cuEventElapsedTime, (float *ms, CUevent start, CUevent end)) \
    X(cuEventElapsedTime_v2, (float *ms, CUevent start, CUevent end)) \
    X(cuEventDestroy_v2, (CUevent event)) \
    X(cuModuleLoadData, (CUmodule *module, const void *image)) \
    X(cuModuleLoadDataEx, (CUmodule *module, const void *image, unsigned n, int *options, void **values)) \
    X(cuModuleUnload, (CUmodule module)) \
    X(cuModuleGetFunction, (CUfunction *fn, CUmodule module, const char *name)) \
    X(cuModuleGetGlobal_v2, (CUdeviceptr *ptr, size_t *bytes, CUmodule module, const char *name)) \
    X(cuFuncGetAttribute, (int *value, int attribute, CUfunction fn)) \
    X(cuFuncSetAttribute, (CUfunction fn, int attribute, int value)) \
    X(cuFuncSetCacheConfig, (CUfunction fn, int config)) \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, CUfunction fn, int threads, size_t shared)) \
    X(cuLaunchKernel, (CUfunction fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
                       CUstream stream, void **params, void **extra)) \
    X(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction fn, void **params, void **extra)) \
    X(cuLaunchCooperativeKernel, (CUfunction fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                                  unsigned shared, CUstream stream, void **params)) \
    X(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, unsigned long long flags)) \
    X(cuGraphLaunch, (CUgraphExec exec, CUstream stream)) \
    X(cuGraphUpload, (CUgraphExec exec, CUstream stream)) \
    X(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)) \
    X(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count)) \
    X(cuGraphDestroy, (CUgraph graph)) \
    X(cuGraphExecDestroy, (CUgraphExec exec))

#endif
