"""What the worker reads: launches in host code, instructions in SASS and PTX, kernels in generated sources."""

from __future__ import annotations

import json

import pytest

from conformance.stacks.compile.worker import binary, cache, cute_kernels, cutlass, generated, nvcc, toolchain
from conformance.stacks.compile.worker.problems import Missing, Unfit

_STRUCT = "!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>"


def _host(shared="%28", block="%27"):
    """A launch of 384 x 1 x 1 threads with 58,880 bytes, between functions that use the same names for other things."""
    fields = [
        ("%269", "0, 1, 0", block),
        ("%270", "0, 1, 1", "%26"),
        ("%271", "0, 1, 2", "%26"),
        ("%272", "0, 2", shared),
    ]
    lines = [
        "  llvm.func @first() -> i32 {",
        "    %27 = llvm.mlir.constant(7 : i32) : i32",
        "  }",
        "  llvm.func @launching(%arg0: i64) {",
        "    %26 = llvm.mlir.constant(1 : i32) : i32",
        "    %27 = llvm.mlir.constant(384 : i32) : i32",
        "    %28 = llvm.mlir.constant(58880 : i64) : i64",
    ]
    for place, path, value in fields:
        kind = "i64" if path == "0, 2" else "i32"
        lines.append(f"    {place} = llvm.getelementptr %266[{path}] : (!llvm.ptr) -> !llvm.ptr, {_STRUCT}")
        lines.append(f"    llvm.store {value}, {place} : {kind}, !llvm.ptr")
    return "\n".join([*lines, "  }", "  llvm.func @last() {", "    %28 = llvm.mlir.constant(9 : i64) : i64", "  }"])


def test_a_launch_is_read_off_host_code():
    assert cute_kernels.launch(_host()) == (58880, 384)


def test_a_launch_without_constants_is_not_guessed():
    with pytest.raises(Unfit, match="0 launches with constant shared memory"):
        cute_kernels.launch(_host(shared="%arg0"))


def test_two_different_launches_are_not_one():
    other = _host().replace("%28 = llvm.mlir.constant(58880 : i64)", "%28 = llvm.mlir.constant(1024 : i64)")
    with pytest.raises(Unfit, match="2 launches"):
        cute_kernels.launch(_host() + "\n" + other)


def test_products_in_sass():
    """A product that goes to RZ is a wait, and no product; names of functions are no instructions."""
    text = """
\t\tFunction : _ZN8MMA_Atom
        /*1900*/                   HGMMA.64x128x16.F32.BF16 R152, R216, gdesc[UR20], RZ, !UPT, gsb0 ;  /* 0x01 */
        /*1ab0*/              @!P0 HGMMA.64x128x16.F32.BF16 R152, R88, gdesc[UR20], R152, gsb0 ;  /* 0x02 */
        /*1c00*/                   HGMMA.64x8x16.F16 RZ, gdesc[URZ], RZ, !UPT, gsb0 ;  /* 0x03 */
        /*9ee0*/             @UP1  UTCQMMA gdesc[UR40], gdesc[UR42], tmem[UR19], tmem[UR38], idesc[UR39], UP0 ;
        /*9ff0*/                   QMMA.SF.16832.F32.E4M3.E2M1.E8 R4, R8, R12, R4, R2, R3 ;
        /*a000*/                   IMAD R1, R2, R3, R4 ;
"""
    assert binary._SASS.findall(text) == [
        *["HGMMA.64x128x16.F32.BF16"] * 2,
        "UTCQMMA",
        "QMMA.SF.16832.F32.E4M3.E2M1.E8",
    ]


def test_products_in_ptx():
    text = """
\t@%p1 tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32 [%r1], %rd1, %rd2;
\twgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%r1}, %rd1;
\tmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r1}, {%r2};
\twgmma.wait_group.sync.aligned 0;
"""
    assert binary._PTX.findall(text) == [
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32",
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    ]


def _macro(tile="128, 64, 128", fusion="FINALIZE", cluster="1, 1, 1", dynamic="false", swap="true"):
    types = "Sm120, __nv_fp8_e4m3, SafeFP4, __nv_bfloat16,\n        void, EpilogueOpDefault"
    return (
        f"INSTANTIATE_TMA_WARP_SPECIALIZED_MOE_GEMM({types}, {fusion},\n        {tile}, {cluster},\n"
        f"        true, {dynamic}, false, {swap});"
    )


def test_names_of_generated_kernels_and_of_probed_ones_agree():
    assert cutlass._Grouped.name(_macro()) == "128x64x128 FINALIZE swapped"
    assert cutlass._Grouped.probed([128, 64, 128, 3, 1, 1, 0]) == "128x64x128 FINALIZE swapped"
    line = _macro("128, 256, 128", "NONE", "2, 1, 1", "true", "false")
    assert cutlass._Grouped.name(line) == cutlass._Grouped.probed([128, 256, 128, 0, 0, 2, 1])


