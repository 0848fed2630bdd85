"""The edge detector of the well-known cuDNN walkthrough, step for step, on cudnnpy.raw and cuda-python.

    python docs/examples/edge_detector.py INPUT [-o OUTPUT] [--force] [--sigmoid] [--workspace-limit BYTES]

Every cuDNN call below is the C call under its C name, with the C arguments. Two things are done differently, because cuDNN 9
or Python asks for it: choose_algorithm stands for the call that took a preference, which is gone; and what is created is
registered at once with an ExitStack, which releases it all in reverse order, also after an error.
"""

import argparse
from contextlib import ExitStack
from ctypes import byref, c_float
from pathlib import Path

import numpy as np

from cudnnpy import raw
from cudnnpy.descriptors import choose_algorithm
from cudnnpy.errors import CudnnError


def load_image(path):
    """Return a colour image as float32, (1, height, width, 3), scaled so that its values are 0 to 1."""
    from PIL import Image

    with Image.open(path) as file:
        image = np.asarray(file.convert("RGB"), np.float32)[np.newaxis]
    return (image - image.min()) / (np.ptp(image) or 1)


def save_image(path, image):
    """Write the image with 8 bits: negative values become 0, and the largest becomes 255."""
    from PIL import Image

    image = np.maximum(image[0], 0)
    image = (image - image.min()) * (255 / (np.ptp(image) or 1))
    Image.fromarray(np.rint(image).astype(np.uint8)).save(path)


def check(result):
    """The checking macro, for CUDA's runtime: every call returns its status and then its values."""
    from cuda.bindings import runtime as cuda

    status, *values = result
    if status != cuda.cudaError_t.cudaSuccess:
        raise CudnnError(f"CUDA returned {status.name} ({int(status)})")
    return values[0] if len(values) == 1 else values


def detect_edges(image, with_sigmoid, workspace_limit):
    """Return the convolved image; `image` is float32, (1, height, width, 3)."""
    from cuda.bindings import runtime as cuda

    batch, height, width, channels = image.shape
    with ExitStack() as release:
        # The context that every cuDNN call takes.
        cudnn = raw.cudnnHandle_t()
        raw.check(raw.cudnnCreate(byref(cudnn)))
        release.callback(raw.cudnnDestroy, cudnn)

        # The input: one image, three channels, and the channels of one pixel lie together (NHWC).
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
        # The fastest algorithm. When the walkthrough was written, float meant float: newer GPUs round to tf32 unless told
        # not to. The math type that the algorithm has to run with is set on the convolution descriptor.
        choice = choose_algorithm(
            "forward",
            input_descriptor,
            kernel_descriptor,
            convolution_descriptor,
            output_descriptor,
            prefer="fastest",
            workspace_limit=workspace_limit,  # None: as much as the fastest takes
            tf32=False,
            handle=cudnn,
        )
        print("Algorithm:", choice.algorithm.name)
        print(f"Workspace size: {choice.workspace_size / 1048576} MB")

        # Memory on the GPU; an algorithm that wants no workspace gets a null pointer.
        d_workspace = None
        if choice.workspace_size:
            d_workspace = check(cuda.cudaMalloc(choice.workspace_size))
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
                choice.algorithm,
                d_workspace,
                choice.workspace_size,
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


def main():
    parser = argparse.ArgumentParser(description="Find the edges of an image with cuDNN.")
    parser.add_argument("input", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("cudnn-out.png"))
    parser.add_argument("--force", action="store_true", help="overwrite a file that is there already")
    parser.add_argument("--sigmoid", action="store_true", help="apply a sigmoid to the output, in place")
    parser.add_argument("--workspace-limit", type=int, metavar="BYTES", help="where memory is scarce")
    arguments = parser.parse_args()
    if arguments.output.exists() and not arguments.force:
        parser.error(f"{arguments.output}: the file exists; --force overwrites it")
    try:
        image = load_image(arguments.input)
        output = detect_edges(image, arguments.sigmoid, arguments.workspace_limit)
        save_image(arguments.output, output)
    except ImportError as error:
        parser.exit(2, f"{parser.prog}: {error}. Install it: pip install Pillow cuda-python\n")
    except (CudnnError, OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    print(f"Wrote {arguments.output}")


if __name__ == "__main__":
    main()
