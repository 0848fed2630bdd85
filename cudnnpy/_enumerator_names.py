# GENERATED from the headers of cuDNN 9.28.0 by `python -m tools.generate`; do not edit: types
# source: tools/generate/api.jsonl sha256:60a622ec3f4eb1e4e01c06e5c86a1e15dd10060cfa06b74d51b6971bf0a93510
# seal: sha256:1255482783aabb48521522b561bff7051a027a450b8626a79a34480ac02e3a0e
"""The short names of enumerators, by enum, as types. cudnnpy.typing explains them."""

from typing import Literal, TypeAlias

ActivationModeName: TypeAlias = Literal['sigmoid', 'relu', 'tanh', 'clipped_relu', 'elu', 'identity', 'swish']
BackendNormModeName: TypeAlias = Literal['layer_norm', 'instance_norm', 'batch_norm', 'group_norm', 'rms_norm', 'ada_layer_norm']
DataTypeName: TypeAlias = Literal['float32', 'float64', 'float16', 'int8', 'int32', 'int8x4', 'uint8', 'uint8x4', 'int8x32', 'bfloat16', 'int64', 'packed_bool', 'float8_e4m3fn', 'float8_e5m2', 'fast_float_for_fp8', 'float8_e8m0fnu', 'float4_e2m1fn', 'int4', 'uint4', 'uint32', 'complex64', 'complex128', 'bool', 'fp8_e5m3']
FusedOpsName: TypeAlias = Literal['scale_bias_activation_conv_bnstats', 'scale_bias_activation_wgrad', 'bn_finalize_statistics_training', 'bn_finalize_statistics_inference', 'conv_scale_bias_add_activation', 'scale_bias_add_activation_gen_bitmask', 'dactivation_fork_dbatchnorm']
IndicesTypeName: TypeAlias = Literal['32bit_indices', '64bit_indices', '16bit_indices', '8bit_indices']
MathTypeName: TypeAlias = Literal['default_math', 'tensor_op_math', 'tensor_op_math_allow_conversion', 'fma_math']
OpTensorOpName: TypeAlias = Literal['add', 'mul', 'min', 'max', 'sqrt', 'not']
PointwiseModeName: TypeAlias = Literal['add', 'add_square', 'div', 'max', 'min', 'mod', 'mul', 'pow', 'sub', 'abs', 'ceil', 'cos', 'exp', 'floor', 'log', 'neg', 'rsqrt', 'sin', 'sqrt', 'tan', 'erf', 'identity', 'reciprocal', 'atan2', 'floor_mod', 'relu_fwd', 'tanh_fwd', 'sigmoid_fwd', 'elu_fwd', 'gelu_fwd', 'softplus_fwd', 'swish_fwd', 'gelu_approx_tanh_fwd', 'relu_bwd', 'tanh_bwd', 'sigmoid_bwd', 'elu_bwd', 'gelu_bwd', 'softplus_bwd', 'swish_bwd', 'gelu_approx_tanh_bwd', 'cmp_eq', 'cmp_neq', 'cmp_gt', 'cmp_ge', 'cmp_lt', 'cmp_le', 'logical_and', 'logical_or', 'logical_not', 'gen_index', 'binary_select']
ReduceTensorIndicesName: TypeAlias = Literal['no_indices', 'flattened_indices']
ReduceTensorOpName: TypeAlias = Literal['add', 'mul', 'min', 'max', 'amax', 'avg', 'norm1', 'norm2', 'mul_no_zeros']
ResampleModeName: TypeAlias = Literal['nearest', 'bilinear', 'avgpool', 'avgpool_include_padding', 'avgpool_exclude_padding', 'maxpool']
SoftmaxAlgorithmName: TypeAlias = Literal['fast', 'accurate', 'log']
TensorFormatName: TypeAlias = Literal['nchw', 'nhwc', 'nchw_vect_c']
