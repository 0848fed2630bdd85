/* In place of libcuda.so.1 on a machine without a driver: libcudnn's engines load with it, and plan for a device that
   is described to them. It exports what they are linked against, and nothing in it works. */

enum { CUDA_ERROR_NO_DEVICE = 100 };

int cuGetErrorString(int error, const char **text) { (void)error; *text = "this is no driver"; return 0; }
int cuModuleGetFunction(void) { return CUDA_ERROR_NO_DEVICE; }
int cuModuleLoadData(void) { return CUDA_ERROR_NO_DEVICE; }
int cuModuleUnload(void) { return CUDA_ERROR_NO_DEVICE; }
int cuTensorMapEncodeIm2col(void) { return CUDA_ERROR_NO_DEVICE; }
int cuTensorMapEncodeTiled(void) { return CUDA_ERROR_NO_DEVICE; }
