"""The edge detector of the well-known cuDNN walkthrough, step for step, on cudnnpy.raw and cuda-python.

    python docs/examples/edge_detector.py [INPUT] [-o OUTPUT] [--force] [--sigmoid] [--workspace-limit BYTES]

Every cuDNN call below is the C call under its C name, with the C arguments. Three things are done differently, because
cuDNN 9 or Python asks for it: the algorithm comes from the _v7 call, which lists candidates in place of taking a
preference; each algorithm runs with the math type that was reported beside it; and what is created is registered at
once with an ExitStack, which releases it all in reverse order, also after an error.
"""

import argparse
import sys
from contextlib import ExitStack
from ctypes import byref, c_float, c_int, c_size_t
from pathlib import Path
from traceback import extract_tb

import numpy as np

from cudnnpy import raw
from cudnnpy.cli import pictures
from cudnnpy.errors import CudnnError


def check(result):
    """The checking macro, for CUDA's runtime: every call returns its status and then its values."""
    from cuda.bindings import runtime as cuda

    status, *values = result
    if status != cuda.cudaError_t.cudaSuccess:
        raise CudnnError(f"CUDA returned {status.name} ({int(status)})")
    return values[0] if len(values) == 1 else values


def detect_edges(image, with_sigmoid, workspace_limit):
    """Return the convolved picture; image is float32, (1, height, width, 3)."""
    from cuda.bindings import runtime as cuda

    batch, height, width, channels = image.shape
    with ExitStack() as release:
        # The context that every cuDNN call takes.
        cudnn = raw.cudnnHandle_t()
        raw.check(raw.cudnnCreate(byref(cudnn)))
        release.callback(raw.cudnnDestroy, cudnn)

        # The input: one picture, three channels, and the channels of one pixel lie together (NHWC).
        input_descriptor = raw.cudnnTensorDescriptor_t()
        raw.check(raw.cudnnCreateTensorDescriptor(byref(input_descriptor)))
        release.callback(raw.cudnnDestroyTensorDescriptor, input_descriptor)
        raw.check(
            raw.cudnnSetTensor4dDescriptor(
                input_descriptor,
                raw.CUDNN_TENSOR_NHWC,  # format
                raw.CUDNN_DATA_FLOAT,  # dataType
                batch,  # batch_size
                channels,  # channels
                height,  # image_height
                width,  # image_width
            )
        )

        # The output: padding keeps the size, so it is described alike.
        output_descriptor = raw.cudnnTensorDescriptor_t()
        raw.check(raw.cudnnCreateTensorDescriptor(byref(output_descriptor)))
        release.callback(raw.cudnnDestroyTensorDescriptor, output_descriptor)
        raw.check(
            raw.cudnnSetTensor4dDescriptor(
                output_descriptor, raw.CUDNN_TENSOR_NHWC, raw.CUDNN_DATA_FLOAT, batch, channels, height, width
            )
        )

        # The kernel: three output channels, three input channels, 3x3, in the order K, C, R, S.
        kernel_descriptor = raw.cudnnFilterDescriptor_t()
        raw.check(raw.cudnnCreateFilterDescriptor(byref(kernel_descriptor)))
        release.callback(raw.cudnnDestroyFilterDescriptor, kernel_descriptor)
        raw.check(
            raw.cudnnSetFilter4dDescriptor(
                kernel_descriptor,
                raw.CUDNN_DATA_FLOAT,  # dataType
                raw.CUDNN_TENSOR_NCHW,  # format
                3,  # out_channels
                3,  # in_channels
                3,  # kernel_height
                3,  # kernel_width
            )
        )

        # The convolution itself.
        convolution_descriptor = raw.cudnnConvolutionDescriptor_t()
        raw.check(raw.cudnnCreateConvolutionDescriptor(byref(convolution_descriptor)))
        release.callback(raw.cudnnDestroyConvolutionDescriptor, convolution_descriptor)
        raw.check(
            raw.cudnnSetConvolution2dDescriptor(
                convolution_descriptor,
                1,  # pad_height
                1,  # pad_width
                1,  # vertical_stride
                1,  # horizontal_stride
                1,  # dilation_height
                1,  # dilation_width
                raw.CUDNN_CROSS_CORRELATION,  # mode
                raw.CUDNN_DATA_FLOAT,  # computeType
            )
        )
        # When the walkthrough was written, float meant float. Newer GPUs round to tf32 unless told not to.
        raw.check(raw.cudnnSetConvolutionMathType(convolution_descriptor, raw.CUDNN_FMA_MATH))

        # The fastest algorithm. The call that took a preference is gone; this one lists every algorithm, the most
        # promising first, and the caller takes the first that is supported and needs no more workspace than there is.
        count = c_int()
        raw.check(raw.cudnnGetConvolutionForwardAlgorithmMaxCount(cudnn, byref(count)))
        candidates = (raw.cudnnConvolutionFwdAlgoPerf_t * count.value)()
        raw.check(
            raw.cudnnGetConvolutionForwardAlgorithm_v7(
                cudnn,
                input_descriptor,
                kernel_descriptor,
                convolution_descriptor,
                output_descriptor,
                len(candidates),
                byref(count),
                candidates,
            )
        )
        if workspace_limit is None:
            workspace_limit, _total = check(cuda.cudaMemGetInfo())
        for candidate in candidates[: count.value]:
            if candidate.status == raw.CUDNN_STATUS_SUCCESS and candidate.memory <= workspace_limit:
                break
        else:
            raise CudnnError(f"no algorithm works within {workspace_limit} bytes of workspace")
        convolution_algorithm = candidate.algo
        raw.check(raw.cudnnSetConvolutionMathType(convolution_descriptor, candidate.mathType))
        print("Algorithm:", raw.cudnnConvolutionFwdAlgo_t(convolution_algorithm).name)

        # How much scratch memory it wants.
        workspace_bytes = c_size_t()
        raw.check(
            raw.cudnnGetConvolutionForwardWorkspaceSize(
                cudnn,
                input_descriptor,
                kernel_descriptor,
                convolution_descriptor,
                output_descriptor,
                convolution_algorithm,
                byref(workspace_bytes),
            )
        )
        print(f"Workspace size: {workspace_bytes.value / 1048576} MB")

        # Memory on the GPU; an algorithm that wants no workspace gets a null pointer.
        d_workspace = None
        if workspace_bytes.value:
            d_workspace = check(cuda.cudaMalloc(workspace_bytes.value))
            release.callback(cuda.cudaFree, d_workspace)
        d_input = check(cuda.cudaMalloc(image.nbytes))
        release.callback(cuda.cudaFree, d_input)
        check(cuda.cudaMemcpy(d_input, image.ctypes.data, image.nbytes, cuda.cudaMemcpyKind.cudaMemcpyHostToDevice))
        d_output = check(cuda.cudaMalloc(image.nbytes))
        release.callback(cuda.cudaFree, d_output)
        check(cuda.cudaMemset(d_output, 0, image.nbytes))

        # One 3x3 template for every pair of an output and an input channel.
        kernel_template = [
            [1, 1, 1],
            [1, -8, 1],
            [1, 1, 1],
        ]
        h_kernel = np.empty((3, 3, 3, 3), np.float32)
        for kernel in range(3):
            for channel in range(3):
                h_kernel[kernel, channel] = kernel_template
        d_kernel = check(cuda.cudaMalloc(h_kernel.nbytes))
        release.callback(cuda.cudaFree, d_kernel)
        check(
            cuda.cudaMemcpy(d_kernel, h_kernel.ctypes.data, h_kernel.nbytes, cuda.cudaMemcpyKind.cudaMemcpyHostToDevice)
        )

        # output = alpha * convolution + beta * output. The two factors are passed by address, as floats.
        alpha, beta = c_float(1), c_float(0)
        raw.check(
            raw.cudnnConvolutionForward(
                cudnn,
                byref(alpha),
                input_descriptor,
                d_input,
                kernel_descriptor,
                d_kernel,
                convolution_descriptor,
                convolution_algorithm,
                d_workspace,
                workspace_bytes.value,
                byref(beta),
                output_descriptor,
                d_output,
            )
        )

        # The bonus: a sigmoid over the output, in place.
        if with_sigmoid:
            activation_descriptor = raw.cudnnActivationDescriptor_t()
            raw.check(raw.cudnnCreateActivationDescriptor(byref(activation_descriptor)))
            release.callback(raw.cudnnDestroyActivationDescriptor, activation_descriptor)
            raw.check(
                raw.cudnnSetActivationDescriptor(
                    activation_descriptor,
                    raw.CUDNN_ACTIVATION_SIGMOID,  # mode
                    raw.CUDNN_PROPAGATE_NAN,  # reluNanOpt
                    0,  # relu_coef
                )
            )
            raw.check(
                raw.cudnnActivationForward(
                    cudnn,
                    activation_descriptor,
                    byref(alpha),
                    output_descriptor,
                    d_output,
                    byref(beta),
                    output_descriptor,
                    d_output,
                )
            )

        h_output = np.empty_like(image)
        check(
            cuda.cudaMemcpy(h_output.ctypes.data, d_output, h_output.nbytes, cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost)
        )
        return h_output


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def main():
    parser = Parser(description="Find the edges of a picture with cuDNN.")
    parser.add_argument("input", nargs="?", type=Path, default=pictures.SAMPLE)
    parser.add_argument("-o", "--output", type=Path, default=Path("cudnn-out.png"))
    parser.add_argument("--force", action="store_true", help="overwrite a file that is there already")
    parser.add_argument("--sigmoid", action="store_true", help="apply a sigmoid to the output, in place")
    parser.add_argument("--workspace-limit", type=int, metavar="BYTES", help="where memory is scarce")
    arguments = parser.parse_args()
    try:
        pictures.check_writable(arguments.output, overwrite=arguments.force, source=arguments.input)
        image = pictures.load(arguments.input)
        output = detect_edges(image, arguments.sigmoid, arguments.workspace_limit)
        pictures.save(arguments.output, output, overwrite=arguments.force)
    except (pictures.PictureError, ImportError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except CudnnError as error:  # as the macro did: where, and why
        line = next(frame.lineno for frame in extract_tb(error.__traceback__) if frame.name == "detect_edges")
        print(f"{parser.prog}: error on line {line}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(f"Wrote {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
