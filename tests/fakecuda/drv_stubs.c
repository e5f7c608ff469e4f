// drv_stubs.c: owns the names of the driver's calls that are not emulated. Each prints its name and ends the program.
// A program that only asks whether they exist gets an address, as from a real driver; cuGetProcAddress_v2 (drv_ctl.c) looks here too.
#include "driver.h"

#define DRV_STUBS(X) \
    X(cuArray3DCreate) X(cuArray3DCreate_v2) X(cuArray3DGetDescriptor) X(cuArray3DGetDescriptor_v2) X(cuArrayCreate) X(cuArrayCreate_v2) \
    X(cuArrayDestroy) X(cuArrayGetDescriptor) X(cuArrayGetDescriptor_v2) X(cuArrayGetMemoryRequirements) X(cuArrayGetPlane) \
    X(cuArrayGetSparseProperties) X(cuCheckpointProcessCheckpoint) X(cuCheckpointProcessGetRestoreThreadId) X(cuCheckpointProcessGetState) \
    X(cuCheckpointProcessLock) X(cuCheckpointProcessRestore) X(cuCheckpointProcessUnlock) X(cuCoredumpGetAttribute) \
    X(cuCoredumpGetAttributeGlobal) X(cuCoredumpSetAttribute) X(cuCoredumpSetAttributeGlobal) X(cuCtxAttach) X(cuCtxCreate) \
    X(cuCtxCreate_v3) X(cuCtxCreate_v4) X(cuCtxDestroy) X(cuCtxDetach) X(cuCtxDisablePeerAccess) X(cuCtxEnablePeerAccess) \
    X(cuCtxFromGreenCtx) X(cuCtxGetApiVersion) X(cuCtxGetCacheConfig) X(cuCtxGetDevResource) X(cuCtxGetDevice_v2) X(cuCtxGetExecAffinity) \
    X(cuCtxGetFlags) X(cuCtxGetId) X(cuCtxGetLimit) X(cuCtxGetSharedMemConfig) X(cuCtxPopCurrent) \
    X(cuCtxPushCurrent) X(cuCtxRecordEvent) X(cuCtxResetPersistingL2Cache) X(cuCtxSetCacheConfig) X(cuCtxSetFlags) X(cuCtxSetLimit) \
    X(cuCtxSetSharedMemConfig) X(cuCtxSynchronize_v2) X(cuCtxWaitEvent) X(cuDestroyExternalMemory) X(cuDestroyExternalSemaphore) \
    X(cuDevResourceGenerateDesc) X(cuDevSmResourceSplitByCount) X(cuDeviceCanAccessPeer) X(cuDeviceComputeCapability) \
    X(cuDeviceGetByPCIBusId) X(cuDeviceGetDefaultMemPool) X(cuDeviceGetDevResource) X(cuDeviceGetExecAffinitySupport) \
    X(cuDeviceGetGraphMemAttribute) X(cuDeviceGetHostAtomicCapabilities) X(cuDeviceGetLuid) X(cuDeviceGetMemPool) \
    X(cuDeviceGetNvSciSyncAttributes) X(cuDeviceGetP2PAtomicCapabilities) X(cuDeviceGetP2PAttribute) X(cuDeviceGetPCIBusId) \
    X(cuDeviceGetProperties) X(cuDeviceGetTexture1DLinearMaxWidth) X(cuDeviceGraphMemTrim) X(cuDevicePrimaryCtxGetState) \
    X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxReset_v2) X(cuDevicePrimaryCtxSetFlags) \
    X(cuDevicePrimaryCtxSetFlags_v2) X(cuDeviceRegisterAsyncNotification) X(cuDeviceSetGraphMemAttribute) X(cuDeviceSetMemPool) \
    X(cuDeviceTotalMem) X(cuDeviceUnregisterAsyncNotification) X(cuEventDestroy) X(cuEventRecordWithFlags) \
    X(cuExternalMemoryGetMappedBuffer) X(cuExternalMemoryGetMappedMipmappedArray) X(cuFlushGPUDirectRDMAWrites) X(cuFuncGetModule) \
    X(cuFuncGetName) X(cuFuncGetParamInfo) X(cuFuncIsLoaded) X(cuFuncLoad) X(cuFuncSetBlockShape) X(cuFuncSetSharedMemConfig) \
    X(cuFuncSetSharedSize) X(cuGetProcAddress) X(cuGraphAddBatchMemOpNode) X(cuGraphAddChildGraphNode) \
    X(cuGraphAddDependencies) X(cuGraphAddDependencies_v2) X(cuGraphAddEmptyNode) X(cuGraphAddEventRecordNode) X(cuGraphAddEventWaitNode) \
    X(cuGraphAddExternalSemaphoresSignalNode) X(cuGraphAddExternalSemaphoresWaitNode) X(cuGraphAddHostNode) X(cuGraphAddKernelNode) \
    X(cuGraphAddKernelNode_v2) X(cuGraphAddMemAllocNode) X(cuGraphAddMemFreeNode) X(cuGraphAddMemcpyNode) X(cuGraphAddMemsetNode) \
    X(cuGraphAddNode) X(cuGraphAddNode_v2) X(cuGraphBatchMemOpNodeGetParams) X(cuGraphBatchMemOpNodeSetParams) \
    X(cuGraphChildGraphNodeGetGraph) X(cuGraphClone) X(cuGraphConditionalHandleCreate) X(cuGraphCreate) X(cuGraphDebugDotPrint) \
    X(cuGraphDestroyNode) X(cuGraphEventRecordNodeGetEvent) X(cuGraphEventRecordNodeSetEvent) X(cuGraphEventWaitNodeGetEvent) \
    X(cuGraphEventWaitNodeSetEvent) X(cuGraphExecBatchMemOpNodeSetParams) X(cuGraphExecChildGraphNodeSetParams) \
    X(cuGraphExecEventRecordNodeSetEvent) X(cuGraphExecEventWaitNodeSetEvent) X(cuGraphExecExternalSemaphoresSignalNodeSetParams) \
    X(cuGraphExecExternalSemaphoresWaitNodeSetParams) X(cuGraphExecGetFlags) X(cuGraphExecHostNodeSetParams) \
    X(cuGraphExecKernelNodeSetParams) X(cuGraphExecKernelNodeSetParams_v2) X(cuGraphExecMemcpyNodeSetParams) \
    X(cuGraphExecMemsetNodeSetParams) X(cuGraphExecNodeSetParams) X(cuGraphExecUpdate) X(cuGraphExternalSemaphoresSignalNodeGetParams) \
    X(cuGraphExternalSemaphoresSignalNodeSetParams) X(cuGraphExternalSemaphoresWaitNodeGetParams) \
    X(cuGraphExternalSemaphoresWaitNodeSetParams) X(cuGraphGetEdges) X(cuGraphGetEdges_v2) X(cuGraphGetRootNodes) \
    X(cuGraphHostNodeGetParams) X(cuGraphHostNodeSetParams) X(cuGraphInstantiate) X(cuGraphInstantiateWithParams) X(cuGraphInstantiate_v2) \
    X(cuGraphKernelNodeCopyAttributes) X(cuGraphKernelNodeGetAttribute) X(cuGraphKernelNodeGetParams) X(cuGraphKernelNodeGetParams_v2) \
    X(cuGraphKernelNodeSetAttribute) X(cuGraphKernelNodeSetParams) X(cuGraphKernelNodeSetParams_v2) X(cuGraphMemAllocNodeGetParams) \
    X(cuGraphMemFreeNodeGetParams) X(cuGraphMemcpyNodeGetParams) X(cuGraphMemcpyNodeSetParams) X(cuGraphMemsetNodeGetParams) \
    X(cuGraphMemsetNodeSetParams) X(cuGraphNodeFindInClone) X(cuGraphNodeGetDependencies) X(cuGraphNodeGetDependencies_v2) \
    X(cuGraphNodeGetDependentNodes) X(cuGraphNodeGetDependentNodes_v2) X(cuGraphNodeGetEnabled) X(cuGraphNodeGetType) \
    X(cuGraphNodeSetEnabled) X(cuGraphNodeSetParams) X(cuGraphReleaseUserObject) X(cuGraphRemoveDependencies) \
    X(cuGraphRemoveDependencies_v2) X(cuGraphRetainUserObject) X(cuGraphicsMapResources) X(cuGraphicsResourceGetMappedMipmappedArray) \
    X(cuGraphicsResourceGetMappedPointer) X(cuGraphicsResourceGetMappedPointer_v2) X(cuGraphicsResourceSetMapFlags) \
    X(cuGraphicsResourceSetMapFlags_v2) X(cuGraphicsSubResourceGetMappedArray) X(cuGraphicsUnmapResources) X(cuGraphicsUnregisterResource) \
    X(cuGreenCtxCreate) X(cuGreenCtxDestroy) X(cuGreenCtxGetDevResource) X(cuGreenCtxGetId) X(cuGreenCtxRecordEvent) \
    X(cuGreenCtxStreamCreate) X(cuGreenCtxWaitEvent) X(cuImportExternalMemory) X(cuImportExternalSemaphore) X(cuIpcCloseMemHandle) \
    X(cuIpcGetEventHandle) X(cuIpcGetMemHandle) X(cuIpcOpenEventHandle) X(cuIpcOpenMemHandle) X(cuIpcOpenMemHandle_v2) \
    X(cuKernelGetAttribute) X(cuKernelGetFunction) X(cuKernelGetLibrary) X(cuKernelGetName) X(cuKernelGetParamInfo) X(cuKernelSetAttribute) \
    X(cuKernelSetCacheConfig) X(cuLaunch) X(cuLaunchCooperativeKernelMultiDevice) X(cuLaunchGrid) X(cuLaunchGridAsync) X(cuLaunchHostFunc) \
    X(cuLibraryEnumerateKernels) X(cuLibraryGetGlobal) X(cuLibraryGetKernel) X(cuLibraryGetKernelCount) X(cuLibraryGetManaged) \
    X(cuLibraryGetModule) X(cuLibraryGetUnifiedFunction) X(cuLibraryLoadData) X(cuLibraryLoadFromFile) X(cuLibraryUnload) X(cuLinkAddData) \
    X(cuLinkAddData_v2) X(cuLinkAddFile) X(cuLinkAddFile_v2) X(cuLinkComplete) X(cuLinkCreate) X(cuLinkCreate_v2) X(cuLinkDestroy) \
    X(cuLogsCurrent) X(cuLogsDumpToFile) X(cuLogsDumpToMemory) X(cuLogsRegisterCallback) X(cuLogsUnregisterCallback) X(cuMemAddressFree) \
    X(cuMemAddressReserve) X(cuMemAdvise) X(cuMemAdvise_v2) X(cuMemAlloc) X(cuMemAllocAsync) X(cuMemAllocFromPoolAsync) X(cuMemAllocHost) \
    X(cuMemAllocHost_v2) X(cuMemAllocManaged) X(cuMemAllocPitch) X(cuMemAllocPitch_v2) X(cuMemBatchDecompressAsync) X(cuMemCreate) \
    X(cuMemDiscardAndPrefetchBatchAsync) X(cuMemDiscardBatchAsync) X(cuMemExportToShareableHandle) X(cuMemFree) X(cuMemFreeAsync) \
    X(cuMemGetAccess) X(cuMemGetAddressRange) X(cuMemGetAddressRange_v2) X(cuMemGetAllocationGranularity) \
    X(cuMemGetAllocationPropertiesFromHandle) X(cuMemGetDefaultMemPool) X(cuMemGetHandleForAddressRange) X(cuMemGetInfo) X(cuMemGetMemPool) \
    X(cuMemHostGetDevicePointer) X(cuMemHostGetFlags) X(cuMemHostRegister) X(cuMemImportFromShareableHandle) X(cuMemMap) \
    X(cuMemMapArrayAsync) X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemPoolExportPointer) X(cuMemPoolExportToShareableHandle) \
    X(cuMemPoolGetAccess) X(cuMemPoolGetAttribute) X(cuMemPoolImportFromShareableHandle) X(cuMemPoolImportPointer) X(cuMemPoolSetAccess) \
    X(cuMemPoolSetAttribute) X(cuMemPoolTrimTo) X(cuMemPrefetchAsync) X(cuMemPrefetchAsync_v2) X(cuMemPrefetchBatchAsync) \
    X(cuMemRangeGetAttribute) X(cuMemRangeGetAttributes) X(cuMemRelease) X(cuMemRetainAllocationHandle) X(cuMemSetAccess) X(cuMemSetMemPool) \
    X(cuMemUnmap) X(cuMemcpy) X(cuMemcpy2D) X(cuMemcpy2DAsync) X(cuMemcpy2DAsync_v2) X(cuMemcpy2DUnaligned) X(cuMemcpy2DUnaligned_v2) \
    X(cuMemcpy2D_v2) X(cuMemcpy3D) X(cuMemcpy3DAsync) X(cuMemcpy3DAsync_v2) X(cuMemcpy3DBatchAsync) X(cuMemcpy3DBatchAsync_v2) \
    X(cuMemcpy3DPeer) X(cuMemcpy3DPeerAsync) X(cuMemcpy3D_v2) X(cuMemcpyAsync) X(cuMemcpyAtoA) X(cuMemcpyAtoA_v2) X(cuMemcpyAtoD) \
    X(cuMemcpyAtoD_v2) X(cuMemcpyAtoH) X(cuMemcpyAtoHAsync) X(cuMemcpyAtoHAsync_v2) X(cuMemcpyAtoH_v2) X(cuMemcpyBatchAsync) \
    X(cuMemcpyBatchAsync_v2) X(cuMemcpyDtoA) X(cuMemcpyDtoA_v2) X(cuMemcpyDtoD) X(cuMemcpyDtoDAsync) X(cuMemcpyDtoH) X(cuMemcpyDtoHAsync) \
    X(cuMemcpyHtoA) X(cuMemcpyHtoAAsync) X(cuMemcpyHtoAAsync_v2) X(cuMemcpyHtoA_v2) X(cuMemcpyHtoD) X(cuMemcpyHtoDAsync) X(cuMemcpyPeer) \
    X(cuMemcpyPeerAsync) X(cuMemsetD16) X(cuMemsetD16Async) X(cuMemsetD16_v2) X(cuMemsetD2D16) X(cuMemsetD2D16Async) X(cuMemsetD2D16_v2) \
    X(cuMemsetD2D32) X(cuMemsetD2D32Async) X(cuMemsetD2D32_v2) X(cuMemsetD2D8) X(cuMemsetD2D8Async) X(cuMemsetD2D8_v2) X(cuMemsetD32) \
    X(cuMemsetD8) X(cuMipmappedArrayCreate) X(cuMipmappedArrayDestroy) X(cuMipmappedArrayGetLevel) X(cuMipmappedArrayGetMemoryRequirements) \
    X(cuMipmappedArrayGetSparseProperties) X(cuModuleEnumerateFunctions) X(cuModuleGetFunctionCount) X(cuModuleGetGlobal) \
    X(cuModuleGetLoadingMode) X(cuModuleGetSurfRef) X(cuModuleGetTexRef) X(cuModuleLoad) X(cuModuleLoadFatBinary) X(cuMulticastAddDevice) \
    X(cuMulticastBindAddr) X(cuMulticastBindMem) X(cuMulticastCreate) X(cuMulticastGetGranularity) X(cuMulticastUnbind) \
    X(cuOccupancyAvailableDynamicSMemPerBlock) X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) X(cuOccupancyMaxActiveClusters) \
    X(cuOccupancyMaxPotentialBlockSize) X(cuOccupancyMaxPotentialBlockSizeWithFlags) X(cuOccupancyMaxPotentialClusterSize) X(cuParamSetSize) \
    X(cuParamSetTexRef) X(cuParamSetf) X(cuParamSeti) X(cuParamSetv) X(cuPointerGetAttribute) X(cuPointerGetAttributes) \
    X(cuPointerSetAttribute) X(cuProfilerInitialize) X(cuProfilerStart) X(cuProfilerStop) X(cuSignalExternalSemaphoresAsync) \
    X(cuStreamAddCallback) X(cuStreamAttachMemAsync) X(cuStreamBatchMemOp) X(cuStreamBatchMemOp_v2) X(cuStreamBeginCapture) \
    X(cuStreamBeginCaptureToGraph) X(cuStreamCopyAttributes) X(cuStreamDestroy) X(cuStreamGetAttribute) X(cuStreamGetCaptureInfo) \
    X(cuStreamGetCaptureInfo_v2) X(cuStreamGetCaptureInfo_v3) X(cuStreamGetCtx) X(cuStreamGetCtx_v2) X(cuStreamGetDevice) \
    X(cuStreamGetFlags) X(cuStreamGetGreenCtx) X(cuStreamGetId) X(cuStreamGetPriority) X(cuStreamSetAttribute) \
    X(cuStreamUpdateCaptureDependencies) X(cuStreamUpdateCaptureDependencies_v2) X(cuStreamWaitValue32) X(cuStreamWaitValue32_v2) \
    X(cuStreamWaitValue64) X(cuStreamWaitValue64_v2) X(cuStreamWriteValue32) X(cuStreamWriteValue32_v2) X(cuStreamWriteValue64) \
    X(cuStreamWriteValue64_v2) X(cuSurfObjectCreate) X(cuSurfObjectDestroy) X(cuSurfObjectGetResourceDesc) X(cuSurfRefGetArray) \
    X(cuSurfRefSetArray) X(cuTensorMapEncodeIm2col) X(cuTensorMapEncodeIm2colWide) X(cuTensorMapEncodeTiled) X(cuTensorMapReplaceAddress) \
    X(cuTexObjectCreate) X(cuTexObjectDestroy) X(cuTexObjectGetResourceDesc) X(cuTexObjectGetResourceViewDesc) X(cuTexObjectGetTextureDesc) \
    X(cuTexRefCreate) X(cuTexRefDestroy) X(cuTexRefGetAddress) X(cuTexRefGetAddressMode) X(cuTexRefGetAddress_v2) X(cuTexRefGetArray) \
    X(cuTexRefGetBorderColor) X(cuTexRefGetFilterMode) X(cuTexRefGetFlags) X(cuTexRefGetFormat) X(cuTexRefGetMaxAnisotropy) \
    X(cuTexRefGetMipmapFilterMode) X(cuTexRefGetMipmapLevelBias) X(cuTexRefGetMipmapLevelClamp) X(cuTexRefGetMipmappedArray) \
    X(cuTexRefSetAddress) X(cuTexRefSetAddress2D) X(cuTexRefSetAddress2D_v2) X(cuTexRefSetAddress2D_v3) X(cuTexRefSetAddressMode) \
    X(cuTexRefSetAddress_v2) X(cuTexRefSetArray) X(cuTexRefSetBorderColor) X(cuTexRefSetFilterMode) X(cuTexRefSetFlags) X(cuTexRefSetFormat) \
    X(cuTexRefSetMaxAnisotropy) X(cuTexRefSetMipmapFilterMode) X(cuTexRefSetMipmapLevelBias) X(cuTexRefSetMipmapLevelClamp) \
    X(cuTexRefSetMipmappedArray) X(cuUserObjectCreate) X(cuUserObjectRelease) X(cuUserObjectRetain) X(cuWaitExternalSemaphoresAsync)

#define STUB(name) __attribute__((visibility("default"))) int name(void); int name(void) { drv_missing(#name); }
DRV_STUBS(STUB)

#define ROW(name) {#name, (void (*)(void))name},
typedef struct stub { const char *name; void (*fn)(void); } stub;
static const stub stubs[] = { DRV_STUBS(ROW) };

void (*drv_stub(const char *name))(void)
{
    for (size_t i = 0; i < sizeof stubs / sizeof *stubs; i++) if (!strcmp(stubs[i].name, name)) return stubs[i].fn;
    return NULL;
}
