"""ml_dtypes: NumPy's casts of single numbers."""

_TYPES = {"e2m1": "float4_e2m1fn", "e4m3": "float8_e4m3fn", "e8m0": "float8_e8m0fnu"}


def load():
    import ml_dtypes  # noqa: F401


def VERSION():
    import ml_dtypes

    return ml_dtypes.__version__


def CAPABILITIES():
    return {
        "offers": ["e2m1.encode", "e2m1.decode", "e4m3.encode", "e4m3.decode", "e8m0.decode"],
        "runs": "ml_dtypes' NumPy casts, on a CPU",
        "codes": {"e2m1_nan": 8, "e4m3_overflow": "nan"},
    }


def _type(code):
    import ml_dtypes

    return getattr(ml_dtypes, _TYPES[code])


def encode(code, x):
    import numpy
    import torch

    return torch.from_numpy(x.numpy().astype(_type(code)).view(numpy.uint8).copy())


def decode(code, codes):
    import numpy
    import torch

    return torch.from_numpy(codes.numpy().view(_type(code)).astype(numpy.float32))