def test_an_oversize_tile_changes_the_tile_alone():
    assert cutlass._Grouped.resized(_macro("128, 128, 128"), (256, 128, 128)) == _macro("256, 128, 128")


def _explicit(tile=(128, 128, 512), schedule="Cooperative"):
    shape = ", ".join(f"cute::Int<{size}>" for size in tile)
    return (
        "template void sm90_generic_mixed_moe_gemm_kernelLauncher<__nv_bfloat16, SafeFP4, __nv_bfloat16,\n"
        f"Epi, cute::Shape<{shape}>, cute::Shape<cute::Int<1>, cute::Int<1>, cute::Int<1>>, "
        f"cutlass::gemm::KernelTmaWarpSpecialized{schedule}, cutlass::epilogue::TmaWarpSpecializedCooperative, Q> (\n"
        "GroupedGemmInput<__nv_bfloat16, SafeFP4, __nv_bfloat16, __nv_bfloat16>inputs, int n);"
    )


def test_sm90_kernels():
    assert cutlass._Mixed.name(_explicit()) == cutlass._Mixed.probed([128, 128, 512, 0, 1, 0, 0])
    assert cutlass._Mixed.name(_explicit(schedule="Pingpong")) == "128x128x512 pingpong"
    name = "sm90_generic_mixed_moe_gemm_kernelLauncher_impl"
    text, (asked,) = cutlass._Mixed.asked(f"void {name}(int n) {{}}", [_explicit()])
    assert text.startswith(f"auto {name}(")
    assert asked.startswith(f"static_assert(sizeof(&{name}<__nv_bfloat16, SafeFP4") and "inputs" not in asked


def test_filters_count_only_while_flashinfer_has_them(tmp_path):
    class Module:
        csrc = tmp_path

    binding = tmp_path / "fused_moe/cutlass_backend/flashinfer_cutlass_fused_moe_binding.cu"
    binding.parent.mkdir(parents=True)
    binding.write_text("if (tile_k == 512 &&\n    tile_n >= 128) {\n  return false;\n}\n")
    (only,) = cutlass._Mixed.filters(Module)
    assert only([128, 128, 512]) and not only([128, 64, 512]) and not only([256, 128, 256])


def test_bytes_of_a_stage():
    """SM120's 128x32: 16,384 bytes of E4M3 and 2,048 of packed E2M1, or 4,096 and 8,192 swapped."""
    assert cutlass._stage_bytes([128, 32, 128], 1, cutlass._Grouped) == 12288
    assert cutlass._stage_bytes([128, 128, 128], 2, cutlass._Grouped) == 16384


def test_errors_of_nvcc():
    said = 'a.inl(7): error: static assertion failed with "Stages"\n'
    said += "b.cu:3:9: fatal error: x.h: No such file or directory\n"
    assert nvcc._ERROR.findall(said)[0] == 'static assertion failed with "Stages"'
    assert "No such file" in nvcc._ERROR.findall(said)[1]


def test_no_nvcc_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain, "_candidates", lambda: iter([tmp_path / "nvcc"]))
    toolchain.nvcc.cache_clear()
    with pytest.raises(Missing, match="pip install nvidia-cuda-nvcc"):
        toolchain.nvcc()
    toolchain.nvcc.cache_clear()


def test_headers_are_linked_only_where_nvcc_has_none(monkeypatch, tmp_path):
    """A newer crt out of a package must not come before nvcc's own."""
    own, package = tmp_path / "cuda", tmp_path / "site/nvidia/cu13/include"
    for made in (own / "bin", own / "include/crt", package / "crt"):
        made.mkdir(parents=True)
    (package / "curand.h").touch()
    monkeypatch.setattr(toolchain, "_settings", lambda: {"TOP": str(own)})
    monkeypatch.setattr(toolchain, "packages", lambda: [tmp_path / "site"])
    links = toolchain.missing_headers(tmp_path)
    assert [path.name for path in type(tmp_path)(links).iterdir()] == ["curand.h"]


def test_results_are_kept_by_content(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    key = cache.key("cutlass", {"nvcc": "13.0.88"})
    assert key != cache.key("cutlass", {"nvcc": "13.0.89"}) and cache.get(key) is None
    cache.put(key, {"kernels": [1]})
    assert cache.get(key) == {"kernels": [1]}
    (cache.folder() / f"{key}.json").write_text(json.dumps([1])[:2])
    assert cache.get(key) is None


def test_a_changed_source_changes_the_key(tmp_path):
    (tmp_path / "a.py").write_text("1")
    before = cache.tree(tmp_path)
    cache.tree.cache_clear()
    (tmp_path / "a.py").write_text("2")
    assert cache.tree(tmp_path) != before


def test_a_flashinfer_without_sources_is_missing_and_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Missing, match=r"trimmed: no kernel sources .* pip install --force-reinstall"):
        generated.content()
    (tmp_path / "flashinfer/data/csrc/nv_internal").mkdir(parents=True)
    assert generated.content()
